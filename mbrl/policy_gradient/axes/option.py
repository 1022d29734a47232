"""What the options of every axis have in common."""

from abc import ABC
from dataclasses import dataclass, fields
from typing import ClassVar

from torch import Tensor

from mbrl.config import Settings
from mbrl.errors import ConfigError, unknown_name
from mbrl.types import Trajectories

CURRENT_ENTROPY = "the current policy's entropy"  # a need that is an argument, not a field


@dataclass(frozen=True)
class Option(Settings, ABC):
    """One choice on one axis of the objective: a pure function with its settings.

    `needs` names the fields of `Trajectories` that it reads beside `reward` and `mask`, such as
    `entropy`, `log_probs.reference`, `signals.value`, `groups.prompt`, `segments.turn`. `verdict`:
    whether it takes the whole reward of a sequence for right (1) or wrong (0), so that returns of
    another range would mean nothing to it.
    """

    text: ClassVar[str]  # its formula in plain text, settings in braces
    verdict: ClassVar[bool] = False

    def formula(self) -> str:
        """What it computes, in plain text, with its settings filled in."""
        return self.text.format(**{f.name: shown(getattr(self, f.name)) for f in fields(self)})

    def needs(self) -> tuple[str, ...]:
        return ()

    def __str__(self) -> str:
        """The name with the settings that are not the default."""
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        inside = ", ".join(f"{f.name}={getattr(self, f.name)!s}" for f in changed)
        return f"{type(self).__name__}({inside})" if inside else type(self).__name__


def shown(value: object) -> str:
    """A setting in a formula."""
    if isinstance(value, Option):
        return value.formula()
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def one_of(value: str, allowed: tuple[str, ...], setting: str) -> None:
    """Raises `ConfigError` unless `value` is one of the words `allowed` for `setting`."""
    if value not in allowed:
        raise unknown_name(setting, value, allowed)


def ascending(low: float, high: float) -> None:
    """Raises `ConfigError` unless the settings `low` and `high` are a range."""
    if not low < high:
        raise ConfigError(f"low is {low} and high {high}; give a low below high")


def missing(option: Option, t: Trajectories) -> list[str]:
    """What `option` needs and `t` lacks."""
    lacking = []
    for need in option.needs():
        if need == CURRENT_ENTROPY:
            continue
        name, _, key = need.partition(".")
        value = getattr(t, name)
        if value is None or (key and key not in value):
            lacking.append(need)
    return lacking


def check_shapes(t: Trajectories) -> None:
    """Raises `ConfigError` for a field that is not [B, T]: one that is [B, 1] or [B] would be
    stretched over steps or sequences in silence."""
    tensors: dict[str, Tensor | None] = {
        "reward": t.reward,
        "entropy": t.entropy,
        "sum_prob_squared": t.sum_prob_squared,
    }
    for part in ("log_probs", "groups", "segments", "signals"):
        tensors |= {f"{part}.{name}": value for name, value in getattr(t, part).items()}
    for name, value in tensors.items():
        if value is not None and value.shape != t.mask.shape:
            raise ConfigError(
                f"{name} is {tuple(value.shape)}, the trajectories are {tuple(t.mask.shape)}; "
                "give one number for every step"
            )


def check_key(key: tuple[str, ...], t: Trajectories) -> None:
    """Raises `ConfigError` for a grouping key that `t` does not have."""
    for name in key:
        if name not in t.groups and name not in t.segments:
            known = sorted([*t.groups, *t.segments])
            raise ConfigError(
                f"the grouping key {name!r} is not in the trajectories, which have {known}; "
                "put its ids [B, T] into `groups` or `segments`"
            )
