"""What recipes need beside log-probs: measured from conversations, or learned beside the model."""

from typing import Any

from algorithms.language.parts.base import Part
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe

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


__all__ = ["PARTS", "Part", "check", "needed"]
