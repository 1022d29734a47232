"""The observations on which files are compared with the policy."""

from types import SimpleNamespace
from typing import Any

import torch

from experiments.export.parity import observations
from mbrl.types import Spec


def test_rows_of_large_data_are_evenly_spread() -> None:
    """Beyond 2^24 rows 32-bit numbers name rows that are not there."""
    count = 2**24 + 4
    obs = torch.zeros(1, 1).expand(count, 1)
    parts: Any = SimpleNamespace(spec=Spec("x", 1, 1, action_low=(-1.0,), action_high=(1.0,)))
    data: Any = SimpleNamespace(transitions=SimpleNamespace(obs=obs))
    assert observations(parts, data).shape == (1000, 1)
    data.transitions.obs = torch.arange(1000.0)[:, None]
    assert torch.equal(observations(parts, data)[::2, 0], torch.arange(0.0, 1000.0, 2.0))
