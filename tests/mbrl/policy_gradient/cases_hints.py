"""What recipes of hints, prefixes and teachers read beside the common fields: drawn after all
others, so that these stay as they are."""

import torch
from torch import Tensor

from mbrl.types import Trajectories


def add(t: Trajectories, g: torch.Generator) -> None:
    signals, (batch, steps) = t.signals, t.mask.shape
    junk = torch.where(t.mask, 0.0, torch.nan)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64)

    def often(*shape: int) -> Tensor:
        return (uniform(*shape) < 0.4).double()

    for name in ("teacher", "near"):  # of steps
        signals[name] = often(batch, steps) + junk
    for name in ("apart", "demonstration"):  # of sequences
        signals[name] = often(batch, 1).expand(batch, steps) + junk
    signals["worth"] = (2 * uniform(batch, 1) - 1).expand(batch, steps) + junk
    signals["hint_weight"] = (2 * uniform(batch, 1)).expand(batch, steps) + junk
    for name in ("reverse_kl", "forward_kl"):
        signals[name] = uniform(batch, steps) + junk
    for name in ("schedule", "contrast_weight", "entropy_phase"):  # of the batch
        signals[name] = uniform(1, 1).expand(batch, steps)
    signals["step_return"] = (2 * uniform(batch, 1)).expand(batch, steps)
    t.groups["step"] = torch.randint(0, 2, (batch, 1), generator=g).expand(batch, steps)
    t.log_probs["teacher"] = -8 * uniform(batch, steps) - 0.1 + junk
