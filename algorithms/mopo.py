"""MOPO: Model-based Offline Policy Optimization (arXiv 2005.13239): rewards of imagined steps are
lowered by lambda times the largest member's predicted standard deviation.

Differences: the maximum runs over the kept members (the paper's code: all); the penalty is in the
model's target units, un-normalised changes of observation and reward, as in the paper's code.
"""

from dataclasses import dataclass, field
from pathlib import Path

from algorithms import model_based
from algorithms.model_based import ImaginationConfig
from algorithms.soft_actor_critic import LearnerConfig
from mbrl import agent
from mbrl.networks import SquashedGaussianPolicy
from mbrl.types import Spec
from world_models import EnsembleConfig, RolloutConfig, WorldModel


@dataclass(frozen=True)
class MOPOConfig:
    """Settings of MOPO; penalty weight and horizon are tuned per dataset in the paper."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            critics=2, hidden=(256, 256), actor_lr=1e-4, alpha_lr=1e-4
        )
    )
    model: EnsembleConfig = field(default_factory=EnsembleConfig)
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(
            rollout=RolloutConfig(penalty="max_aleatoric", penalty_weight=0.5)
        )
    )

    @property
    def gamma(self) -> float:
        return self.learner.gamma


class MOPO(model_based.ModelBased):
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
        model_based.setup(self, spec, config or MOPOConfig(), device, seed, model)

    act, predict, fit, save = agent.act, agent.predict, agent.fit, agent.save
    prepare, next_batch, update = model_based.prepare, model_based.next_batch, model_based.update
    state_dict, load_state_dict = model_based.state_dict, model_based.load_state_dict

    @property
    def policy(self) -> SquashedGaussianPolicy:
        return self.learner.actor

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "MOPO":
        """Read an agent that `save` or a run's checkpoint wrote."""
        return agent.load(cls, path, device)
