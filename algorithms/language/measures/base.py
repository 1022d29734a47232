"""What a part is: something that a recipe needs beside log-probs."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import TASKS, text_task
from algorithms.language.tasks.base import Problem, TextTask
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.training import Metrics


class Part:
    """Gives `provides`, fields of the trajectories in the words of `Recipe.needs`, and is what the
    sentences `covers` of `Recipe.parts` ask for. It is made only for recipes that need it; what it
    draws comes from the agent's generator."""

    provides: ClassVar[tuple[str, ...]]
    covers: ClassVar[tuple[str, ...]] = ()
    speaks: ClassVar[bool] = False  # it changes how conversations are held

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.modules: dict[str, nn.Module] = {}
        self.optimisers: dict[str, torch.optim.Optimizer] = {}

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        """Raises `ConfigError` where the settings leave nothing to measure."""

    def begin(self) -> None:
        """The model has got its first weights."""

    def problems(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """The problems of a round in place of these, as many."""
        return problems

    def speaker(self, model: Any) -> Any:
        """What a round is sampled with in place of `model`."""
        return model

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts | None:
        """Conversations about `problems`, a group of each; None: as ever."""
        return None

    def learner(self, model: Any, rows: Tensor) -> Any:
        """What the log-probs of an update are of, for `rows` [b] of its minibatch, in place of
        `model`."""
        return model

    def waits(self) -> bool:
        """Whether the model is not to learn in this round."""
        return False

    def measure(self, found: Rollouts) -> Rollouts:
        """With what this part provides; before the updates of a round."""
        return found

    def stages(self, batch: Any) -> list[Any]:
        """The round as parts (minibatches) that are learned from one after the other."""
        return [batch]

    def reached(self, batch: Any) -> Any:
        """A stage, as it is when its turn has come."""
        return batch

    def targets(self, found: Rollouts) -> dict[str, Tensor]:
        """[B, T] each, for `learn`."""
        return {}

    def learn(self, found: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        """One step on a minibatch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is neither in modules nor in optimisers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def suited(config: Any, able: Callable[[TextTask], bool], said: str) -> None:
    """Raises `ConfigError` unless the run's task is `able`: `said`, and the names of those that
    are."""
    if not able(text_task(config.task)):
        raise ConfigError(f"{said}: {', '.join(n for n, task in TASKS.items() if able(task))}")


def telling(name: str) -> Callable[[TextTask], bool]:
    """Whether a task's replies have the signal."""
    return lambda task: name in task.signals
