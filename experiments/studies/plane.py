"""The plane of the edge-of-reach experiments: a point that moves by its action, the states that
rollouts of k steps can end in and never begin in, and the exact value of every state."""

import math
from typing import Any

import torch
from torch import Tensor

from mbrl.tasks.base import Step
from mbrl.tasks.synthetic import PointMass
from mbrl.types import Spec

SQUARE, LIMIT = 2.0, 30  # half width of the square of starts; steps of an episode


class Plane:
    """The world: a point mass, its edge set for k-step rollouts, and the exact value."""

    def __init__(self, settings: dict[str, Any], gamma: float) -> None:
        centre = (float(settings["centre"][0]), float(settings["centre"][1]))
        mass = PointMass(reward=settings["reward"], centre=centre, sd=settings["sd"])
        self.task = Clocked(mass) if settings["clock"] else mass
        self.mass, self.clock = mass, settings["clock"]
        self.horizon: int = settings["horizon"]
        self.gamma = gamma
        self.highest = 1.0 if settings["reward"] == "bump" else 0.0  # reward at most
        self.lowest = -2.0 if settings["reward"] == "distance" else 0.0  # as far as rollouts go

    def at_edge(self, obs: Tensor) -> Tensor:
        """[B] bool: states that k steps can reach and k - 1 steps cannot; with a clock those at
        time k, unless the task has ended there."""
        if self.clock:
            return (obs[:, 2] * LIMIT > self.horizon - 0.5) & (self.horizon < LIMIT)
        return obs.abs().amax(-1) > SQUARE + self.horizon - 1

    def ring(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` states of the edge set, all around the square."""
        radius = SQUARE + self.horizon - torch.rand(count, generator=generator)
        along = (2 * torch.rand(count, generator=generator) - 1) * radius
        away = torch.where(torch.rand(count, generator=generator) < 0.5, radius, -radius)
        swap = torch.rand(count, generator=generator) < 0.5
        points = torch.stack([torch.where(swap, along, away), torch.where(swap, away, along)], -1)
        if not self.clock:
            return points
        return torch.cat([points, torch.full((count, 1), self.horizon / LIMIT)], -1)

    def value(self, obs: Tensor) -> Tensor:
        """The largest discounted return [B] from `obs`, exactly: all rewards here fall with the
        distance in either coordinate, and each coordinate can close in by 1 a step on its own.
        With a clock, of the steps that are left."""
        gap = (obs[:, :2] - self.mass.centre).abs()
        left = (1 - obs[:, 2]) * LIMIT if self.clock else torch.full_like(gap[:, 0], math.inf)
        total, steps = torch.zeros_like(gap[:, 0]), 128
        for t in range(steps):
            gap = (gap - 1).clamp_min(0)
            reward = self.mass.reward(self.mass.centre + gap)
            total = total + self.gamma**t * reward * (t < left - 0.5)
        endless = self.gamma**steps / (1 - self.gamma) * self.mass.reward(self.mass.centre + gap)
        return total + endless * left.isinf()


class Clocked:
    """A point mass that observes the time and terminates after `LIMIT` steps: at k = LIMIT nothing
    is bootstrapped any more, so the edge set is empty."""

    def __init__(self, mass: PointMass) -> None:
        self.mass, self.device = mass, mass.device
        self.spec = Spec(
            task="PointMass-v0",
            obs_dim=3,
            action_dim=2,
            action_low=mass.spec.action_low,
            action_high=mass.spec.action_high,
            max_episode_steps=LIMIT,
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        point = self.mass.reset(count, generator)
        return torch.cat([point, torch.zeros_like(point[:, :1])], -1)

    def observe(self, state: Tensor) -> Tensor:
        return state.clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        step = self.mass.step(state[:, :2], action)
        time = state[:, 2:] + 1 / LIMIT
        reached = torch.cat([step.state, time], -1)
        ended = time[:, 0] > 1 - 0.5 / LIMIT
        return step._replace(state=reached, obs=reached.clone(), terminated=ended)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return obs.clone(), torch.isfinite(obs).all(-1)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        return next_obs[:, 2] > 1 - 0.5 / LIMIT
