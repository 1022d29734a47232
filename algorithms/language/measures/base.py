"""Measures of conversations, which may also change how a round's conversations are had."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import TASKS, text_task
from algorithms.language.tasks.base import Problem, TextTask
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.measure import Measure


class LanguageMeasure(Measure[Rollouts]):
    """A measure of conversations."""

    def problems(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """The problems of a round in place of these, as many."""
        return problems

    def sampling_model(self, model: Any) -> Any:
        """What a round is sampled with in place of `model`."""
        return model

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts | None:
        """Conversations about `problems`, a group of each; None: as ever."""
        return None

    def begin_stage(self) -> None:
        """Problems are of another stage from here on: what is kept to learn from goes."""

    def before_update(self, rollouts: Rollouts) -> None:
        """The minibatch `rollouts` is learned from next."""

    def training_model(self, model: Any, rows: Tensor) -> Any:
        """What the log-probs of an update are of, for `rows` [b] of its minibatch, in place of
        `model`."""
        return model


def require_task(config: Any, able: Callable[[TextTask], bool], reason: str) -> None:
    """Raises `ConfigError` unless the run's task is `able`: `reason`, and the names of those that
    are."""
    if not able(text_task(config.task)):
        raise ConfigError(f"{reason}: {', '.join(n for n, task in TASKS.items() if able(task))}")


def require_one_turn(objective: Recipe, config: Any, why: str) -> None:
    """Raises `ConfigError` for a task of several turns: `why` the recipe has no use for it."""
    if text_task(config.task).max_turns > 1:
        raise ConfigError(f"recipe {objective.name} {why}; take a task of one turn")


def require_one_domain(objective: Recipe, config: Any) -> None:
    """Raises `ConfigError` for parts of a joint task that change, where the recipe takes its
    problems once."""
    if config.stages or config.shares_of == "learned":
        raise ConfigError(
            f"recipe {objective.name} has its problems before the first round, and with stages or "
            "shares_of learned they depend on what was learned so far; leave both as they are"
        )


def has_signal(name: str) -> Callable[[TextTask], bool]:
    """Whether a task's replies have the signal."""
    return lambda task: name in task.signals
