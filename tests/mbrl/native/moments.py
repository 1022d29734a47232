"""Whether two agents' optimisers hold the same."""

from typing import Any

import torch


def same_moments(ours: Any, plain: Any) -> None:
    """The optimisers' moments, and with them the gradients, are equal."""
    for name, optimiser in plain.optimisers.items():
        theirs, mine = (o.state_dict()["state"] for o in (optimiser, ours.optimisers[name]))
        for index, state in theirs.items():
            for key, value in state.items():
                scale = value.abs().max().item()
                torch.testing.assert_close(
                    mine[index][key], value, rtol=1e-3, atol=1e-4 * scale, msg=f"{name}.{key}"
                )
