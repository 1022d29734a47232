"""SAC-N: SAC with the minimum over N critics on logged data (arXiv 2110.01548, section 3).

Differences: none known from the authors' code, except that all learning rates are 3e-4.
"""

from dataclasses import dataclass, field

from algorithms import offline
from algorithms.learners.soft_actor_critic import LearnerConfig
from mbrl.types import Spec


@dataclass(frozen=True)
class SACNConfig(offline.SoftConfig):
    """Settings of SAC-N; the paper needs up to 500 critics on Hopper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10))


class SACN(offline.SoftOffline):
    """SAC with N critics, on logged data alone."""

    version = 1

    def __init__(
        self, spec: Spec, config: SACNConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: SACNConfig
        super().__init__(spec, config or SACNConfig(), device, seed)
