"""Configs are frozen dataclasses; here they become plain dictionaries (JSON, checkpoints) and come
back checked."""

import dataclasses
import types
import typing
from typing import Any, TypeVar

from mbrl.errors import ConfigError, unknown_name

C = TypeVar("C")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dataclasses to nested dictionaries of plain values (tuples become lists)."""
    result: dict[str, Any] = _plain(dataclasses.asdict(config))
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def from_dict(cls: type[C], values: dict[str, Any]) -> C:
    """Build the dataclass `cls` from a nested dictionary; missing keys keep their defaults.

    Raises `ConfigError` for a key that `cls` does not have.
    """
    hints = typing.get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    built: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            raise unknown_name(f"setting of {cls.__name__}", key, names)
        built[key] = _convert(hints[key], value, f"{cls.__name__}.{key}")
    return cls(**built)


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(hint, value)  # type: ignore[arg-type]
    options = _members(hint)
    if value is None:
        if type(None) not in options:
            raise ConfigError(f"{where} is None, which is not allowed; expected {hint}")
        return None
    if isinstance(value, list):
        return tuple(value)
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(value, dict):
            return from_dict(option, value)  # type: ignore[arg-type]
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
            raise ConfigError(f"{where} is {value!r} ({type(value).__name__}), expected {hint}")
    return value


def check_choices(config: Any) -> None:
    """Raise `ConfigError` where a setting of the dataclass `config` is none of its `Literal`: what
    was not built by `from_dict` has not been asked yet."""
    for name, hint in typing.get_type_hints(type(config)).items():
        if typing.get_origin(hint) is typing.Literal:
            value, allowed = getattr(config, name), typing.get_args(hint)
            if value not in allowed:
                raise unknown_name(f"{type(config).__name__}.{name}", str(value), map(str, allowed))


def _members(hint: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(hint)
    if origin is typing.Union or origin is types.UnionType:
        return typing.get_args(hint)
    return (hint,)
