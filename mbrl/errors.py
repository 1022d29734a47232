"""The errors this library raises on bad input; each message names the value, what is allowed and
the fix."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path


class ConfigError(ValueError):
    """An impossible setting, an unknown name, or parts that do not fit together."""


class MissingPackage(ConfigError):
    """A package of one of this library's extras is not installed."""


class DataError(ValueError):
    """A dataset file or array that cannot be used as it is."""


class MissingDataError(DataError):
    """Data that could be used and are not on this machine."""


class CheckpointError(ValueError):
    """A checkpoint or run folder that cannot be read or continued."""


class DivergenceError(RuntimeError):
    """Training produced a value that is not finite, or beyond the stated bound."""


class TaskError(RuntimeError):
    """An environment that is not of this library failed, or returned what it may not."""


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra: the library comes from a checkout, not
    from a package index."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{root}[{extra}]'"
    wanted = [r for r in metadata.requires("longreach") or [] if f'extra == "{extra}"' in r]
    return "pip install " + " ".join(f"'{r.partition(';')[0].strip()}'" for r in wanted)


@contextmanager
def optional_packages(extra: str, what: str) -> Iterator[None]:
    """Around the imports that `what` (a plural noun) need: raises `MissingPackage` with the command
    that installs `extra` where one of them fails."""
    try:
        yield
    except ImportError as problem:
        raise MissingPackage(
            f"{what} need {problem.name}, which is not installed: {install_command(extra)}"
        ) from None


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> ConfigError:
    """A `ConfigError` for a name that does not exist, with the nearest existing ones."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "no name is close."
    listed = ", ".join(names[:40]) + (" ..." if len(names) > 40 else "")
    return ConfigError(f"unknown {kind} {name!r}: {hint} Known: {listed}")
