"""What recipes need beside log-probs: measured from conversations, or learned beside the model."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.language.rollouts import Rollouts
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.training import Metrics


class Part:
    """Gives `provides`, fields of the trajectories in the words of `Recipe.needs`."""

    provides: ClassVar[tuple[str, ...]]

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.modules: dict[str, nn.Module] = {}
        self.optimisers: dict[str, torch.optim.Optimizer] = {}

    def begin(self) -> None:
        """The model has got its first weights."""

    def measure(self, found: Rollouts) -> Rollouts:
        """With what this part provides; before the updates of a round."""
        return found

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


PARTS: tuple[type[Part], ...] = ()


def needed(objective: Recipe, agent: Any) -> list[Part]:
    """The parts that `objective` reads."""
    needs = set(objective.needs)
    return [kind(agent) for kind in PARTS if needs & set(kind.provides)]


def check(objective: Recipe, given: tuple[str, ...]) -> None:
    """Raises `ConfigError` that names what the recipe needs and neither the trainer has (`given`)
    nor a part provides."""
    known = {*given, *(name for kind in PARTS for name in kind.provides)}
    keys = {f"groups.{k}" for term in objective.terms for k in term.key if k != "turn"}
    lacking = [need for need in (*objective.needs, *sorted(keys)) if need not in known]
    if lacking:
        raise ConfigError(
            f"recipe {objective.name} needs {', '.join(dict.fromkeys(lacking))}, which training on "
            "text tasks does not have; `list recipes` shows what each one needs"
        )
