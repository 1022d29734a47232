"""Callbacks of a user's own, named as `module:object` on the command line."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

from mbrl.errors import ConfigError
from mbrl.training import Callback

FORM = "a callback is called with (event, agent, metrics), see `mbrl.training.Callback`"


def load_all(names: Sequence[str]) -> list[Callback]:
    """The callbacks called `names`; a class is made without arguments. Modules of the working
    folder are seen. Raises `ConfigError` for what cannot be imported or called."""
    return [load(name) for name in names]


def load(name: str) -> Callback:
    """The callback that `module:object` names."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"--callback {name!r}: write it as module:object, mypackage.log:Printer")
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    try:
        sys.path.extend([here] if added else [])
        module = importlib.import_module(module_name)
    except ImportError as problem:
        raise ConfigError(
            f"--callback {name!r}: module {module_name!r} cannot be imported ({problem}); install "
            "it, or run from its folder"
        ) from problem
    finally:
        if added:
            sys.path.remove(here)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [n for n, v in vars(target).items() if callable(v) and not n.startswith("_")]
            near = difflib.get_close_matches(part, public, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {public}"
            raise ConfigError(f"--callback {name!r}: {module_name} has no {part!r}; {hint}")
        target = getattr(target, part)
    return _callable(name, target)


def _callable(name: str, target: Any) -> Callback:
    if inspect.isclass(target):
        try:
            target = target()
        except TypeError as problem:
            raise ConfigError(
                f"--callback {name!r}: the class cannot be made without arguments ({problem}); "
                "name an instance of it"
            ) from problem
    if not callable(target):
        raise ConfigError(f"--callback {name!r} is a {type(target).__name__}; {FORM}")
    try:
        inspect.signature(target).bind("step", None, {})
    except TypeError as problem:
        raise ConfigError(f"--callback {name!r}: {problem}; {FORM}") from problem
    except ValueError:  # a function without a signature
        pass
    callback: Callback = target
    return callback
