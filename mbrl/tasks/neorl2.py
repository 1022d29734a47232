"""Two tasks of NeoRL-2 (Gao et al., 2025, arXiv 2503.19267) as batched torch functions: coupled
masses that follow a target, and a pipeline with a delay. Written from their equations."""

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks.base import Step
from mbrl.tasks.common import (
    check_dtype,
    continuous_action,
    finite_rows,
    hashed_uniform,
    uniform,
)
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

CELLS, HISTORY = 20, 25  # of the pipe, and of what is observed of its past
CHANGE = 0.003  # probability of a new target in a step of the pipeline


class DoubleMassSpring:
    """DMSD-v0: hold two masses between two walls at their targets, with forces of 30 a N.

    Wall, mass, mass, wall are joined by springs (2 N/m) and dampers (4 N s/m); explicit Euler over
    0.2 s, no termination. NeoRL-2's test mode has `mass` 30 kg in place of 20.
    State (two positions m, two speeds, two targets now, two targets from step 50 on, steps done),
    observation its first six entries. The reward of the state *reached*, against the target shown
    there: the sum over masses of -log(|position - target| + 0.01).
    """

    endless = True  # never terminates

    def __init__(
        self,
        *,
        mass: float = 20.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("DMSD-v0", dtype)
        if not mass > 0:
            raise ConfigError(f"DMSD-v0: mass={mass} must be above 0 kg")
        self.device, self.dtype, self.mass = torch.device(device), dtype, mass
        self.dt, self.spring, self.damper, self.force = 0.2, 2.0, 4.0, 30.0
        self.spec = Spec(
            task="DMSD-v0",
            obs_dim=6,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=100,
            reference_returns=REFERENCE_RETURNS.get("DMSD-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 9]: positions within 0.25, speeds within 0.1, targets within 1.5; each
        mass keeps its target for the whole episode or gets another at step 50, as likely as not."""
        position = uniform(count, -0.25, 0.25, 2, generator)
        speed = uniform(count, -0.1, 0.1, 2, generator)
        target = uniform(count, -1.5, 1.5, 4, generator)
        keeps = uniform(count, 0.0, 1.0, 2, generator) < 0.5
        later = torch.where(keeps, target[:, :2], target[:, 2:])
        begun = torch.zeros_like(target[:, :1])
        state = torch.cat([position, speed, target[:, :2], later, begun], dim=-1)
        return state.to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 6]: positions, speeds, the targets of now."""
        return state[:, :6].clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Positions and speeds from those of before; the targets change on reaching step 50."""
        push = continuous_action("DMSD-v0", action, 2).clamp(-1.0, 1.0).to(state.dtype)
        x, v, now, later = state[:, :2], state[:, 2:4], state[:, 4:6], state[:, 6:8]
        done = state[:, 8:] + 1
        pull = self.spring * (x.flip(-1) - 2 * x) + self.damper * (v.flip(-1) - 2 * v)
        reached = x + self.dt * v
        v = v + self.dt / self.mass * (pull + self.force * push)
        target = torch.where(done >= 50, later, now)
        state = torch.cat([reached, v, target, later, done], dim=-1)
        reward = -((reached - target).abs() + 0.01).log().sum(dim=-1)
        never = torch.zeros(len(state), dtype=torch.bool, device=state.device)
        return Step(state, self.observe(state), reward, never)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The state at step 0 whose targets never change; possible where finite."""
        state = torch.cat([obs, obs[:, 4:], torch.zeros_like(obs[:, :1])], dim=-1)
        return state, finite_rows(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Never."""
        return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)


class Pipeline:
    """Pipeline-v0: hold the flow at the end of a pipe at a target by turning the gate at its head.

    What passes the gate takes 20 steps to the end. The target is one of 50, 80, 110 and 140 and is
    drawn again with probability 0.003 a step; flows stay in [0, 200]. No termination.
    State (float64 whatever `dtype` says): the target, a seed and the steps done, from which the
    coming targets follow (none comes where the seed is 0), the flow in 20 cells from the head, the
    last 25 flows at the end before that of now and the last 25 actions, newest first. Observation:
    the flow at the end, the target, both histories. The reward of the state *reached*, against the
    target shown there: (2 - |flow - target| / 100)^2 - 3.
    """

    endless = True  # never terminates

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("Pipeline-v0", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.targets = torch.tensor([50.0, 80, 110, 140], device=self.device, dtype=torch.float64)
        self.spec = Spec(
            task="Pipeline-v0",
            obs_dim=2 + 2 * HISTORY,
            action_dim=1,
            action_low=(-1.0,),
            action_high=(1.0,),
            max_episode_steps=1000,
            reference_returns=REFERENCE_RETURNS.get("Pipeline-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 73]: the same flow in the whole pipe, 80 to 120, and no past actions."""
        draw = uniform(count, 0.0, 1.0, 3, generator).to(self.device)
        target = self.targets[(4 * draw[:, :1]).long()]
        seed = 1 + (2**31 * draw[:, 1:2]).floor()
        flow = (80 + 40 * draw[:, 2:]).expand(count, CELLS + HISTORY)
        none = torch.zeros(count, 1 + HISTORY, device=self.device, dtype=torch.float64)
        return torch.cat([target, seed, none[:, :1], flow, none[:, 1:]], dim=-1)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 52] in `dtype`."""
        end = 2 + CELLS  # the place of the last cell
        parts = [state[:, end : end + 1], state[:, :1], state[:, end + 1 :]]
        return torch.cat(parts, dim=-1).to(self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        """A new target, if one comes; then the gate turns and all cells move on by one."""
        turn = continuous_action("Pipeline-v0", action, 1).clamp(-1.0, 1.0).to(state.dtype)
        target, seed, done = state[:, 0], state[:, 1], state[:, 2]
        cells, past, turns = state[:, 3:].split([CELLS, HISTORY, HISTORY], dim=-1)
        changes = (hashed_uniform(seed, 2 * done) < CHANGE) & (seed > 0)
        other = self.targets[(4 * hashed_uniform(seed, 2 * done + 1)).long()]
        target = torch.where(changes, other, target)
        head = (cells[:, :1] + turn).clamp(0.0, 200.0)
        past = torch.cat([cells[:, -1:], past[:, :-1]], dim=-1)
        cells = torch.cat([head, cells[:, :-1]], dim=-1)
        turns = torch.cat([turn, turns[:, :-1]], dim=-1)
        numbers = torch.stack([target, seed, done + 1], dim=-1)
        state = torch.cat([numbers, cells, past, turns], dim=-1)
        reward = (2 - (cells[:, -1] - target).abs() / 100).square() - 3
        never = torch.zeros(len(state), dtype=torch.bool, device=state.device)
        return Step(state, self.observe(state), reward.to(self.dtype), never)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The flows in the pipe from that at its end and the actions, with a target that stays;
        possible where finite and within the bounds of flows and actions."""
        seen = obs.double()
        turns, cells = seen[:, 2 + HISTORY :], [seen[:, 0]]
        for k in reversed(range(CELLS - 1)):
            cells.insert(0, (cells[0] + turns[:, k]).clamp(0.0, 200.0))
        still = torch.zeros_like(seen[:, :2])
        state = torch.cat([seen[:, 1:2], still, torch.stack(cells, dim=-1), seen[:, 2:]], dim=-1)
        flows = torch.cat([seen[:, :1], seen[:, 2 : 2 + HISTORY]], dim=-1)
        inside = ((flows >= 0) & (flows <= 200)).all(dim=-1) & (turns.abs() <= 1).all(dim=-1)
        return state, inside & finite_rows(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Never."""
        return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)
