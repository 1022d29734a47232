"""A learned ensemble of what a simulator leaves: equations with wrong numbers, and corrections."""

from typing import Any

import torch
from torch import Tensor

from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.tasks.base import Task
from mbrl.types import Transitions
from world_models.ensemble import EnsembleDynamics


class PhysicsResidual(EnsembleDynamics):
    """Predicts what `physics` does, a task of the same observations and actions, and the members'
    correction of its next observation and reward. Members learn from the differences between the
    rows and the answers of `physics`. Predictions are none of its observations (cosine and sine
    leave their circle): it steps the state that it reads in them, the angle, say. Where its answer
    is not finite, a row is predicted as without it.

    LIFT (arXiv 2601.21363): integrated rigid-body dynamics and a learned residual. Raises
    `ConfigError` where sizes differ, and for the target "residual", which takes a regression off
    instead.
    """

    def __init__(self, *args: Any, physics: Task, **options: Any) -> None:
        super().__init__(*args, **options)
        mine, theirs = ((s.obs_dim, s.action_dim, s.num_actions) for s in (self.spec, physics.spec))
        if mine != theirs:
            raise ConfigError(
                f"physics is {physics.spec.task!r} with (obs_dim, action_dim, num_actions) "
                f"{theirs}, and the task has {mine}; give one of the same sizes"
            )
        if self.config.reward == "reached":
            raise ConfigError(
                "reward is 'reached', whose networks know no physics; set model.reward to 'joint'"
            )
        self.physics = physics

    def targets(self, data: Transitions | Batch) -> Tensor:
        """[N, S + 1]: next observation and reward less those of the physics, in target units."""
        known = self.answers(data.obs, data.action)
        actual = torch.cat([data.next_obs, data.reward[:, None]], -1)
        return self.target_scale(actual - known)

    def decode(self, obs: Tensor, action: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Target units [..., S + 1] to next observation [..., S] and reward [...]."""
        step = self.answers(obs, action) + self.target_scale.inverse(y)
        return step[..., :-1], step[..., -1]

    def reached(self, obs: Tensor, y: Tensor) -> Tensor:
        """Not without the action: raises `ConfigError`."""
        raise ConfigError("this model of physics and corrections is not for MOBILE; take another")

    def answers(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, S + 1]: next observation and reward of the physics; `obs` and 0 where it has none."""
        state, _ = self.physics.state_from_obs(obs)
        step = self.physics.step(state, action)
        known = torch.cat([step.obs, step.reward[:, None]], -1).to(obs)
        without = torch.cat([obs, obs.new_zeros(len(obs), 1)], -1)
        return torch.where(known.isfinite().all(-1, keepdim=True), known, without)

    def _fit_normalisers(self, data: Transitions) -> None:
        """As the ensemble's; a change's unit with the target "standardised" is the deviation of
        what the physics leaves, which can be far below that of the observation."""
        super()._fit_normalisers(data)
        if self.config.target != "standardised":
            return
        self.target_scale.mean.zero_()
        self.target_scale.std.fill_(1.0)
        rest = self.targets(data)
        least = 1e-6 * torch.cat([self.obs_normaliser.std, rest.new_ones(1)])
        self.target_scale.std.copy_(torch.maximum(rest.std(0, correction=0), least))
