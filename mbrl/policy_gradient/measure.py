"""What gives a recipe in a run what it needs beside log-probs, and which of them a recipe takes."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from mbrl.policy_gradient.recipe import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.training import Metrics

R = TypeVar("R")  # a round: episodes in control, conversations in language
M = TypeVar("M", bound="Measure[Any]")


class Measure(Generic[R]):
    """Gives the fields `provides` of the trajectories and fulfils the requirements `fulfils`. It is
    made only for recipes that need it; what it draws comes from the agent's generator."""

    provides: ClassVar[tuple[str, ...]] = ()
    fulfils: ClassVar[tuple[Requirement, ...]] = ()
    changes_sampling: ClassVar[bool] = False

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.modules: dict[str, nn.Module] = {}
        self.optimisers: dict[str, torch.optim.Optimizer] = {}
        self.tracker: Any = None  # what is kept from round to round, with a state
        # How much the measure's mechanism did in the latest round, 0 for nothing; None: it has none
        # that could fail to act. A recipe's number is the least of its measures'.
        self.acts: float | None = None
        # Of what the policy did by itself, where a round's sequences do not tell it; None: they do.
        self.success: float | None = None

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        """Raises `ConfigError` where the settings leave nothing to measure."""

    def begin(self) -> None:
        """The policy has got its first weights."""

    def measure(self, rollouts: R) -> R:
        """With what this provides; before the updates of a round."""
        return rollouts

    def stages(self, batch: Any) -> list[Any]:
        """The round as minibatches that are learned from one after the other."""
        return [batch]

    def on_stage(self, batch: Any) -> Any:
        """A stage, as it is when its turn has come."""
        return batch

    def skip_update(self) -> bool:
        """Whether the policy is not to learn in this round."""
        return False

    def targets(self, rollouts: R) -> dict[str, Tensor]:
        """[B, T] each, for `learn`."""
        return {}

    def learn(self, rollouts: R, targets: dict[str, Tensor]) -> Metrics:
        """One step on a minibatch."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is neither in modules nor in optimisers."""
        return {} if self.tracker is None else dict(self.tracker.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.tracker is not None:
            self.tracker.load_state_dict(state)


def wanted(objective: Recipe) -> tuple[str, ...]:
    """The fields that `objective` reads, with the ids of its terms' groups."""
    keys = {f"groups.{k}" for term in objective.terms for k in term.key if k != "turn"}
    return tuple(dict.fromkeys((*objective.needs, *sorted(keys))))


def chosen(objective: Recipe, available: Sequence[type[M]]) -> list[type[M]]:
    """The measures that `objective` needs, in their order. Of several that provide one field it is
    the one that fulfils a requirement of the recipe; one that provides none is there for its
    requirements."""
    asked, kinds = set(objective.requirements), set[type[M]]()
    for need in wanted(objective):
        able = [kind for kind in available if need in kind.provides]
        kinds |= set([k for k in able if asked & set(k.fulfils)][:1] or able[:1])
    kinds |= {k for k in available if not k.provides and asked & set(k.fulfils)}
    return [kind for kind in available if kind in kinds]


def unmet(
    objective: Recipe,
    available: Sequence[type[M]],
    fields: Iterable[str],
    requirements: Iterable[Requirement],
) -> list[str]:
    """What `objective` needs beyond the measures and a run's own `fields` and `requirements`."""
    known = {*fields, *(name for kind in available for name in kind.provides)}
    fulfilled = {*requirements, *(r for kind in chosen(objective, available) for r in kind.fulfils)}
    lacking = [need for need in wanted(objective) if need not in known]
    return lacking + [str(r) for r in objective.requirements if r not in fulfilled]
