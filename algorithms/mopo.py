"""MOPO: Model-based Offline Policy Optimization (arXiv 2005.13239): rewards of imagined steps are
lowered by lambda times the largest member's predicted standard deviation.

Differences: the maximum runs over the kept members (the paper's code: all); the penalty is in the
model's target units, un-normalised changes of observation and reward, as in the paper's code.
"""

from dataclasses import dataclass, field

from torch import Generator

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.sources.imagined import (
    ImaginationConfig,
    ImaginedRows,
    ModelBasedConfig,
    dynamics,
)
from mbrl.agent import Agent
from mbrl.buffer import Batch
from world_models import RolloutConfig, WorldModel


@dataclass(frozen=True)
class MOPOConfig(ModelBasedConfig):
    """Settings of MOPO; penalty weight and horizon are tuned per dataset in the paper."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            critics=2, hidden=(256, 256), actor_lr=1e-4, alpha_lr=1e-4
        )
    )
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(
            rollout=RolloutConfig(penalty="max_aleatoric", penalty_weight=0.5)
        )
    )


class MOPO(Agent[Batch]):
    """SAC on rollouts whose reward is reduced by the largest predicted deviation. `model` replaces
    the learned ensemble.

    Formula:

        model        Gaussian members p_e(s', r | s, a), rollouts of k steps of the policy
        reward       r - lambda max_e |sigma_e(s, a)|, of imagined steps
        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on narrow data, and where its penalty cannot be tuned: in the tables classic
    and model-based it falls back on Pendulum's random data, where COMBO, MOBILE and EDAC stay near
    the expert, and fails on expert data.
    """

    version = 1
    config: MOPOConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, ImaginedRows]:
        c, device = self.config, self.device
        learner = SoftActorCritic(self.spec, c.learner, device, generator)
        model = dynamics(self.spec, c.model, c.imagination, device, self.seed, model)
        return learner, ImaginedRows(learner, model, c.imagination, device, self.seed)
