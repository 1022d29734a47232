"""What RAVL, MBPO and MOPO share: an ensemble world model, imagined rollouts that are refreshed as
the policy moves, batches of real and imagined rows in an exact ratio, and the soft actor-critic
learner. Their classes take these functions over by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from algorithms import offline
from algorithms.soft_actor_critic import LearnerConfig, SoftActorCritic
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


class ModelBased(offline.Offline):
    """The attributes these functions use; algorithm classes derive from it to declare them."""

    learner: SoftActorCritic
    model: WorldModel
    imagined: Buffer


def setup(
    self: Any,
    spec: Spec,
    config: Any,
    device: str,
    seed: int,
    model: WorldModel | None,
) -> None:
    """Set the shared attributes. `model` replaces the learned ensemble (the true dynamics, a
    mixture, one that is fitted already)."""
    offline.require_continuous(spec, type(self).__name__)
    initial = offline.setup(self, spec, config, device, seed)
    learner: LearnerConfig = config.learner
    imagination: ImaginationConfig = config.imagination
    self.learner = SoftActorCritic(spec, learner, self.device, initial)
    self.modules, self.optimisers = self.learner.modules, self.learner.optimisers
    if model is None:
        rule = termination_rule(spec, imagination.termination)
        model_config: EnsembleConfig = config.model
        model = EnsembleDynamics(
            spec, model_config, termination=rule, device=self.device, seed=seed
        )
    self.model = model
    rows = imagination.starts * imagination.rollout.horizon * imagination.retain
    self.imagined = Buffer(spec, rows, learner.gamma, self.device)


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


def prepare(self: Any, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
    """Put the data on the device and fit the world model, continuing an unfinished fit."""
    offline.prepare(self, dataset, on_progress)
    if isinstance(self.model, EnsembleDynamics) and not self.model.fitted:
        self.model.fit(dataset.transitions, on_progress)


def next_batch(self: ModelBased) -> Batch:
    """Refresh the imagined rows when due, then a mixed batch with its random draws."""
    imagination: ImaginationConfig = self.config.imagination
    if self.step % imagination.every == 0 and imagination.real_ratio < 1:
        imagine(self)
    rows = sample_mixed(
        offline.data_buffer(self),
        self.imagined,
        self.config.learner.batch_size,
        imagination.real_ratio,
        self.generator,
    )
    return self.learner.draw(self.imagined.batch(rows), self.generator)


def imagine(self: ModelBased) -> None:
    """Roll the current policy out in the model from states of the data."""
    imagination: ImaginationConfig = self.config.imagination
    starts = offline.data_buffer(self).sample_obs(imagination.starts, self.generator)
    actor = self.learner.actor
    trajectories = rollout(self.model, actor.explore, starts, imagination.rollout, self.generator)
    self.imagined.append(trajectories.transitions())


def update(self: ModelBased, batch: Batch) -> Metrics:
    return self.learner.update(batch)


def state_dict(self: Any) -> dict[str, Any]:
    state = offline.state_dict(self) | {"imagined": self.imagined.state_dict()}
    if isinstance(self.model, EnsembleDynamics):
        state["model"] = self.model.state_dict()
    return state


def load_state_dict(self: Any, state: dict[str, Any]) -> None:
    offline.load_state_dict(self, state)
    self.imagined.load_state_dict(state["imagined"])
    if isinstance(self.model, EnsembleDynamics):
        self.model.load_state_dict(state["model"])
