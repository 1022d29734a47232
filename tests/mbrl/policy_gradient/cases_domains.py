"""What recipes of domains and of several parts read beside the common fields: drawn after all
others, so that these stay as they are."""

import torch
from torch import Tensor

from mbrl.types import Trajectories


def add(t: Trajectories, g: torch.Generator) -> None:
    signals, (batch, steps) = t.signals, t.mask.shape
    junk = torch.where(t.mask, 0.0, torch.nan)

    def whole(*values: Tensor) -> Tensor:
        return values[0].expand(batch, steps) + junk

    def uniform() -> Tensor:
        return torch.rand((batch, 1), generator=g, dtype=torch.float64)

    signals["repeated"] = whole(uniform())
    signals["round"] = whole(torch.full((batch, 1), 80.0, dtype=torch.float64))
    signals["chosen"] = whole((uniform() < 0.5).double())
    signals["shift"] = whole(torch.full((batch, 1), 0.07, dtype=torch.float64))
    signals["routed"] = whole(uniform())
    signals["team"] = whole(2 * uniform())
