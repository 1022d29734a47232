"""SAC: Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), online.

Differences: networks start as `torch.nn.Linear` does; the log-deviation is clipped to [-5, 2]
(the authors' code: [-20, 2]); the temperature is updated before the actor.
"""

from dataclasses import dataclass, field

from algorithms import offline
from algorithms.learners.soft_actor_critic import LearnerConfig
from algorithms.online import GatheringConfig, Online
from mbrl.types import Spec


@dataclass(frozen=True)
class SACConfig(GatheringConfig, offline.SoftConfig):
    """Settings of SAC."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(hidden=(256, 256), init="torch")
    )


class SAC(Online, offline.SoftOffline):
    """Soft actor-critic; `learn(task, steps)` online with an update a step, `fit(dataset, steps)`
    on logged data."""

    version = 1

    def __init__(
        self, spec: Spec, config: SACConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: SACConfig
        super().__init__(spec, config or SACConfig(), device, seed)
