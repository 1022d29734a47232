"""MOBILE: Model-Bellman Inconsistency for Model-based Offline Reinforcement Learning (ICML 2023).
Targets of imagined rows are lowered by the spread over the model's members of the value that each
predicts for the next state.

Differences: the actor's learning rate is constant (the authors': a cosine); the authors' clamp of
targets at 0 from below is off unless `clamp_target_at_zero` asks for it, since it breaks tasks with
negative rewards; the critics are updated after the policy.
"""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from algorithms.learners.critics import q_values
from algorithms.learners.soft_actor_critic import (
    LearnerConfig,
    SoftActorCritic,
    soft_value_target,
)
from algorithms.sources.imagined import (
    ImaginedRows,
    ModelBasedConfig,
    dynamics,
    require_ensemble,
)
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, NonNegative
from mbrl.errors import ConfigError
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from world_models import EnsembleDynamics, WorldModel


@dataclass(frozen=True)
class MOBILEConfig(ModelBasedConfig):
    """Settings of MOBILE; penalty weight and horizon are tuned per dataset in the paper."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            hidden=(256, 256), actor_lr=1e-4, alpha_lr=1e-4, entropy_in_target=False
        )
    )
    penalty_weight: NonNegative = 0.5  # of the inconsistency, in the reward's units
    samples: Count = 10  # next states a member
    clamp_target_at_zero: bool = False  # the authors' code: True; for rewards of 0 or more only

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.elites < 2:
            raise ConfigError(
                f"model.elites is {self.model.elites}, MOBILE needs at least two members to differ"
            )


def bellman_inconsistency(next_q: Tensor) -> Tensor:
    """Deviation over members (Bessel's correction, as in the authors' code) of each member's mean
    next value, [B] from the least target critic's values `next_q` [K, E, B] of K samples a member.
    """
    check_shapes(next_q=(next_q, "K E B"))
    return next_q.mean(0).std(0)


@torch.no_grad()
def inconsistency(
    learner: SoftActorCritic,
    model: EnsembleDynamics,
    obs: Tensor,
    action: Tensor,
    samples: int,
    generator: Generator,
) -> Tensor:
    """The members' disagreement [B] about the next value after `action` [B, A] in [-1, 1], from
    `samples` next states a member."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=obs.device)

    mean, variance = model.members_predict(obs, learner.actor.scale.to_task(action))
    shape = (samples, *mean.shape[:2])
    next_obs = model.reached(obs, mean + variance.sqrt() * noise(*shape, mean.shape[2]))
    next_action, _ = learner.actor.sample(next_obs, noise(*shape, learner.spec.action_dim))
    q = q_values(learner.target, next_obs.flatten(0, 2), next_action.flatten(0, 2)).min(0).values
    return bellman_inconsistency(q.view(shape))


class MOBILE(Agent[Batch]):
    """SAC whose targets on imagined rows are lowered where the model's members disagree about the
    next value. `model` replaces the learned ensemble by another.

    Formula:

        critics      y = r - c u(s, a) + gamma min_n Q'_n(s', a'), u = 0 on logged rows
                     u = deviation over members e of the mean over k of min_n Q'_n(s'_ek, a'_ek)
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on narrow expert data, where it fails as all of its family do (table
    model-based), and where time is short: an update costs nearly as much as COMBO's.
    """

    version = 1
    config: MOBILEConfig
    learner: SoftActorCritic
    source: ImaginedRows

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, ImaginedRows]:
        c, device = self.config, self.device
        learner = SoftActorCritic(
            self.spec, c.learner, device, generator, target=self.penalised_target
        )
        model = dynamics(self.spec, c.model, c.imagination, device, self.seed, model)
        require_ensemble(model, "MOBILE")
        return learner, ImaginedRows(learner, model, c.imagination, device, self.seed)

    def next_batch(self) -> Batch:
        """A mixed batch, and the penalty [B] of its rows: 0 for the real ones."""
        batch = super().next_batch()
        assert batch.real is not None and isinstance(self.model, EnsembleDynamics)
        obs, action = batch.obs[batch.real :], batch.action[batch.real :]
        samples = self.config.samples
        penalty = inconsistency(self.learner, self.model, obs, action, samples, self.generator)
        return batch._replace(penalty=torch.cat([penalty.new_zeros(batch.real), penalty]))

    def penalised_target(self, learner: SoftActorCritic, batch: Batch, metrics: Metrics) -> Tensor:
        """The soft target [B], lowered by the weighted inconsistency."""
        assert batch.penalty is not None
        target = soft_value_target(learner, batch, self.config.penalty_weight * batch.penalty)
        return target.clamp_min(0.0) if self.config.clamp_target_at_zero else target

    def update(self, batch: Batch) -> Metrics:
        assert batch.penalty is not None
        return super().update(batch) | {"critic/inconsistency": batch.penalty.mean()}
