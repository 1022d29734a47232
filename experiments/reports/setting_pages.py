"""The settings of a config class for a page of documentation: name, default, allowed values, and
the comment that stands beside the field in the source."""

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mbrl.config import Filled, Range, Settings

FIELD = re.compile(r"    (?P<name>\w+): .*?(?:  # (?P<comment>.*))?$")
ABOVE = re.compile(r"    # (?P<comment>.*)$")


@dataclass(frozen=True)
class Setting:
    """One field: its dotted `name`, and the rest as text."""

    name: str
    default: str
    allowed: str  # as `--help` prints it
    about: str


def is_settings(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Settings) and cls is not Settings


def settings(cls: type[Any], *, nested: bool = True) -> Iterator[Setting]:
    """The fields of a `Settings` class in their order. With `nested` the fields of configs inside
    it take the place of their own, with dotted names."""
    hints = typing.get_type_hints(cls, include_extras=True)
    about = comments(cls)
    for field in dataclasses.fields(cls):
        default = default_of(field)
        if nested and dataclasses.is_dataclass(default) and not isinstance(default, type):
            for part in _parts(default):
                yield dataclasses.replace(part, name=f"{field.name}.{part.name}")
            continue
        shown = "none" if default is dataclasses.MISSING else _short(default)
        yield Setting(field.name, shown, allowed(hints[field.name]), about.get(field.name, ""))


def _parts(config: Any) -> Iterator[Setting]:
    """The settings of a config, with the values that it has in the place of defaults."""
    for part in settings(type(config)):
        value = config
        for name in part.name.split("."):
            value = getattr(value, name)
        yield dataclasses.replace(part, default=_short(value))


def _short(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}(...)"
    return repr(value)


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """The default; `dataclasses.MISSING` where there is none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def allowed(hint: Any) -> str:
    """The values that a field takes, as `--help` prints them: INT>=1, True or False, mean|max."""
    members = typing.get_args(hint) if _is_union(hint) else (hint,)
    return " or ".join(_allowed(member) for member in members)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Union or isinstance(hint, types.UnionType)


def _allowed(hint: Any) -> str:
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Range):
            return str(note.metavar)
        if isinstance(note, Filled):
            return _allowed(hint.__origin__)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "|".join(map(str, parts))
    if origin is tuple:
        kinds = [_allowed(part) for part in parts if part is not ...]
        return f"{kinds[0]}, ..." if ... in parts else ", ".join(kinds)
    if hint is bool:
        return "True|False"
    if hint is type(None):
        return "None"
    return getattr(hint, "__name__", str(hint)).upper()


def comments(cls: type[Any]) -> dict[str, str]:
    """Field to the comment beside it or above it, those of base classes among them."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            notes |= _own_comments(base)
    return notes


@functools.cache
def _own_comments(cls: type[Any]) -> dict[str, str]:
    notes: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        if match := ABOVE.match(line):
            above.append(match["comment"])
        elif match := FIELD.match(line):
            notes[match["name"]] = match["comment"] or " ".join(above)
            above = []
        else:
            above = []
    return notes
