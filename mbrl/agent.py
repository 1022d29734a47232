"""An agent is a learner and a source of batches. `Agent` is the one class with `fit`, `learn`,
`act`, `predict`, `save` and `load`; an algorithm's file says which learner and which source."""

import warnings
from abc import ABC
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from mbrl import config as configs
from mbrl.agent_files import config_class, content, load, restore, save
from mbrl.agent_rules import require_arguments, require_dataset, require_share, require_steps
from mbrl.collector import Collector, CollectorConfig
from mbrl.errors import ConfigError, DataError
from mbrl.evaluation import require_fit
from mbrl.generators import generators, on_device, set_state
from mbrl.goals import GoalEntries
from mbrl.logged_rules import drawn_obs, require_match, require_no_others, require_rows
from mbrl.networks import Normaliser
from mbrl.observations import as_batch, as_mask, as_observed, like_input
from mbrl.progress import Progress
from mbrl.shapes import require_single_precision
from mbrl.tasks import Task, as_task
from mbrl.training import (
    Callback,
    Metrics,
    Policy,
    chosen_action,
    is_stateful,
    train,
)
from mbrl.types import Dataset, Spec, Transitions

AFRESH = 1_000_003  # times the steps acted before: what the seed of a later collector is moved by
B = TypeVar("B")  # what one update learns from
L = TypeVar("L")
S = TypeVar("S", covariant=True)


class Learner(Protocol[L]):
    """The maths of a paper: networks, their optimisers, and one update."""

    config: Any
    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]

    @property
    def policy(self) -> Policy: ...

    def draw(self, batch: L, generator: Generator) -> L:
        """The batch with the random numbers that an update needs."""
        ...

    def update(self, batch: L, count: int) -> Metrics:
        """One step of everything that is learned: a function of state, batch and the `count` of
        updates before this one."""
        ...


class Source(Protocol[S]):
    """Where batches come from: logged rows, a replay buffer, imagined rows, histories."""

    collection: CollectorConfig  # how experience is gathered online

    @property
    def logged(self) -> int:
        """Rows of logged data that it was given."""
        ...

    @property
    def model(self) -> Any:
        """The world model that it imagines in; None where there is none."""
        ...

    @property
    def learned(self) -> Any:
        """The part of it that is fitted to data; None where nothing is."""
        ...

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Take logged data in and fit what is fitted first, continuing an unfinished fit."""
        ...

    def observe(self, data: Transitions, step: int) -> None:
        """Add experience: one row of each copy of the task, at loop step `step`."""
        ...

    def advance(self, step: int, generator: Generator) -> Metrics:
        """Imagine, generate or refit when due, before the updates of loop step `step`."""
        ...

    def sample(self, generator: Generator) -> S: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Agent(ABC, Generic[B]):
    """What `build` puts together, trained offline (`fit`), online (`learn`), or one after the
    other.

    `config` None takes the defaults; `parts` are passed to `build` (a world model that is fitted
    already, say); `load` needs those again that settings cannot describe. Raises `ConfigError` for
    a task whose actions the algorithm cannot take, or a device that this machine does not have.
    """

    version: int
    action_kinds: tuple[str, ...] = ("continuous",)  # what it takes; the other is "discrete"
    takes_masks = False  # whether it keeps to the actions that a task allows in a state
    learns_offline = True  # whether it learns from logged data
    needs_goals = False  # whether it learns to reach goals, which the task's spec must have
    config: Any

    def __init__(
        self,
        spec: Spec,
        config: Any = None,
        *,
        device: str = "cpu",
        seed: int = 0,
        **parts: Any,
    ) -> None:
        require_arguments(type(self).__name__, spec, config, config_class(type(self)), seed)
        require_actions(spec, type(self))
        require_goals(spec, type(self))
        require_single_precision()
        self.spec, self.seed = spec, int(seed)  # numpy's whole numbers are not torch's
        self.step, self.updates = 0, 0  # of the loop; of the learner
        self.acted = 0  # steps of copies of the task
        self.rows_mark: str | None = None  # of the logged rows that it learned from
        self.config = config_class(type(self))() if config is None else config
        self.device = resolve_device(device)
        initial, self.generator = generators(self.seed, self.device)
        self.given = {name: part for name, part in parts.items() if part is not None}
        self.learner: Any
        self.source: Any
        with torch.random.fork_rng(devices=[]):  # torch's layers draw before `initial` does
            self.learner, self.source = self.build(initial, **parts)

    build: Callable[..., tuple[Any, Any]]
    """`build(generator, **parts)`: the learner and the source; initial weights are drawn from
    `generator` (on the CPU)."""

    @property
    def policy(self) -> Any:
        return self.learner.policy

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All networks by name, targets among them."""
        modules: dict[str, nn.Module] = self.learner.modules
        return modules

    @property
    def optimisers(self) -> dict[str, torch.optim.Optimizer]:
        optimisers: dict[str, torch.optim.Optimizer] = self.learner.optimisers
        return optimisers

    @property
    def model(self) -> Any:
        """The world model, or None."""
        return self.source.model

    @property
    def learned(self) -> Any:
        """The world model that is fitted to data, or None."""
        return self.source.learned

    # Training.

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Take logged data in: fit the observation normaliser before the first update, and what
        the source fits (a world model). Raises `ConfigError` where it learned from other rows
        already, before it was saved too, and for steps of different length, or rows with weights,
        where a world model would not know of them."""
        require_rows(dataset, self.model, type(self).__name__)
        before, self.rows_mark = self.rows_mark, require_no_others(self, dataset)
        if self.step == 0 and getattr(self.learner.config, "normalise_obs", False):
            obs = drawn_obs(dataset.transitions)
            if self.needs_goals:  # goals are states that were reached, the recorded ones unused
                entries = GoalEntries(self.spec)
                obs = entries.with_goal(obs, entries.achieved_of(obs))
            fit_normalisers(self.learner.modules, obs.to(self.device))
        try:
            self.source.prepare(dataset, on_progress)
        except (ConfigError, DataError):  # rows that it does not take: others may follow
            self.rows_mark = before
            raise

    def advance(self) -> Metrics:
        """Let the source move on before the updates of a step; what it measured."""
        metrics: Metrics = self.source.advance(self.step, self.generator)
        return metrics

    def next_batch(self) -> B:
        """A batch with its random numbers."""
        batch: B = self.learner.draw(self.source.sample(self.generator), self.generator)
        return batch

    def update(self, batch: B) -> Metrics:
        """One update of the learner."""
        metrics: Metrics = self.learner.update(batch, self.updates)
        self.updates += 1
        return metrics

    def fit(
        self, dataset: Dataset, steps: int, *, callbacks: Sequence[Callback] | None = None
    ) -> Self:
        """Train offline for `steps` further updates and return the agent. Without `callbacks` a
        progress bar is shown where the output is a terminal. Raises `ConfigError` for a negative
        `steps`, a dataset of another task, or another one than before."""
        require_steps(steps)
        require_dataset(dataset)
        require_match(self.spec, dataset)
        shown = self._shown(steps, callbacks)
        if hasattr(self.learner, "offline"):
            self.learner.offline = True

        def on_progress(metrics: Metrics) -> None:
            for callback in shown:
                callback("prepare", self, metrics)

        self.prepare(dataset, on_progress)
        train(self, self.step + steps, shown)
        return self

    def learn(
        self,
        task: Any,
        steps: int,
        *,
        collection: CollectorConfig | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> Self:
        """Act in `task` (a `mbrl.tasks.Task`, an id, a gymnasium environment or a function that
        makes one) for `steps` steps of each parallel copy and learn from that as well as from the
        logged data, if there are any. (A file of an agent that has not acted yet does not hold
        them: after `load`, call `prepare(dataset)` first.) `collection` None: as the algorithm has
        it. Raises `ConfigError` for a negative `steps`, and for a share of logged rows where the
        algorithm's batches cannot have one, or there are none, or where experience was gathered
        with another capacity or other logged rows."""
        require_steps(steps)
        if collection is not None:
            if hasattr(self.source, "allows"):
                self.source.allows(collection)
            self.source.collection = collection
        task = as_task(task)
        require_fit(self.spec, task.spec)
        collector = self.collector(task, self.acted)
        if isinstance(collector, Collector):
            collector.warn_of_warmup(steps)
        try:
            train(self, self.step + steps, self._shown(steps, callbacks), collector)
        finally:
            collector.close()
        return self

    def _shown(self, steps: int, callbacks: Sequence[Callback] | None) -> Sequence[Callback]:
        return [Progress(total=self.step + steps)] if callbacks is None else callbacks

    # Acting, and experience.

    def act(
        self,
        obs: Any,
        *,
        deterministic: bool = True,
        state: Any = None,
        generator: Generator | None = None,
        mask: Any = None,
    ) -> tuple[Any, Any]:
        """Action in the task's units for raw observations [S] or [B, S], array or tensor; the same
        kind comes back, on the same device. The greedy one by default, where `predict` samples by
        default. `state` is what the call for the step before returned (None for Markov agents and
        at an episode's start); a policy with memory must be given the reward in between, by
        `observe_reward`. A stochastic action, and a planner's, draws from `generator`, of any
        device. `mask` [n] or [B, n], array or tensor, says which of the discrete actions are
        allowed. A discrete action is a number from 0 on; where an environment's begin elsewhere add
        `env.action_space.start`. Raises `ConfigError` where the task has masks and none is given.
        """
        batch = as_batch(self, obs)
        mask = as_mask(self.spec, mask, len(batch))
        generator = on_device(generator, batch.device)
        with torch.no_grad():
            if is_stateful(self.policy):
                action, state = self.policy.step(
                    batch, state, generator, deterministic=deterministic
                )
            elif deterministic:
                action = chosen_action(self.policy, batch, generator, deterministic=True, mask=mask)
            else:
                action = self.explore(batch, generator, mask)
        return like_input(action, obs), state

    def observe_reward(self, state: Any, reward: Any, action: Any = None) -> Any:
        """The state for the next `act`, after the `reward` of the step that followed the last: a
        number, or one a row [B]. `action` [A] or [B, A], in the task's units, where another was
        taken than the agent's. An agent without memory gives `state` back as it is. Raises
        `ConfigError` for another number of rows, and for numbers that are not finite."""
        if not is_stateful(self.policy):
            return state
        return self.policy.observe_reward(state, *as_observed(self.spec, state, reward, action))

    def explore(
        self, obs: Tensor, generator: Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """Actions [B, A] in the task's units with which experience is gathered at raw `obs`
        [B, S], among those that `mask` [B, n] allows: the policy's stochastic ones, unless the
        algorithm explores in another way."""
        return chosen_action(self.policy, obs, generator, deterministic=False, mask=mask)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """Stable-Baselines3's signature, for its evaluation helpers and wrappers, and its default:
        a sampled action, where `act` gives the greedy one. Where
        `episode_start` is True the memory is empty. An agent with memory observes no reward this
        way, since the signature has none; `mbrl.evaluation` passes rewards on. `action_masks` is
        the mask of `act`, by sb3-contrib's name."""
        if state is not None and episode_start is not None:
            over = torch.as_tensor(np.asarray(episode_start, dtype=bool), device=state.device)
            over = over.reshape(-1, *[1] * (state.ndim - 1))
            state = torch.where(over, torch.zeros_like(state), state)
        return self.act(
            np.asarray(observation), deterministic=deterministic, state=state, mask=action_masks
        )

    def collector(self, task: Task, acted: int = 0) -> Any:
        """What acts in `task` with the agent's exploration: uniform actions in the warm-up, which
        an agent with logged data does not need. After `acted` steps that it took before, it has
        starts and noise of its own, and of warm-up and frozen rows what these leave. Rates that
        decay over a number of offline updates are constant from here on. Warns where the rows that
        it learned from are gone (see `learn`)."""
        c, logged = self.source.collection, self.source.logged
        if c.logged_share is not None:
            require_share(self)
        if hasattr(self.learner, "offline"):
            self.learner.offline = False
        if self.rows_mark is not None and logged == 0 and self.acted == 0:
            warnings.warn(
                f"this {type(self).__name__} learned from logged rows, which neither a file nor a "
                "copy of it has: it goes on with experience alone, after the warm-up of an agent "
                "without data. Give it the rows before: agent.prepare(dataset), or fit",
                stacklevel=3,
            )
        elif acted == 0 and logged == 0 and getattr(self.learner.config, "normalise_obs", False):
            warnings.warn(
                "normalise_obs is on and there are no logged rows to take the moments from: "
                "observations are learned from as they are. Fit the agent to logged data first, or "
                "scale them in the environment",
                stacklevel=2,
            )
        return Collector.configured(
            task,
            c,
            logged=logged > 0,
            seed=self.seed + AFRESH * acted,
            rows=acted,
            least=getattr(self.source, "least_experience", 0),
        )

    @property
    def updates_per_step(self) -> int:
        """Updates after each step of the collector; none while there is nothing to learn from."""
        if getattr(self.source, "empty", False):
            return 0
        count: int = self.source.collection.updates_per_step
        return count

    def observe(self, data: Transitions) -> None:
        """Add experience (the collector calls this)."""
        self.acted += len(data)
        self.source.observe(data, self.step)

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        return {
            "modules": {k: v.state_dict() for k, v in self.learner.modules.items()},
            "optimisers": {k: v.state_dict() for k, v in self.learner.optimisers.items()},
            "generator": self.generator.get_state(),
            "updates": self.updates,
            **({"acted": self.acted} if self.acted else {}),
            **({"rows_mark": self.rows_mark} if self.rows_mark else {}),
            "collection": configs.to_dict(self.source.collection),
            **self.source.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, also that of a release without `updates`,
        `collection` or `rows_mark` in it."""
        if "collection" in state:
            self.source.collection = configs.from_dict(
                type(self.source.collection), state["collection"]
            )
        self.source.load_state_dict(state)
        for name, module in self.learner.modules.items():
            module.load_state_dict(state["modules"][name])
        for name, optimiser in self.learner.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        self.updates, self.acted = state.get("updates", self.step), state.get("acted", 0)
        set_state(self.generator, state["generator"], self.updates)
        self.rows_mark = state.get("rows_mark")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as `save` writes it, with the parts that it does not write; compiled
        code is none of it."""
        values = content(self)
        parts = {name: self.given[name] for name in values["lacking"]}
        return restore, (type(self), values, str(self.device), None, parts)

    def save(self, path: str | Path) -> None:
        """Write the whole agent, optimisers and generators included, to one file."""
        save(self, path)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", **parts: Any) -> Self:
        """Read an agent that `save` or a run's checkpoint wrote. An agent that was made with a part
        of one's own (a world model with another rule of ends, say) needs it again, fitted or not:
        `load(path, model=model)`. Raises `CheckpointError` where it is not given, and where the
        file holds something else or is of another version."""
        return load(cls, path, device, **parts)


def fit_normalisers(modules: dict[str, nn.Module], obs: Tensor) -> None:
    """Fit the observation normalisers of `modules` to raw `obs` [N, S]."""
    for module in modules.values():
        normaliser = getattr(module, "normaliser", None)
        if isinstance(normaliser, Normaliser):
            normaliser.fit(obs, eps=1e-3)


def require_actions(spec: Spec, algorithm: type[Agent[Any]]) -> None:
    """Raise `ConfigError` unless `algorithm` takes actions of the task's kind."""
    kind = "discrete" if spec.discrete else "continuous"
    if kind in algorithm.action_kinds:
        if spec.action_mask and not algorithm.takes_masks:
            able = sorted(c.__name__ for c in subclasses(Agent) if c.takes_masks)
            raise ConfigError(
                f"task {spec.task!r} masks actions, which {algorithm.__name__} does not keep to; "
                f"algorithms that do: {', '.join(able)}"
            )
        return
    able = sorted(c.__name__ for c in subclasses(Agent) if kind in c.action_kinds)
    raise ConfigError(
        f"{algorithm.__name__} needs {algorithm.action_kinds[0]} actions and those of task "
        f"{spec.task!r} are {kind}; algorithms that take them: {', '.join(able)}"
    )


def require_goals(spec: Spec, algorithm: type[Agent[Any]]) -> None:
    """Raise `ConfigError` where `algorithm` learns to reach goals and the task has none."""
    if algorithm.needs_goals and not spec.goal:
        raise ConfigError(
            f"{algorithm.__name__} learns to reach goals, and the spec of task {spec.task!r} has "
            "none; name the entries of an observation that hold the goal and those that it is "
            "compared with: Spec(goal=(2, 3), achieved=(0, 1)). Algorithms for rewards (iql, "
            "td3_bc, ...) need none"
        )


def subclasses(cls: type) -> set[type[Agent[Any]]]:
    """All classes below `cls`."""
    direct: set[type[Agent[Any]]] = set(cls.__subclasses__())
    return direct.union(*(subclasses(c) for c in direct))


def resolve_device(name: str) -> torch.device:
    """The torch device called `name`; `ConfigError` where there is none on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices here; "
            "use cpu, or install a CUDA build of torch"
        )
    return device
