"""Imagined rows: rollouts of the policy in a world model, refreshed as the policy moves, mixed with
real rows in an exact ratio."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from algorithms.evaluation import diagnosis
from algorithms.learners.soft_actor_critic import SoftActorCritic, SoftConfig
from algorithms.sources.logged import LoggedRows
from mbrl import tasks
from mbrl.buffer import Batch, Buffer, resized, sample_mixed, transitions
from mbrl.collector import CollectorConfig
from mbrl.config import Count, CountOrZero, Probability, Range, Settings
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Trajectories, Transitions
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
from world_models.rollout import Actor


@dataclass(frozen=True)
class ImaginationConfig(Settings):
    """When, from where and how much is imagined."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)  # each rollout
    starts: Count = 50_000  # rollouts a refresh, from states of the data
    every: Count = 1000  # updates between refreshes
    retain: Count = 5  # refreshes kept before the oldest is overwritten
    real_ratio: Probability = 0.05  # share of real rows in a batch
    # where imagined episodes end; learned: by a probability learned from the data
    termination: Literal["task", "never", "learned"] = "task"
    truth: Probability = 0.0  # weight of the task's own dynamics in the model; 1: no learned model
    diagnose: CountOrZero = 1000  # updates between diagnoses of reach and values; 0: none


@dataclass(frozen=True)
class ModelBasedConfig(SoftConfig):
    """The settings of an algorithm that imagines."""

    model: EnsembleConfig = field(default_factory=EnsembleConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)


@dataclass(frozen=True)
class RefitConfig(CollectorConfig):
    """How experience is gathered, and how the world model follows it."""

    warmup: Annotated[int, Range(int, "[3, inf)")] = 5000  # random rows before the first model fit
    refit_every: Count = 250  # loop steps between refits of the model
    refit_epochs: Count = 20  # passes over the experience a refit makes at most


class ImaginedRows:
    """Batches of `real_ratio` real rows and imagined ones, for `learner`.

    `model` is what rollouts are made in; a learned ensemble is fitted to the logged data, and
    online refitted to the experience every `collection.refit_every` steps. `policy` is who acts in
    them (None: the learner's), and `policy_metrics` what it tells after each refresh. `widths` are
    further columns of both kinds of rows; rollouts give theirs as signals.
    """

    def __init__(
        self,
        learner: SoftActorCritic,
        model: WorldModel,
        imagination: ImaginationConfig,
        device: torch.device,
        seed: int,
        *,
        policy: Actor | None = None,
        policy_metrics: Callable[[], Metrics] | None = None,
        collection: RefitConfig | None = None,
        widths: dict[str, int] | None = None,
    ) -> None:
        self.learner, self.imagination, self.seed, self.device = learner, imagination, seed, device
        self.model: WorldModel = model
        self.policy = policy or learner.actor.explore
        self.policy_metrics = policy_metrics or dict
        self.widths = widths or {}
        columns = self.widths | {"next_unknown": 0}  # no dynamics are learned from such rows
        c = learner.config
        self.real = LoggedRows(
            learner.spec,
            c.gamma,
            c.batch_size,
            device,
            collection=collection or RefitConfig(),
            widths=columns,
        )
        rows = imagination.starts * imagination.rollout.horizon * imagination.retain
        self.imagined = Buffer(learner.spec, rows, c.gamma, device, columns)

    @property
    def collection(self) -> CollectorConfig:
        return self.real.collection

    @collection.setter
    def collection(self, value: CollectorConfig) -> None:
        self.real.collection = value

    def allows(self, collection: CollectorConfig) -> None:
        """Raises `ConfigError` for settings that experience which has begun cannot follow."""
        self.real.allows(collection)

    @property
    def logged(self) -> int:
        return self.real.logged

    @property
    def learned(self) -> EnsembleDynamics | None:
        """The learned model, also where the task's own dynamics are mixed into it."""
        model = self.model.model if isinstance(self.model, Interpolated) else self.model
        return model if isinstance(model, EnsembleDynamics) else None

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the data on the device and fit the world model, continuing an unfinished fit."""
        self.real.prepare(dataset, on_progress)
        if self.learned is not None:
            fit_to_logged(self.learned, dataset, on_progress)

    def observe(self, data: Transitions, step: int) -> None:
        """Add experience, and refit the model when due."""
        self.real.observe(data, step)
        if follow(self.learned, self.real, step):
            self.refitted()

    def refitted(self) -> None:
        """Called after each refit, for what depends on the model."""

    def advance(self, step: int, generator: torch.Generator) -> Metrics:
        """Imagine anew when due."""
        return self.imagine(step, generator) if self.due(step) else {}

    def due(self, step: int) -> bool:
        if self.imagination.real_ratio == 1:
            return False
        return step % self.imagination.every == 0 or len(self.imagined) == 0

    def rollout_config(self, step: int) -> RolloutConfig:
        """Of the rollouts imagined at `step`."""
        return self.imagination.rollout

    def imagine(self, step: int, generator: torch.Generator) -> Metrics:
        """Roll the current policy out in the model from states of the data; the diagnosis, when
        due."""
        c = self.imagination
        starts = self.real.rows.sample_obs(c.starts, generator)
        config = self.rollout_config(step)
        trajectories = rollout(self.model, self.policy, starts, config, generator)
        columns = {name: trajectories.signals[name][trajectories.mask] for name in self.widths}
        self.imagined.append(trajectories.transitions(), **columns)
        metrics = self.policy_metrics()
        if c.diagnose > 0 and step % c.diagnose < c.every:
            metrics |= self.diagnose(trajectories, step)
        return metrics

    def diagnose(self, trajectories: Trajectories, step: int) -> Metrics:
        """Reach and values of the current critics, from random draws of their own, so that a
        diagnosed run is the run that it would be without."""
        generator = torch.Generator(self.device).manual_seed(self.seed + 1_000_003 * step)
        points, states = diagnosis.POINTS, diagnosis.STATES
        real, learner = self.real.rows, self.learner
        metrics = {"value/at": torch.tensor(float(step)), "reach/outside": torch.zeros(())}
        ends = trajectories.next_obs[trajectories.truncated & trajectories.mask]
        if len(ends):
            ratio = self.imagination.real_ratio
            trained = sample_mixed(real, self.imagined, points, ratio, generator)
            draw = torch.randint(len(ends), (points,), generator=generator, device=ends.device)
            metrics |= diagnosis.edge_metrics(learner, trained.obs, ends[draw])
        reward = real.whole().reward
        return metrics | diagnosis.value_metrics(
            learner,
            self.model,
            real.sample(states, generator).obs,
            (reward.min(), reward.max()),
            learner.remembered,
            generator,
        )

    def sample(self, generator: torch.Generator) -> Batch:
        """Real rows, then imagined ones."""
        c, ratio = self.learner.config, self.imagination.real_ratio
        return sample_mixed(self.real.rows, self.imagined, c.batch_size, ratio, generator)

    def state_dict(self) -> dict[str, Any]:
        state = self.real.state_dict() | {
            "imagined": self.imagined.state_dict(),
            "imagined_capacity": self.imagined.capacity,
            "remembered": self.learner.remembered.clone(),
        }
        if self.learned is not None:
            state["model"] = self.learned.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.real.load_state_dict(state)
        capacity = state.get("imagined_capacity", self.imagined.capacity)
        self.imagined = resized(self.imagined, capacity)
        self.imagined.load_state_dict(state["imagined"])
        known = state.get("remembered", self.learner.remembered)  # not in old checkpoints
        self.learner.remembered.copy_(known)
        if self.learned is not None:
            self.learned.load_state_dict(state["model"])


def refit_due(
    model: EnsembleDynamics | None, config: RefitConfig, rows: int, logged: int, step: int
) -> bool:
    """Whether the model is fitted to all `rows` at loop step `step`: once the warm-up is over,
    which there is not after `logged` data, and then every `refit_every` steps."""
    if rows < config.warmup and logged == 0:
        return False
    return (model is not None and not model.fitted) or step % config.refit_every == 0


def refit(model: EnsembleDynamics, data: Transitions, config: RefitConfig) -> None:
    """Fit the model from scratch the first time, and then from where it is."""
    if model.fitted:
        model.refit(data, config.refit_epochs)
    else:
        warn_of_ends(model, data)
        model.fit(data)


def follow(model: EnsembleDynamics | None, real: LoggedRows, step: int) -> bool:
    """Fit `model` to all rows if that is due, and tell whether it was."""
    c = real.collection
    assert isinstance(c, RefitConfig)
    if model is None or not refit_due(model, c, len(real.rows), real.logged, step):
        return False
    refit(model, transitions(real.rows), c)
    return True


def dynamics(
    spec: Spec,
    config: EnsembleConfig,
    imagination: ImaginationConfig,
    device: torch.device,
    seed: int,
    model: WorldModel | None = None,
) -> WorldModel:
    """`model`, or a new ensemble, with the task's own dynamics mixed in at `imagination.truth`; at
    1 these alone."""
    if model is not None:
        return model
    rule = termination_rule(spec, imagination.termination)
    learned = EnsembleDynamics(spec, config, termination=rule, device=device, seed=seed)
    weight = imagination.truth
    if weight == 0:
        return learned
    if spec.task not in tasks.TASKS:
        raise ConfigError(
            f"imagination.truth is {weight}, but {spec.task!r} is not a task of this library; set "
            "it to 0"
        )
    if learned.ends is not None:
        raise ConfigError(
            f"imagination.truth is {weight}, whose episodes end by the task's rule, and "
            "imagination.termination 'learned'; set one of them to its default"
        )
    truth = TrueDynamics(tasks.make_for(spec, device=learned.device))
    return truth if weight == 1 else Interpolated(learned, truth, weight)


def fit_to_logged(
    model: EnsembleDynamics, dataset: Dataset, on_progress: Callable[[Metrics], None]
) -> None:
    """Fit what is not fitted yet of the model that a learner imagines with to logged data: all of
    it, or the ends that a model from disk did not learn."""
    if not model.fitted:
        warn_of_ends(model, dataset.transitions)
        model.fit(dataset.transitions, on_progress)
    elif model.ends is not None and model.ends.share is None:
        model.fit_ends(dataset.transitions)


def warn_of_ends(model: EnsembleDynamics, data: Transitions) -> None:
    """Warn where episodes of the data terminate and imagined ones never do."""
    ended = int(data.terminated.sum())
    if model.termination is None and model.ends is None and ended > 0:
        warnings.warn(
            f"{ended} episodes of the data terminate and imagined ones do not (termination is "
            "'never'): what ended them is imagined to go on. Set termination to 'learned', or give "
            "the algorithm a model that knows the rule, model=EnsembleDynamics(spec, "
            "termination=function)",
            stacklevel=2,
        )


def require_ensemble(model: WorldModel, algorithm: str) -> EnsembleDynamics:
    """The model, or `ConfigError` where it is not a learned ensemble."""
    if isinstance(model, EnsembleDynamics):
        return model
    raise ConfigError(
        f"{algorithm} needs the predictions of a learned ensemble's members; model is a "
        f"{type(model).__name__}, give an EnsembleDynamics or none, and no imagination.truth"
    )


def termination_rule(
    spec: Spec, choice: str, setting: str = "imagination.termination"
) -> Termination | Literal["learned"] | None:
    """Where an ensemble's episodes end: by the task's own rule from observations, None for tasks
    that never end, or "learned". `setting` is what the choice is called."""
    if choice == "never":
        return None
    if choice == "learned":
        return "learned"
    if spec.task not in tasks.TASKS:
        raise ConfigError(
            f"no termination rule is known for task {spec.task!r}; set {setting} to 'never' if it "
            "does not end, to 'learned' to learn from the data when it does, or give the "
            "algorithm a model that has one: model=EnsembleDynamics(spec, termination=function)"
        )
    return tasks.make_for(spec).terminates
