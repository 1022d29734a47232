"""MBPO on logged data: When to Trust Your Model (arXiv 1906.08253) with the dataset in place of the
environment. The penalty-free baseline that RAVL and MOPO are measured against.

Differences: no environment steps, so the model is fitted once; a fixed horizon; the schedule of
rollouts is RAVL's, so that the two differ in their critics alone.
"""

from dataclasses import dataclass, field

from algorithms.model_based import ModelBased, ModelBasedConfig
from algorithms.soft_actor_critic import LearnerConfig
from mbrl.types import Spec
from world_models import WorldModel


@dataclass(frozen=True)
class MBPOConfig(ModelBasedConfig):
    """Settings of MBPO on logged data: two critics, no penalty."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=2))


class MBPO(ModelBased):
    """SAC on short rollouts of a learned world model, without any pessimism about it."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: MBPOConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: MBPOConfig
        super().__init__(spec, config or MBPOConfig(), model, device, seed)
