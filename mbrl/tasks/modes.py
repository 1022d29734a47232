"""Two tasks in the plane with several best actions whose mean is worth nothing: goals around a
point, and an obstacle on the way. What a policy of one mode does there is known in closed form."""

import math

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action, finite_rows, on_circle, uniform
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

RADIUS, WIDTH = 0.7, 0.2  # of Modes-v0: distance of the goals from 0, deviation of their rewards
STEP, OBSTACLE, NEAR = 0.25, 0.4, 0.2  # of Obstacle-v0: longest move a component, two radii
START, GOAL = (-1.0, 0.0), (1.0, 0.0)


class Modes:
    """Modes-v0: one action a in the plane, and `modes` goals g_k at 0.7 from 0, at the angles phi +
    2 pi k / modes. The reward is max_k exp(-|a - g_k|^2 / (2 0.2^2)), at most 1; at the mean of the
    goals, 0, it is exp(-6.125) = 0.002. Observation (cos phi, sin phi), phi uniform; the step ends
    the episode."""

    def __init__(
        self,
        *,
        modes: int = 2,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("Modes-v0", dtype)
        if modes < 2:
            raise ConfigError(f"Modes-v0: modes={modes}, there must be at least 2")
        self.device, self.dtype, self.modes = torch.device(device), dtype, modes
        self.spec = Spec(
            task="Modes-v0",
            obs_dim=2,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=1,
            reference_returns=REFERENCE_RETURNS["Modes-v0"] if modes == 2 else None,
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2]: (cos phi, sin phi)."""
        angle = uniform(count, -math.pi, math.pi, 1, generator)
        return torch.cat([angle.cos(), angle.sin()], 1).to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state.clone()

    def goals(self, state: Tensor) -> Tensor:
        """[B, modes, 2] at states [B, 2]."""
        turns = torch.arange(self.modes, device=state.device, dtype=state.dtype)
        angle = torch.atan2(state[:, 1], state[:, 0])[:, None] + 2 * math.pi / self.modes * turns
        return RADIUS * torch.stack([angle.cos(), angle.sin()], -1)

    def step(self, state: Tensor, action: Tensor) -> Step:
        action = continuous_action("Modes-v0", action, 2).clamp(-1.0, 1.0).to(state.dtype)
        squared = (action[:, None] - self.goals(state)).square().sum(-1).amin(1)
        reward = (-squared / (2 * WIDTH**2)).exp()
        return Step(state, state.clone(), reward, torch.ones_like(reward, dtype=torch.bool))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation itself; possible on the circle."""
        return obs.clone(), finite_rows(obs) & on_circle(obs[:, 0], obs[:, 1])

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Always."""
        return torch.ones(len(next_obs), dtype=torch.bool, device=next_obs.device)


class Obstacle:
    """Obstacle-v0: a point at s moves by s' = s + 0.25 a, from (-1, y), y uniform in [-0.1, 0.1],
    to within 0.2 of (1, 0), which is paid 1 and ends the episode. A move that touches the disc of
    radius 0.4 around 0 ends it without reward. 20 steps; the best return is 1, by either side."""

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("Obstacle-v0", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.spec = Spec(
            task="Obstacle-v0",
            obs_dim=2,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=20,
            reference_returns=REFERENCE_RETURNS["Obstacle-v0"],
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2] at the left."""
        y = uniform(count, -0.1, 0.1, 1, generator)
        return torch.cat([torch.full_like(y, START[0]), y], 1).to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state.clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        action = continuous_action("Obstacle-v0", action, 2).clamp(-1.0, 1.0).to(state.dtype)
        moved = state + STEP * action
        reward = (_arrived(moved) & ~_touched(state, moved)).to(state.dtype)
        return Step(moved, moved.clone(), reward, self.terminates(state, action, moved))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation itself; possible where finite."""
        return obs.clone(), finite_rows(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """At the goal, and where the move touches the disc."""
        return _arrived(next_obs) | _touched(obs, next_obs)


def _arrived(point: Tensor) -> Tensor:
    apart: Tensor = (point - point.new_tensor(GOAL)).norm(dim=1)
    return apart <= NEAR


def _touched(start: Tensor, end: Tensor) -> Tensor:
    """[B]: whether the straight move comes within the disc's radius of 0."""
    way = end - start
    share = -(start * way).sum(1) / way.square().sum(1).clamp_min(1e-12)
    nearest = start + share.clamp(0.0, 1.0)[:, None] * way
    distance: Tensor = nearest.norm(dim=1)
    return distance <= OBSTACLE
