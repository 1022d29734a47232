"""MOPO: Model-based Offline Policy Optimization (arXiv 2005.13239): rewards of imagined steps are
lowered by lambda times the largest member's predicted standard deviation.

Differences: the maximum runs over the kept members (the paper's code: all); the penalty is in the
model's target units, un-normalised changes of observation and reward, as in the paper's code.
"""

from dataclasses import dataclass, field

from algorithms.learners.soft_actor_critic import LearnerConfig
from algorithms.model_based import ImaginationConfig, ModelBased, ModelBasedConfig
from mbrl.types import Spec
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


class MOPO(ModelBased):
    """SAC on rollouts whose reward is reduced by the largest predicted deviation."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: MOPOConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: MOPOConfig
        super().__init__(spec, config or MOPOConfig(), model, device, seed)
