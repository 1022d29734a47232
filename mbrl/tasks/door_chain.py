"""DoorChain-v0: four doors in a row in the plane, each a sub-task that the next one needs; walls
hold whoever misses a door until he backs off."""

import math

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action, hashed_uniform, uniform
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

DOORS, HALF = 4, 0.05  # doors, and half the width of each
SPEED, NOISE, EDGE = 0.08, 0.025, 0.01  # distance a step; its noise; where the wall holds
RELEASE = -0.3  # action along x that frees a held point
APPROACH, ALIGNED = 0.25, 0.03  # before a door; distance from its line at which to go through


class DoorChain:
    """DoorChain-v0: pass the doors of four walls, which stand at x = 1, 2, 3, 4.

    A point moves by 0.08 a, a in [-1, 1]^2, plus noise of deviation 0.025 in each coordinate (a
    fixed function of a seed and the number of the step, both in the state). A move that would cross
    a wall further than 0.05 from its door's middle ends at the wall, and the point is held there:
    it does not move until an action along x below -0.3, which moves it back. With `slide` above 0
    it comes to rest that much further along the wall, away from the door. Passing a door pays 1;
    the last one ends the task. Starts at x in [0, 0.2], y in [-0.5, 0.5]; doors in [-0.6, 0.6];
    200 steps.

    State: x, y, held (0 or 1), doors passed, steps, a seed, the four doors' y. Observation: x from
    the last wall, y, the next door's y, held, and which door is next (one-hot, all 0 at the
    end).
    """

    def __init__(
        self,
        *,
        slide: float = 0.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("DoorChain-v0", dtype)
        if not 0 <= slide < math.inf:
            raise ConfigError(f"slide of DoorChain-v0 is {slide}, it must be at least 0")
        self.device, self.dtype, self.slide = torch.device(device), dtype, float(slide)
        self.spec = Spec(
            task="DoorChain-v0",
            obs_dim=4 + DOORS,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=200,
            task_options={} if slide == 0 else {"slide": self.slide},
            reference_returns=REFERENCE_RETURNS.get("DoorChain-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 10], float64 whatever `dtype` says."""
        draw = uniform(count, 0.0, 1.0, 3 + DOORS, generator)
        zero = torch.zeros_like(draw[:, 0])
        seed = 1 + (2**31 * draw[:, 2]).floor()
        own = [0.2 * draw[:, 0], draw[:, 1] - 0.5, zero, zero, zero, seed]
        doors = 1.2 * draw[:, 3:] - 0.6
        return torch.cat([torch.stack(own, -1), doors], -1).to(self.device)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 8] in `dtype`."""
        x, y, held, passed = state[:, :4].unbind(-1)
        which = torch.nn.functional.one_hot(passed.long(), DOORS + 1)[:, :DOORS]
        own = torch.stack([x - passed, y, next_door(state), held], -1)
        return torch.cat([own, which.to(own)], -1).to(self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        action = continuous_action("DoorChain-v0", action, 2).double().clamp(-1, 1)
        x, y, held, passed, steps, seed = state[:, :6].unbind(-1)
        along, across = (SPEED * action + self._noise(seed, steps)).unbind(-1)
        free = (held == 0) | (action[:, 0] < RELEASE)
        along, across = torch.where(free, along, 0.0), torch.where(free, across, 0.0)
        # held points move back, whatever the noise
        along = torch.where((held > 0) & free, along.clamp(max=-EDGE), along)
        wall = passed + 1
        ahead = x + along
        # where on the way it meets the wall
        share = ((wall - x) / along.where(along > 0, 1.0)).clamp(0, 1)
        through = (y + share * across - next_door(state)).abs() <= HALF
        meets = (along > 0) & (ahead >= wall)
        stopped, opened = meets & ~through, meets & through
        ahead = torch.where(stopped, wall - EDGE, ahead).maximum(passed)
        held = torch.where(stopped | ((held > 0) & ~free), 1.0, 0.0)
        side = (y + across).clamp(-1 - self.slide, 1 + self.slide)
        slid = torch.where(side >= next_door(state), side + self.slide, side - self.slide)
        side = torch.where(stopped, slid.clamp(-1 - self.slide, 1 + self.slide), side)
        own = [ahead, side, held, passed + opened, steps + 1, seed]
        reached = torch.cat([torch.stack(own, -1), state[:, 6:]], -1)
        ended = reached[:, 3] >= DOORS
        return Step(reached, self.observe(reached), opened.to(self.dtype), ended)

    def _noise(self, seed: Tensor, steps: Tensor) -> Tensor:
        """[B, 2] of uniform draws with the deviation `NOISE`."""
        draws = torch.stack([hashed_uniform(seed, 2 * steps + k) for k in (0, 1)], -1)
        return NOISE * 12**0.5 * (draws - 0.5)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """None: an observation shows neither the doors behind the next one nor the noise to
        come."""
        state = torch.zeros(len(obs), 6 + DOORS, dtype=torch.float64, device=obs.device)
        return state, torch.zeros(len(obs), dtype=torch.bool, device=obs.device)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """No door is left."""
        return (next_obs[:, 4:] == 0).all(-1)


def next_door(state: Tensor) -> Tensor:
    """[B] y of the door that is next; of the last one where none is."""
    index = state[:, 3].long().clamp(max=DOORS - 1)
    return state[:, 6:].gather(1, index[:, None])[:, 0]


def door_chain_expert(obs: Tensor) -> Tensor:
    """Actions [B, 2]: off the wall where it holds, to the line of the door before it is near, and
    through."""
    x, offset, held = obs[:, 0], obs[:, 1] - obs[:, 2], obs[:, 3]
    before = 1 - APPROACH
    across = (-offset / SPEED).clamp(-1, 1)
    aligned = offset.abs() <= ALIGNED
    waiting = ((before - x) / SPEED).clamp(-1, 1)
    along = torch.where(aligned | (x < before - SPEED), 1.0, waiting)
    freed = torch.where(held > 0, -1.0, along)
    return torch.stack([freed, torch.where(held > 0, 0.0, across)], -1)
