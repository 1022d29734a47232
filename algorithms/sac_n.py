"""SAC-N: SAC with the minimum over N critics on logged data (arXiv 2110.01548, section 3).

Differences: none known from the authors' code, except that all learning rates are 3e-4.
"""

from dataclasses import dataclass, field
from pathlib import Path

from algorithms import offline
from algorithms.soft_actor_critic import LearnerConfig, SoftActorCritic
from mbrl import agent
from mbrl.buffer import Batch
from mbrl.networks import SquashedGaussianPolicy
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class SACNConfig:
    """Settings of SAC-N; the paper needs up to 500 critics on Hopper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10))

    @property
    def gamma(self) -> float:
        return self.learner.gamma


class SACN(offline.Offline):
    """SAC with N critics, on logged data alone."""

    version = 1

    def __init__(
        self, spec: Spec, config: SACNConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        offline.require_continuous(spec, type(self).__name__)
        self.config: SACNConfig
        initial = offline.setup(self, spec, config or SACNConfig(), device, seed)
        self.learner = SoftActorCritic(spec, self.config.learner, self.device, initial)
        self.modules, self.optimisers = self.learner.modules, self.learner.optimisers

    act, predict, fit, save = agent.act, agent.predict, agent.fit, agent.save
    prepare = offline.prepare
    state_dict, load_state_dict = offline.state_dict, offline.load_state_dict

    @property
    def policy(self) -> SquashedGaussianPolicy:
        return self.learner.actor

    def next_batch(self) -> Batch:
        batch = offline.data_buffer(self).sample(self.config.learner.batch_size, self.generator)
        return self.learner.draw(batch, self.generator)

    def update(self, batch: Batch) -> Metrics:
        return self.learner.update(batch)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "SACN":
        """Read an agent that `save` or a run's checkpoint wrote."""
        return agent.load(cls, path, device)
