"""A scheduler's settings as a user writes them, name=value."""

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any

from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient.schedulers.curricula import Stage
from mbrl.policy_gradient.schedulers.registry import SCHEDULERS


def settings(scheduler: str, texts: Sequence[str]) -> Any:
    """The scheduler's own settings: its defaults, with `name=value` of `texts` in their place.
    Raises `ConfigError` for what it does not have or cannot be."""
    if scheduler not in SCHEDULERS:
        raise unknown_name("scheduler", scheduler, SCHEDULERS)
    default = SCHEDULERS[scheduler].config
    names = [f.name for f in dataclasses.fields(default)]
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            raise unknown_name(f"setting of the scheduler {scheduler}", name, names)
        values[name] = read(name, value, getattr(default, name))
    return dataclasses.replace(default, **values)


def read(name: str, text: str, like: Any) -> Any:
    """The value that `text` writes, of the kind of `like`. Stages are tuples of their fields."""
    if isinstance(like, str):
        return text
    try:
        value = ast.literal_eval(text)
        if isinstance(like, tuple) and isinstance(like[0], Stage):
            return tuple(Stage(*row) for row in value)
        if isinstance(like, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(like):
            raise ValueError
    except (ValueError, TypeError, SyntaxError) as error:
        raise ConfigError(
            f"scheduler_settings has {name}={text}; give a value like {name}={like}"
        ) from error
    return value
