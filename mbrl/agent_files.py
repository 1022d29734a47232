"""What a file of an agent holds: everything that goes on with it, and how to make it again."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mbrl import checkpoint
from mbrl import config as configs
from mbrl.errors import CheckpointError
from mbrl.training import Trainable
from mbrl.types import Spec

A = TypeVar("A", bound=Trainable)


def config_class(cls: type) -> type:
    """The dataclass of an agent class's settings: the annotation of its `config`."""
    hints = typing.get_type_hints(cls)
    if not dataclasses.is_dataclass(hints.get("config")):
        hints = typing.get_type_hints(inspect.getattr_static(cls, "__init__"))
    hint = hints["config"]
    kinds = [c for c in (hint, *typing.get_args(hint)) if isinstance(c, type)]
    return next(c for c in kinds if dataclasses.is_dataclass(c))


def content(agent: Trainable) -> dict[str, Any]:
    """Everything a checkpoint of this agent holds."""
    config, lacking = described(agent)
    return {
        "algorithm": type(agent).__name__,
        "version": agent.version,
        "spec": configs.plain(agent.spec.to_dict()),
        "config": configs.to_dict(config),
        "lacking": lacking,
        "seed": agent.seed,
        "step": agent.step,
        "state": agent.state_dict(),
    }


def described(agent: Trainable) -> tuple[Any, list[str]]:
    """The settings that make the agent again, those of given parts included, and the names of the
    parts that no settings make."""
    config, lacking = agent.config, []
    for name, part in getattr(agent, "given", {}).items():
        of_part = part.described_in(config) if hasattr(part, "described_in") else None
        if of_part is None:
            lacking.append(name)
        else:
            config = of_part
    return config, lacking


def save(agent: Trainable, path: str | Path) -> None:
    """Write the whole agent, optimisers and generators included, to one file."""
    checkpoint.save(path, content(agent))


def load(cls: type[A], path: str | Path, device: str = "cpu", **parts: Any) -> A:
    """Read an agent that `save` wrote."""
    return restore(cls, checkpoint.load(path), device, parts=parts)


def restore(
    cls: type[A],
    values: dict[str, Any],
    device: str = "cpu",
    kind: type | None = None,
    parts: dict[str, Any] | None = None,
) -> A:
    """Build an agent of class `cls` from a checkpoint's content. `kind` is the dataclass of its
    settings; None: the annotation of its `config`. `parts` are those that it was made with and
    that the content does not hold."""
    if values.get("algorithm") != cls.__name__:
        raise CheckpointError(
            f"the checkpoint holds {values.get('algorithm')!r}, not {cls.__name__!r}; use "
            "algorithms.load, which reads the name"
        )
    if values["version"] != cls.version:
        raise CheckpointError(
            f"the checkpoint is of {cls.__name__} version {values['version']}, this library has "
            f"version {cls.version}; load it with the release that wrote it"
        )
    spec = Spec.from_dict(values["spec"])
    config: Any = configs.from_dict(kind or config_class(cls), values["config"])
    parts = parts or {}
    if lacking := [name for name in values.get("lacking", []) if name not in parts]:
        raise CheckpointError(
            f"this {cls.__name__} was made with a part of its own that files do not hold; give it "
            f"again: load(path, {', '.join(f'{name}=...' for name in lacking)})"
        )
    make: Callable[..., A] = cls
    agent = make(spec, config, device=device, seed=values["seed"], **parts)
    agent.step = values["step"]
    try:
        agent.load_state_dict(values["state"])
    except (KeyError, RuntimeError, TypeError) as problem:
        if not parts:
            raise
        raise CheckpointError(
            f"what the file holds does not fit into {' and '.join(parts)}: {problem}"
        ) from problem
    return agent
