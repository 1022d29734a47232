"""MOBILE: Model-Bellman Inconsistency for Model-based Offline Reinforcement Learning (ICML 2023).
Targets of imagined rows are lowered by the spread over the model's members of the value that each
predicts for the next state.

Differences: the actor's learning rate is constant (the authors': a cosine); the authors' clamp of
targets at 0 from below is off unless `clamp_target_at_zero` asks for it, since it breaks tasks with
negative rewards; the critics are updated after the policy.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from algorithms.learners.soft_actor_critic import LearnerConfig
from algorithms.model_based import ModelBased, ModelBasedConfig, require_ensemble
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.networks import ensemble_values
from mbrl.training import Metrics
from mbrl.types import Spec
from world_models import WorldModel


@dataclass(frozen=True)
class MOBILEConfig(ModelBasedConfig):
    """Settings of MOBILE; penalty weight and horizon are tuned per dataset in the paper."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            hidden=(256, 256), actor_lr=1e-4, alpha_lr=1e-4, entropy_in_target=False
        )
    )
    penalty_weight: float = 0.5  # of the inconsistency, in the reward's units
    samples: int = 10  # next states a member
    clamp_target_at_zero: bool = False  # the authors' code: True; for rewards of 0 or more only

    def __post_init__(self) -> None:
        if self.penalty_weight < 0:
            raise ConfigError(f"penalty_weight is {self.penalty_weight}, it must be 0 or more")
        if self.samples < 1:
            raise ConfigError(f"samples is {self.samples}, it must be at least 1")
        if self.model.elites < 2:
            raise ConfigError(
                f"model.elites is {self.model.elites}, MOBILE needs at least two members to differ"
            )


def bellman_inconsistency(next_q: Tensor) -> Tensor:
    """Deviation over members (Bessel's correction, as in the authors' code) of each member's mean
    next value, [B] from the least target critic's values `next_q` [K, E, B] of K samples a member.
    """
    return next_q.mean(0).std(0)


class MOBILE(ModelBased):
    """SAC whose targets on imagined rows are lowered where the model's members disagree about the
    next value."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: MOBILEConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: MOBILEConfig
        super().__init__(spec, config or MOBILEConfig(), model, device, seed)
        self.ensemble = require_ensemble(self.model, type(self))
        self.penalty = torch.zeros(0, device=self.device)

    def next_batch(self) -> Batch:
        """A mixed batch, and the penalty [B] of its rows: 0 for the real ones, which come first."""
        batch = super().next_batch()
        real = self.real_rows(len(batch.obs))
        penalty = self.inconsistency(batch.obs[real:], batch.action[real:])
        self.penalty = torch.cat([penalty.new_zeros(real), penalty])
        return batch

    @torch.no_grad()
    def inconsistency(self, obs: Tensor, action: Tensor) -> Tensor:
        """The members' disagreement [B] about the next value after `action` [B, A] in [-1, 1]."""
        c, learner, model = self.config, self.learner, self.ensemble
        mean, variance = model.members_predict(obs, learner.actor.scale.to_task(action))
        shape = (c.samples, *mean.shape[:2])
        next_obs, _ = model.decode(obs, mean + variance.sqrt() * self._noise(*shape, mean.shape[2]))
        next_action, _ = learner.actor.sample(next_obs, self._noise(*shape, self.spec.action_dim))
        x = torch.cat([next_obs, next_action], -1).flatten(0, 2)
        q = ensemble_values(learner.target, x)[0].min(0).values
        return bellman_inconsistency(q.view(shape))

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def update_learner(self, batch: Batch) -> Metrics:
        metrics = self.learner.update(batch, target=self.penalised_target)
        return metrics | {"critic/inconsistency": self.penalty.mean()}

    def penalised_target(self, batch: Batch, metrics: Metrics) -> Tensor:
        """The learner's target [B], lowered by the weighted inconsistency."""
        target = self.learner.value_target(batch, self.config.penalty_weight * self.penalty)
        return target.clamp_min(0.0) if self.config.clamp_target_at_zero else target
