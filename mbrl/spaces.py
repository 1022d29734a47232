"""Gymnasium's spaces as flat numbers: observations as one vector with a name for each entry, and
which action spaces the algorithms take. What is not taken is refused with the way round it."""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from mbrl.errors import ConfigError

Categories = Literal["one-hot", "number"]

OBSERVATIONS = "Box, Discrete, MultiBinary, MultiDiscrete, and Dict and Tuple of these"
ACTIONS = "Box with finite bounds, and Discrete"
PICTURE = 1000  # an array with more entries may be an image


@dataclass(frozen=True)
class Leaf:
    """A part of an observation that is no Dict or Tuple: where it is, and its entries' names."""

    keys: tuple[Any, ...]
    space: Any
    path: str
    names: tuple[str, ...]
    one_hot: bool

    def read(self, obs: Any, source: str) -> np.ndarray:
        """The leaf's entries [n], float64. Raises `ConfigError` for another shape."""
        for key in self.keys:
            try:
                obs = obs[key]
            except (KeyError, IndexError, TypeError) as problem:
                raise ConfigError(
                    f"{source}: the observation has no entry {self.path!r}, which its space has; "
                    f"got {type(obs).__name__} {_short(obs)}"
                ) from problem
        where = repr(self.path or "obs")
        try:
            value = np.asarray(obs, dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise ConfigError(
                f"{source}: entry {where} of the observation is no array of numbers: {_short(obs)}"
            ) from problem
        if value.shape != (self.space.shape or ()):
            raise ConfigError(
                f"{source}: entry {where} of the observation has shape {value.shape}, its "
                f"space has {self.space.shape or ()}; correct the environment's observation_space"
            )
        if not self.one_hot:
            return value.reshape(-1)
        first, counts = _categories(self.space)
        given = value.reshape(-1) - first
        if (given < 0).any() or (given >= counts).any() or (given % 1 != 0).any():
            raise ConfigError(
                f"{source}: entry {where} of the observation is {_short(obs)}, which is not "
                f"in {self.space}"
            )
        flat = np.zeros(int(counts.sum()))
        flat[np.concatenate([[0], counts[:-1]]).cumsum() + given.astype(np.int64)] = 1.0
        return flat


class Flattener:
    """An observation space as a vector [S]: entries of arrays in row-major order, those of a Dict
    in its order.

    Discrete and MultiDiscrete become one-hot, or with `categories="number"` the number itself;
    MultiBinary is its zeros and ones. `names` has one name an entry ("position/x[0]"); it is empty
    for a single Box, whose entries are known by their place. Raises `ConfigError` for spaces that
    are not taken: images (rank 3, uint8), Text, Sequence, Graph, OneOf.
    """

    def __init__(self, space: Any, task: str, categories: Categories = "one-hot") -> None:
        if categories not in ("one-hot", "number"):
            raise ConfigError(f"categories is {categories!r}; allowed: one-hot, number")
        self.task, self.space = task, space
        self.leaves = tuple(_leaves(space, (), "", task, categories))
        self.dim = sum(len(leaf.names) for leaf in self.leaves)
        if self.dim == 0:
            raise ConfigError(
                f"{task}: the observation space {space} has no entries; an observation needs at "
                "least one number (a constant will do)"
            )
        self._outside: set[str] = set()  # entries of which it was said
        plain = isinstance(space, spaces.Box)
        self.names = () if plain else tuple(n for leaf in self.leaves for n in leaf.names)

    def __call__(self, obs: Any, when: str = "") -> np.ndarray:
        """`obs` as [S], float64. Raises `ConfigError`, with the entry, for another shape."""
        source = f"{self.task}{when}"
        return np.concatenate([leaf.read(obs, source) for leaf in self.leaves])

    def check(self, obs: Any, when: str) -> None:
        """Raise `ConfigError`, with the entry, where an observation has another type than its
        space; warn, once an entry, where a number lies outside of the bounds."""
        for leaf in self.leaves:
            value = obs
            for key in leaf.keys:
                value = value[key]
            has, wanted = getattr(value, "dtype", None), leaf.space.dtype
            entry = f"{self.task}{when}: entry {leaf.path or 'obs'!r} of the observation"
            integers = has is not None and has.kind in "iub" and wanted.kind in "iu"
            if has is not None and not (np.can_cast(has, wanted) or integers):
                raise ConfigError(
                    f"{entry} is {has}, its space {leaf.space} has {wanted}; correct the "
                    "environment's observation_space or what it returns (make(..., check=False) "
                    "takes it as it is)"
                )
            inside = np.asarray(value, wanted)
            if leaf.path not in self._outside and not leaf.space.contains(inside):
                self._outside.add(leaf.path)
                warnings.warn(
                    f"{entry} is {_short(value)}, outside of its space {leaf.space}; it is taken "
                    "as it is",
                    stacklevel=2,
                )


def goal_entries(names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """`goal` and `achieved` of a `Spec` whose observations have entries of these names: those of
    the keys desired_goal and achieved_goal, where there are as many of both; else none."""
    goal, achieved = (
        tuple(i for i, name in enumerate(names) if re.split(r"[\[/]", name)[0] == key)
        for key in ("desired_goal", "achieved_goal")
    )
    if not goal or len(goal) != len(achieved):
        return {}
    return {"goal": goal, "achieved": achieved}


def action_sizes(space: Any, task: str) -> dict[str, Any]:
    """`action_dim`, `num_actions` and the bounds of a `Spec`. Raises `ConfigError` for spaces that
    the algorithms do not take."""
    if isinstance(space, spaces.Discrete):
        if int(space.n) < 2:
            raise ConfigError(f"{task}: the action space {space} has one action; two are the least")
        start = int(space.start)
        names = tuple(str(start + i) for i in range(int(space.n))) if start else ()
        return {"num_actions": int(space.n), "action_names": names}
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ConfigError(
            f"{task}: the action space {space} is not taken; allowed: {ACTIONS}. Wrap the "
            "environment, for example with gymnasium.wrappers.TransformAction, so that one of "
            "these stands for it (a Discrete one with a number for each combination)"
        )
    low, high = (np.asarray(b, np.float64).reshape(-1) for b in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(
            f"{task}: the action space {space} has infinite bounds, and actions are scaled by "
            "them; give finite ones, for example with gymnasium.wrappers.RescaleAction or "
            "TransformAction(env, lambda a: a, gymnasium.spaces.Box(low, high))"
        )
    if len(low) == 0:
        raise ConfigError(f"{task}: the action space {space} has no components")
    return {
        "action_dim": len(low),
        "action_low": tuple(low.tolist()),
        "action_high": tuple(high.tolist()),
    }


def _leaves(
    space: Any, keys: tuple[Any, ...], path: str, task: str, categories: Categories
) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces
        items = parts.items() if isinstance(space, spaces.Dict) else enumerate(parts)
        for key, part in items:
            below = f"{path}/{key}" if path else str(key)
            yield from _leaves(part, (*keys, key), below, task, categories)
        return
    _require_taken(space, path, task)
    one_hot = categories == "one-hot" and isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    base = _places(space.shape or (), path or "obs")
    if one_hot:
        first, counts = _categories(space)
        values = zip(base, np.broadcast_to(first, counts.shape), counts, strict=True)
        names = tuple(f"{name}={i + int(f)}" for name, f, n in values for i in range(int(n)))
    else:
        names = base
    yield Leaf(keys, space, path, names, one_hot)


def _is_image(space: spaces.Box) -> bool:
    """A frame of bytes in colour, or an array of bytes or of rank 3 with a picture's size."""
    rank, of_bytes = len(space.shape), space.dtype == np.uint8
    large = bool(np.prod(space.shape) > PICTURE)
    return (of_bytes and rank == 3) or (large and (rank >= 3 or (of_bytes and rank == 2)))


def _require_taken(space: Any, path: str, task: str) -> None:
    where = f"observation space {path!r}, {space}," if path else f"observation space {space}"
    if isinstance(space, spaces.Box) and _is_image(space):
        raise ConfigError(
            f"{task}: the {where} is an image, and the networks of this library are not "
            "convolutional; give features instead: the environment's own vector observation, or a "
            "wrapper (gymnasium.wrappers.TransformObservation, or FlattenObservation where the "
            "array is a small grid)"
        )
    taken = spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete
    if not isinstance(space, taken):
        raise ConfigError(
            f"{task}: the {where} is not taken; allowed: {OBSERVATIONS}. Leave it out or encode it "
            "with gymnasium.wrappers.TransformObservation or FilterObservation"
        )


def _places(shape: tuple[int, ...], path: str) -> tuple[str, ...]:
    """`path` of a scalar, `path[i]`, `path[i,j]` of the entries of an array."""
    if shape == ():
        return (path,)
    return tuple(f"{path}[{','.join(map(str, index))}]" for index in np.ndindex(*shape))


def _categories(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The first number of each component of Discrete or MultiDiscrete, and how many there are."""
    counts = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    start = np.asarray(getattr(space, "start", 0)).reshape(-1)
    return start, counts.reshape(-1).astype(np.int64)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
