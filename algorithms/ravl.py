"""RAVL, reach-aware value learning: The Edge-of-Reach Problem in Offline Model-Based Reinforcement
Learning (arXiv 2402.12527). Short rollouts in a learned ensemble without any dynamics penalty; the
value learner is EDAC, whose pessimism bites at states that are only ever bootstrapped from.

Differences from the authors' code: see `world_models.ensemble`; start states are drawn without
replacement where the data has enough of them.
"""

from dataclasses import dataclass, field

from algorithms.learners.soft_actor_critic import LearnerConfig
from algorithms.model_based import ModelBased, ModelBasedConfig
from mbrl.types import Spec
from world_models import WorldModel


@dataclass(frozen=True)
class RAVLConfig(ModelBasedConfig):
    """Settings of RAVL; the defaults are the authors' (their code gives no per-dataset ones)."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10, eta=1.0))


class RAVL(ModelBased):
    """Reach-aware value learning: EDAC on short rollouts of a learned world model."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: RAVLConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: RAVLConfig
        super().__init__(spec, config or RAVLConfig(), model, device, seed)
