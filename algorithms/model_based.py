"""What RAVL, MBPO and MOPO share: an ensemble world model, imagined rollouts that are refreshed as
the policy moves, batches of real and imagined rows in an exact ratio, and the soft actor-critic
learner."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from algorithms import offline
from algorithms.evaluation import diagnosis
from mbrl import tasks
from mbrl.buffer import Batch, Buffer, sample_mixed
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Trajectories
from world_models import (
    EnsembleConfig,
    EnsembleDynamics,
    Interpolated,
    RolloutConfig,
    TrueDynamics,
    WorldModel,
    rollout,
)
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
    truth: float = 0.0  # weight of the task's own dynamics in the model; 1: no learned model
    diagnose: int = 1000  # updates between diagnoses of reach and values, at refreshes; 0: none

    def __post_init__(self) -> None:
        if not 0 <= self.real_ratio <= 1:
            raise ConfigError(f"real_ratio is {self.real_ratio}, it must lie in [0, 1]")
        if not 0 <= self.truth <= 1:
            raise ConfigError(f"truth is {self.truth}, it must lie in [0, 1]")
        if self.diagnose < 0:
            raise ConfigError(f"diagnose is {self.diagnose}, it must be 0 (never) or more")
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
            learned = EnsembleDynamics(
                spec, config.model, termination=rule, device=self.device, seed=seed
            )
            model = with_truth(learned, imagination.truth)
        self.model = model
        rows = imagination.starts * imagination.rollout.horizon * imagination.retain
        self.imagined = Buffer(spec, rows, config.gamma, self.device)
        self.diagnosis: Metrics = {}  # waits for the update that reports it
        self.remembered = torch.zeros(2, device=self.device)  # of temperatures, in the values

    @property
    def learned(self) -> EnsembleDynamics | None:
        """The learned model, also where the task's own dynamics are mixed into it."""
        model = self.model.model if isinstance(self.model, Interpolated) else self.model
        return model if isinstance(model, EnsembleDynamics) else None

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the data on the device and fit the world model, continuing an unfinished fit."""
        super().prepare(dataset, on_progress)
        if self.learned is not None and not self.learned.fitted:
            self.learned.fit(dataset.transitions, on_progress)

    def next_batch(self) -> Batch:
        """Refresh the imagined rows when due, then a mixed batch with its random draws."""
        imagination: ImaginationConfig = self.config.imagination
        if imagination.real_ratio < 1:
            self.refresh()
        rows = sample_mixed(
            self.data_buffer(),
            self.imagined,
            self.config.learner.batch_size,
            imagination.real_ratio,
            self.generator,
        )
        return self.learner.draw(self.imagined.batch(rows), self.generator)

    def refresh(self) -> None:
        """Imagine anew every so many updates."""
        if self.step % self.config.imagination.every == 0:
            self.imagine()

    def imagine(self) -> None:
        """Roll the current policy out in the model from states of the data."""
        imagination: ImaginationConfig = self.config.imagination
        starts = self.data_buffer().sample_obs(imagination.starts, self.generator)
        policy, config = self.imagined_action, self.rollout_config()
        trajectories = rollout(self.model, policy, starts, config, self.generator)
        self.imagined.append(trajectories.transitions())
        if imagination.diagnose > 0 and self.step % imagination.diagnose < imagination.every:
            self.diagnosis = self.diagnose(trajectories)

    def update(self, batch: Batch) -> Metrics:
        found, self.diagnosis = self.diagnosis, {}
        metrics = self.update_learner(batch)
        self.remembered = diagnosis.remembered(self.remembered, metrics, self.learner)
        return metrics | found

    def update_learner(self, batch: Batch) -> Metrics:
        """One step of the learner; an algorithm with losses of its own defines its own."""
        return self.learner.update(batch)

    def diagnose(self, trajectories: Trajectories) -> Metrics:
        """Reach and values of the current critics, from random draws of
        their own, so that a diagnosed run is the run that it would be without."""
        generator = torch.Generator(self.device).manual_seed(self.seed + 1_000_003 * self.step)
        points, states = diagnosis.POINTS, diagnosis.STATES
        real = self.data_buffer()
        metrics = {"value/at": torch.tensor(float(self.step)), "reach/outside": torch.zeros(())}
        ends = trajectories.next_obs[trajectories.truncated & trajectories.mask]
        if len(ends):
            ratio = self.config.imagination.real_ratio
            trained = sample_mixed(real, self.imagined, points, ratio, generator)
            draw = torch.randint(len(ends), (points,), generator=generator, device=ends.device)
            trained_obs = self.imagined.batch(trained).obs
            metrics |= diagnosis.edge_metrics(self.learner, trained_obs, ends[draw])
        reward = real.batch(real.rows[: real.size]).reward
        return metrics | diagnosis.value_metrics(
            self.learner,
            self.model,
            real.sample(states, generator).obs,
            (reward.min(), reward.max()),
            self.remembered,
            generator,
        )

    def imagined_action(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """What rollouts do at raw `obs` [B, S]: actions [B, A] in the task's units."""
        return self.learner.actor.explore(obs, generator)

    def rollout_config(self) -> RolloutConfig:
        """Of the rollouts imagined now; an algorithm may decide some of it as it learns."""
        config: RolloutConfig = self.config.imagination.rollout
        return config

    def real_rows(self, count: int) -> int:
        """How many of a batch's `count` rows are real; they come first."""
        return int(count * self.config.imagination.real_ratio)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state |= {"imagined": self.imagined.state_dict(), "remembered": self.remembered}
        if self.learned is not None:
            state["model"] = self.learned.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.imagined.load_state_dict(state["imagined"])
        known = state.get("remembered", self.remembered)  # not in old checkpoints
        self.remembered = known.to(self.device)
        if self.learned is not None:
            self.learned.load_state_dict(state["model"])


def with_truth(learned: EnsembleDynamics, weight: float) -> WorldModel:
    """The learned model with the task's own dynamics mixed in at `weight`; at 1 these alone."""
    if weight == 0:
        return learned
    spec = learned.spec
    if spec.task not in tasks.TASKS:
        raise ConfigError(
            f"imagination.truth is {weight}, but {spec.task!r} is not a task of this library; set "
            "it to 0"
        )
    truth = TrueDynamics(tasks.make_for(spec, device=learned.device))
    return truth if weight == 1 else Interpolated(learned, truth, weight)


def require_ensemble(model: WorldModel, algorithm: type) -> EnsembleDynamics:
    """The model, or `ConfigError` where it is not a learned ensemble."""
    if isinstance(model, EnsembleDynamics):
        return model
    raise ConfigError(
        f"{algorithm.__name__} needs the predictions of a learned ensemble's members; model is a "
        f"{type(model).__name__}, give an EnsembleDynamics or none, and no imagination.truth"
    )


def termination_rule(
    spec: Spec, choice: str, setting: str = "imagination.termination"
) -> Termination | None:
    """The task's own rule from observations, or None for tasks that never end. `setting` is what
    the choice is called."""
    if choice == "never":
        return None
    if spec.task not in tasks.TASKS:
        raise ConfigError(
            f"no termination rule is known for task {spec.task!r}; set "
            f"{setting} to 'never' if it does not end, or give the algorithm a model "
            "that has one: model=EnsembleDynamics(spec, termination=function)"
        )
    return tasks.make_for(spec).terminates
