"""Configs are `Settings`, frozen dataclasses that check the range of each value; here they become
plain dictionaries (JSON, checkpoints) and come back checked."""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar

from tyro.constructors import PrimitiveConstructorSpec

from mbrl.errors import ConfigError, unknown_name

C = TypeVar("C")


@dataclass(frozen=True, init=False, repr=False)
class Range(PrimitiveConstructorSpec[Any]):
    """The numbers that a setting may be, from text such as "[0, 1)" or "[1, inf)": a round bracket
    leaves its end out, and NaN is in no range. `--help` prints it with the kind of number."""

    text: str = ""
    whole: bool = False  # of whole numbers alone

    def __init__(self, kind: type[int] | type[float], text: str) -> None:
        if not re.fullmatch(r"[\[(][^,]+, [^,]+[\])]", text):
            raise ValueError(f"{text!r} is no range; write it as [0, 1) or [1, inf)")
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "whole", kind is int)
        super().__init__(
            nargs=1,
            metavar=self._shown(kind.__name__.upper()),
            instance_from_str=lambda words: kind(words[0]),
            is_instance=lambda value: isinstance(value, int | float),
            str_from_instance=lambda value: [str(value)],
        )

    @property
    def ends(self) -> list[str]:
        return self.text[1:-1].split(", ")

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, Integral if self.whole else Real):
            return False
        low, high = map(float, self.ends)
        number: Any = value
        above = number >= low if self.text[0] == "[" else number > low
        return bool(above and (number <= high if self.text[-1] == "]" else number < high))

    def __str__(self) -> str:
        """What follows "it must"."""
        low, _ = self.ends
        if not self.text.endswith("inf)"):
            return f"lie in {self.text}"
        if low == "-inf":
            return "be finite"
        return f"be {'at least' if self.text[0] == '[' else 'above'} {low}"

    def __repr__(self) -> str:
        return self.text

    def _shown(self, kind: str) -> str:
        """INT>=1, 0<=FLOAT<1: without spaces, which would get brackets in the help of a union."""
        low, high = self.ends
        above, below = ("=" if end in "[]" else "" for end in (self.text[0], self.text[-1]))
        if self.text.endswith("inf)"):
            return kind if low == "-inf" else f"{kind}>{above}{low}"
        return f"{low}<{above}{kind}<{below}{high}"


Count = Annotated[int, Range(int, "[1, inf)")]
CountOrZero = Annotated[int, Range(int, "[0, inf)")]
Several = Annotated[int, Range(int, "[2, inf)")]
Finite = Annotated[float, Range(float, "(-inf, inf)")]
Positive = Annotated[float, Range(float, "(0, inf)")]
NonNegative = Annotated[float, Range(float, "[0, inf)")]
Probability = Annotated[float, Range(float, "[0, 1]")]
Discount = Annotated[float, Range(float, "[0, 1)")]
Share = Annotated[float, Range(float, "[0, 1)")]
Rate = Annotated[float, Range(float, "(0, 1]")]
Fraction = Annotated[float, Range(float, "(0, 1)")]


@dataclass(frozen=True)
class Filled:
    """Of a tuple: it has an entry at least; and none twice where they are to be `distinct`."""

    distinct: bool = False


Widths = Annotated[tuple[Count, ...], Filled()]  # of hidden layers
Seeds = Annotated[tuple[CountOrZero, ...], Filled(distinct=True)]
Names = Annotated[tuple[str, ...], Filled(distinct=True)]


@dataclass(frozen=True)
class Settings:
    """A config. Raises `ConfigError` for a number outside the range of its annotation, in a tuple
    too, for a tuple of another length than its annotation's, and for a value that is none of its
    `Literal`."""

    def __post_init__(self) -> None:
        kind: Any = type(self)  # mypy takes the class for not hashable
        check(vars(self), _hints(kind), f"{kind.__name__}.")


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """The hints that say more than a type."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [f.name for f in dataclasses.fields(cls)]
    return {n: hints[n] for n in names if re.search("Annotated|Literal|bool", repr(hints[n]))}


def check(values: Mapping[str, Any], hints: Mapping[str, Any], owner: str = "") -> None:
    """Raise `ConfigError` unless the values of these names lie in the ranges, or among the
    choices, of their hints."""
    for name, hint in hints.items():
        _check(name, hint, values[name], values[name], owner)


def _check(name: str, hint: Any, value: Any, whole: Any, owner: str) -> None:
    members = _members(hint)
    options = [option for option in members if option is not type(None)]
    if len(options) > 1 or (value is None and len(options) < len(members)):
        return
    option, parts = options[0], typing.get_args(options[0])
    if option is bool and not isinstance(value, bool):
        raise ConfigError(f"{owner}{name} is {value!r}; allowed: True, False")
    if typing.get_origin(option) is typing.Literal and value not in parts:
        raise unknown_name(owner + name, str(value), map(str, parts))
    for allowed in getattr(option, "__metadata__", ()):
        if isinstance(allowed, Filled):
            if not isinstance(value, tuple | list):
                raise ConfigError(f"{name} is {value!r}; give a list of them: [{value!r}]")
            if not value:
                raise ConfigError(f"{name} is empty, give at least one")
            twice = [v for i, v in enumerate(value) if v in value[:i]]
            if allowed.distinct and twice:
                raise ConfigError(f"{name} has {twice[0]!r} twice; give each once")
            option, parts = option.__origin__, typing.get_args(option.__origin__)
        if isinstance(allowed, Range) and not isinstance(value, Real | None):
            raise ConfigError(f"{name} is {whole!r}, it must be a number")
        if isinstance(allowed, Range) and value not in allowed:
            if allowed.whole and isinstance(value, Real) and not isinstance(value, Integral):
                raise ConfigError(f"{name} is {whole}, it must be a whole number")
            must = "be finite" if value == math.inf and allowed.ends[1] == "inf" else allowed
            raise ConfigError(
                f"{name} is {whole}, {'it' if value is whole else 'each'} must {must}"
            )
    if typing.get_origin(option) is tuple:
        if not isinstance(value, tuple | list):
            raise ConfigError(f"{name} is {value!r}; give a list of them")
        if ... not in parts and len(value) != len(parts):
            raise ConfigError(f"{name} is {whole}, it must have {len(parts)} entries")
        for i, entry in enumerate(value):
            _check(name, parts[0 if ... in parts else i], entry, whole, owner)


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dataclasses to nested dictionaries of plain values (tuples become lists)."""
    result: dict[str, Any] = plain(dataclasses.asdict(config))
    return result


def plain(value: Any) -> Any:
    """Nested values with lists in the place of tuples."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def from_dict(cls: type[C], values: dict[str, Any]) -> C:
    """Build the dataclass `cls` from a nested dictionary; missing keys keep their defaults.

    Raises `ConfigError` for a key that `cls` does not have, and for one without a default that is
    missing.
    """
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(typing.cast(Any, cls))}
    built: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            raise unknown_name(f"setting of {cls.__name__}", key, names)
        built[key] = _convert(hints[key], value, f"{cls.__name__}.{key}")
    lacking = [
        f.name
        for f in dataclasses.fields(typing.cast(Any, cls))
        if f.default is f.default_factory is dataclasses.MISSING and f.name not in built
    ]
    if lacking:
        raise ConfigError(f"{cls.__name__} lacks {', '.join(lacking)}, which have no defaults")
    return cls(**built)


def _convert(hint: Any, value: Any, where: str) -> Any:
    options = _members(hint)
    if value is None:
        if type(None) not in options:
            raise ConfigError(f"{where} is None, which is not allowed; expected {_words(options)}")
        return None
    if isinstance(value, list):
        return tuple(value)
    for option in options if isinstance(value, dict) else ():
        if isinstance(option, type) and dataclasses.is_dataclass(option):
            return from_dict(option, value)
    literals: list[Any] = []
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            literals += typing.get_args(option)
    plain = [o for o in options if isinstance(o, type)]
    if literals and value not in literals and not any(isinstance(value, o) for o in plain):
        raise ConfigError(f"{where} is {value!r}, allowed: {', '.join(map(repr, literals))}")
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if plain and not literals:
        bad_bool = isinstance(value, bool) and bool not in plain
        if bad_bool or not isinstance(value, tuple(plain)):
            given = f"{value!r} ({type(value).__name__})"
            raise ConfigError(f"{where} is {given}, expected {_words(options)}")
    return value


def _words(options: tuple[Any, ...]) -> str:
    names = ["None" if o is type(None) else getattr(o, "__name__", str(o)) for o in options]
    return " or ".join(names)


def _members(hint: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(hint)
    if origin is typing.Union or origin is types.UnionType:
        return typing.get_args(hint)
    return (hint,)


def require_same(own: Any, known: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where `known`, the config in a state, differs from the config `own` that
    the state is to go into."""
    values = dataclasses.asdict(own)
    if changed := sorted(name for name in values if known.get(name) != values[name]):
        raise ConfigError(
            f"the state has other settings: {', '.join(changed)}; give the config that it was "
            "made by"
        )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
