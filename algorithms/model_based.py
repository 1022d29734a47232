"""What RAVL, MBPO and MOPO share: an ensemble world model, imagined rollouts that are refreshed as
the policy moves, batches of real and imagined rows in an exact ratio, and the soft actor-critic
learner."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from algorithms import offline
from mbrl import tasks
from mbrl.buffer import Batch, Buffer, sample_mixed
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec
from world_models import EnsembleConfig, EnsembleDynamics, RolloutConfig, WorldModel, rollout
from world_models.ensemble import Termination


@dataclass(frozen=True)
class ImaginationConfig:
    """When, from where and how much is imagined."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)  # each rollout
    starts: int = 50_000  # rollouts a refresh, from states of the data
    every: int = 1000  # updates between refreshes
    retain: int = 5  # refreshes kept before the oldest is overwritten
    real_ratio: float = 0.05  # share of real rows in a batch
    termination: Literal["task", "never"] = "task"  # where imagined episodes end

    def __post_init__(self) -> None:
        if not 0 <= self.real_ratio <= 1:
            raise ConfigError(f"real_ratio is {self.real_ratio}, it must lie in [0, 1]")
        for name in ("starts", "every", "retain"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")


@dataclass(frozen=True)
class ModelBasedConfig(offline.SoftConfig):
    """The settings of an algorithm that imagines."""

    model: EnsembleConfig = field(default_factory=EnsembleConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)


class ModelBased(offline.SoftOffline):
    """A soft actor-critic learner on real and imagined rows. `model` replaces the learned ensemble
    (the true dynamics, a mixture, one that is fitted already)."""

    def __init__(
        self,
        spec: Spec,
        config: ModelBasedConfig,
        model: WorldModel | None,
        device: str,
        seed: int,
    ) -> None:
        super().__init__(spec, config, device, seed)
        imagination = config.imagination
        if model is None:
            rule = termination_rule(spec, imagination.termination)
            model = EnsembleDynamics(
                spec, config.model, termination=rule, device=self.device, seed=seed
            )
        self.model = model
        rows = imagination.starts * imagination.rollout.horizon * imagination.retain
        self.imagined = Buffer(spec, rows, config.gamma, self.device)

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the data on the device and fit the world model, continuing an unfinished fit."""
        super().prepare(dataset, on_progress)
        if isinstance(self.model, EnsembleDynamics) and not self.model.fitted:
            self.model.fit(dataset.transitions, on_progress)

    def next_batch(self) -> Batch:
        """Refresh the imagined rows when due, then a mixed batch with its random draws."""
        imagination: ImaginationConfig = self.config.imagination
        if self.step % imagination.every == 0 and imagination.real_ratio < 1:
            self.imagine()
        rows = sample_mixed(
            self.data_buffer(),
            self.imagined,
            self.config.learner.batch_size,
            imagination.real_ratio,
            self.generator,
        )
        return self.learner.draw(self.imagined.batch(rows), self.generator)

    def imagine(self) -> None:
        """Roll the current policy out in the model from states of the data."""
        imagination: ImaginationConfig = self.config.imagination
        starts = self.data_buffer().sample_obs(imagination.starts, self.generator)
        explore = self.learner.actor.explore
        trajectories = rollout(self.model, explore, starts, imagination.rollout, self.generator)
        self.imagined.append(trajectories.transitions())

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {"imagined": self.imagined.state_dict()}
        if isinstance(self.model, EnsembleDynamics):
            state["model"] = self.model.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.imagined.load_state_dict(state["imagined"])
        if isinstance(self.model, EnsembleDynamics):
            self.model.load_state_dict(state["model"])


def termination_rule(spec: Spec, choice: str) -> Termination | None:
    """The task's own rule from observations, or None for tasks that never end."""
    if choice == "never":
        return None
    if spec.task not in tasks.TASKS:
        raise ConfigError(
            f"no termination rule is known for task {spec.task!r}; set "
            "imagination.termination to 'never' if it does not end, or give the algorithm a model "
            "that has one: model=EnsembleDynamics(spec, termination=function)"
        )
    return tasks.make_for(spec).terminates
