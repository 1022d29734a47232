"""EDAC: Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble
(arXiv 2110.01548): SAC with N critics, their minimum, and a gradient-diversity term.

Differences: the actor's step uses the gradient of the minimum only, which is the same number at
less work; all learning rates are 3e-4.
"""

from dataclasses import dataclass, field

from algorithms import offline
from algorithms.learners.soft_actor_critic import LearnerConfig
from mbrl.types import Spec


@dataclass(frozen=True)
class EDACConfig(offline.SoftConfig):
    """Settings of EDAC; N = 10 and eta = 1 are the authors' for HalfCheetah and Walker2d."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10, eta=1.0))


class EDAC(offline.SoftOffline):
    """SAC with a diversified critic ensemble, on logged data alone."""

    version = 1

    def __init__(
        self, spec: Spec, config: EDACConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: EDACConfig
        super().__init__(spec, config or EDACConfig(), device, seed)
