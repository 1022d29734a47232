"""Two tasks of NeoRL-2 (Gao et al., 2025, arXiv 2503.19267) as batched torch functions: coupled
masses that follow a target, and a pipeline with a delay. Written from their equations."""

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action, finite_rows, uniform
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec


class DoubleMassSpring:
    """DMSD-v0: hold two masses between two walls at their targets, with forces of 30 a N.

    Wall, mass, mass, wall are joined by springs (2 N/m) and dampers (4 N s/m); explicit Euler over
    0.2 s, no termination. NeoRL-2's test mode has `mass` 30 kg in place of 20.
    State (two positions m, two speeds, two targets now, two targets from step 50 on, steps done),
    observation its first six entries. The reward of the state *reached*, against the target shown
    there: the sum over masses of -log(|position - target| + 0.01).
    """

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
