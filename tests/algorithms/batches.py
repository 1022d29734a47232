"""Batches in double precision, for losses that are compared with loops."""

from typing import Any

import torch

from mbrl.buffer import Batch


def double_batch(learner: Any, count: int, seed: int = 2) -> Batch:
    """`count` rows of three observations and two actions, gamma 0.9, with the draws that an update
    of `learner` needs."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.float64
    obs, next_obs = torch.randn(2, count, 3, generator=generator, dtype=kind)
    action = 2 * torch.rand(count, 2, generator=generator, dtype=kind) - 1
    reward = torch.randn(count, generator=generator, dtype=kind)
    batch = Batch(obs, action, reward, next_obs, torch.full((count,), 0.9, dtype=kind))
    batch = learner.draw(batch, generator)
    drawn = {name: getattr(batch, name) for name in ("noise", "shift")}
    return batch._replace(**{k: v.double() for k, v in drawn.items() if v is not None})
