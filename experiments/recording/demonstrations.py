"""Demonstrations with several modes: behaviours that draw which of two good ways they go."""

import torch
from torch import Generator, Tensor

from mbrl.tasks.modes import GOAL, RADIUS

NOISE = 0.08  # deviation of the actions around each way
PASSED = 0.1  # Obstacle-v0: from this far to a side the demonstrator stays on it
ASIDE = 0.7  # and passes the obstacle there


def modes_demonstrator(obs: Tensor, generator: Generator) -> Tensor:
    """Modes-v0 with two modes: either goal with probability 1/2, and noise."""
    side = (torch.rand(len(obs), 1, generator=generator) < 0.5).to(obs.dtype) * 2 - 1
    noise = NOISE * torch.randn(obs.shape, generator=generator, dtype=obs.dtype)
    return (RADIUS * side * obs + noise).clamp(-1, 1)


def obstacle_demonstrator(obs: Tensor, generator: Generator) -> Tensor:
    """Obstacle-v0: above or below the obstacle, with probability 1/2 each where it is ahead,
    then to the goal. At full speed, with noise."""
    draw = (torch.rand(len(obs), generator=generator) < 0.5).to(obs.dtype) * 2 - 1
    side = torch.where(obs[:, 1].abs() > PASSED, obs[:, 1].sign(), draw)
    aside = torch.stack([torch.zeros_like(side), ASIDE * side], 1)
    target = torch.where(obs[:, :1] < -0.05, aside, obs.new_tensor(GOAL))
    way = target - obs
    noise = NOISE * torch.randn(obs.shape, generator=generator, dtype=obs.dtype)
    length: Tensor = way.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return (way / length + noise).clamp(-1, 1)
