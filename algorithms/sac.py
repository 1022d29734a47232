"""SAC: Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), online.

Differences: networks start as `torch.nn.Linear` does; the log-deviation is clipped to [-5, 2]
(the authors' code: [-20, 2]); the temperature is updated before the actor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from algorithms import offline
from algorithms.soft_actor_critic import LearnerConfig, SoftActorCritic
from mbrl import agent
from mbrl.buffer import Batch, Buffer
from mbrl.networks import SquashedGaussianPolicy
from mbrl.tasks import Task
from mbrl.training import Callback, Metrics
from mbrl.types import Dataset, Spec, Transitions


@dataclass(frozen=True)
class SACConfig:
    """Settings of SAC."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(hidden=(256, 256), init="torch")
    )
    capacity: int = 1_000_000  # rows of experience kept
    warmup: int = 100  # uniform random steps before the first update
    envs: int = 1  # parallel tasks; each loop step advances all of them once

    @property
    def gamma(self) -> float:
        return self.learner.gamma


class SAC(offline.Offline):
    """Soft actor-critic; `learn(task, steps)` online, `fit(dataset, steps)` on logged data."""

    version = 1

    def __init__(
        self, spec: Spec, config: SACConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        offline.require_continuous(spec, type(self).__name__)
        self.config: SACConfig
        initial = offline.setup(self, spec, config or SACConfig(), device, seed)
        self.learner = SoftActorCritic(spec, self.config.learner, self.device, initial)
        self.modules, self.optimisers = self.learner.modules, self.learner.optimisers
        self.experience: Buffer | None = None

    act, predict, fit, save = agent.act, agent.predict, agent.fit, agent.save

    @property
    def policy(self) -> SquashedGaussianPolicy:
        return self.learner.actor

    def learn(
        self, task: Task, steps: int, *, callbacks: Sequence[Callback] | None = None
    ) -> "SAC":
        """Interact with `task` for `steps` steps of each parallel copy, one update a step."""
        return agent.learn(self, task, steps, callbacks=callbacks)

    def observe(self, data: Transitions) -> None:
        """Add experience (the collector calls this)."""
        if self.experience is None:
            self.experience = Buffer(
                self.spec, self.config.capacity, self.config.gamma, self.device
            )
        self.experience.append(data)

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Start from logged data: it becomes the first experience."""
        if self.experience is None:
            self.observe(dataset.transitions)

    def next_batch(self) -> Batch:
        self.real = self.experience
        batch = offline.data_buffer(self).sample(self.config.learner.batch_size, self.generator)
        return self.learner.draw(batch, self.generator)

    def update(self, batch: Batch) -> Metrics:
        return self.learner.update(batch)

    def state_dict(self) -> dict[str, Any]:
        experience = None if self.experience is None else self.experience.state_dict()
        return offline.state_dict(self) | {"experience": experience}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        offline.load_state_dict(self, state)
        if state["experience"] is not None:
            self.experience = Buffer(
                self.spec, self.config.capacity, self.config.gamma, self.device
            )
            self.experience.load_state_dict(state["experience"])

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "SAC":
        """Read an agent that `save` or a run's checkpoint wrote."""
        return agent.load(cls, path, device)
