"""What a reader hands on: named per-row arrays under the library's own names, whatever the file
called them, and the options a caller may set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from mbrl.config import Count, Settings
from mbrl.data.logs.schema import LogSchema, listing
from mbrl.errors import DataError, unknown_name
from mbrl.types import Spec

ALIASES: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observations", "observation"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "next_obs": ("next_obs", "next_observations", "next_observation"),
    "terminated": ("terminated", "terminals", "terminal", "terminations"),
    "truncated": ("truncated", "timeouts", "timeout", "truncations"),
    "done": ("done", "dones"),
    "episode": ("episode", "episodes", "episode_id"),
    "state": ("state",),
    "duration": ("step_duration",),
    "next_known": ("next_known",),
    "behaviour_prob": ("behaviour_prob",),
    "expert": ("expert",),
    "segment": ("segment",),
    "action_mask": ("action_mask",),
    "next_action_mask": ("next_action_mask",),
}
OPTIONAL = ("state", "duration", "next_known", "behaviour_prob", "expert", "segment")


@dataclass(frozen=True)
class Columns:
    """Raw arrays with one row a transition, None where the file has none. `done` is an end flag
    that does not say whether the task ended; `notes` is what the reader wants remembered."""

    obs: np.ndarray | None = None
    action: np.ndarray | None = None
    reward: np.ndarray | None = None
    next_obs: np.ndarray | None = None
    terminated: np.ndarray | None = None
    truncated: np.ndarray | None = None
    done: np.ndarray | None = None
    episode: np.ndarray | None = None
    state: np.ndarray | None = None
    duration: np.ndarray | None = None
    next_known: np.ndarray | None = None
    behaviour_prob: np.ndarray | None = None
    expert: np.ndarray | None = None
    segment: np.ndarray | None = None
    action_mask: np.ndarray | None = None
    next_action_mask: np.ndarray | None = None
    present: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are present, by name."""
        values = {name: getattr(self, name) for name in ALIASES}
        return {name: value for name, value in values.items() if value is not None}

    def need(self, name: str) -> np.ndarray:
        """The array called `name`; only after the shapes were verified."""
        value: np.ndarray | None = getattr(self, name)
        if value is None:
            raise DataError(f"no {name}; found {self.listing()}")
        return value

    def listing(self) -> str:
        """What the file held, by name, shortened where it held hundreds of things."""
        return listing(self.present) or "nothing"

    def with_notes(self, *notes: str) -> "Columns":
        return replace(self, notes=(*self.notes, *notes))


def from_named(arrays: Mapping[str, Any]) -> Columns:
    """Columns from arrays under any of the common names (`ALIASES`); others are left aside, and a
    note names them."""
    values: dict[str, Any] = {}
    for name, aliases in ALIASES.items():
        present = [alias for alias in aliases if alias in arrays]
        if len(present) > 1:
            raise DataError(f"{' and '.join(present)} both mean {name}; keep one of them")
        if present:
            values[name] = unmasked(present[0], arrays[present[0]])
    known = {alias for aliases in ALIASES.values() for alias in aliases}
    others = [str(name) for name in arrays if name not in known]
    text = f"left aside, since these are no names that mean something here: {listing(others)}"
    return Columns(present=tuple(map(str, arrays)), notes=(text,) if others else (), **values)


def unmasked(name: str, value: Any) -> np.ndarray:
    """`value` as an array. Raises `DataError` where entries are masked, whose values mean
    nothing."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        count = int(np.ma.getmaskarray(value).sum())
        raise DataError(f"{name} has {count} masked entries; drop or fill the rows they are in")
    return np.asarray(value)


BLOCK = 1 << 20  # numbers that are looked at together


def by_blocks(rule: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """[N] bool: what `rule` says of the rows of `arrays` [N, ...], asked for a block of rows after
    the other, so that what it computes on the way takes little memory."""
    count = len(arrays[0])
    rows = max(1, BLOCK // max(1, arrays[0][:1].size))
    marked = np.zeros(count, dtype=bool)
    for begin in range(0, count, rows):
        part = slice(begin, begin + rows)
        marked[part] = rule(*(array[part] for array in arrays))
    return marked


@dataclass(frozen=True)
class Options(Settings):
    """What a caller may say about a dataset; each field is an option of `load`."""

    log: LogSchema | None = None  # which columns of a table of one's own are what
    spec: Spec | str | None = None  # the task (a Spec or a task id), for files without a card
    next_obs: Literal["stored", "next-row"] = "stored"  # next-row: D4RL's, made from the next row
    clip_actions: bool = False  # clip actions beyond the bounds instead of refusing them
    discrete: bool | None = None  # override the guess from the dtype of the actions
    done_means: Literal["terminated", "by-length"] | None = None  # what a merged `done` is
    horizon: Count | None = None  # the task's step limit, where no card or spec gives it
    boundaries: Literal["refuse", "cut"] = "refuse"  # cut: end an episode where next_obs differs
    action_low: tuple[float, ...] | float | None = None  # bounds, where no card or spec gives them
    action_high: tuple[float, ...] | float | None = None
    trajectories: Count | None = None  # NeoRL and NeoRL-2: how many trajectories to take
    split: Literal["train", "val"] = "train"  # NeoRL, NeoRL-2, OGBench
    download: bool = True  # fetch a file that is not here
    verify: bool = True  # compare the published checksum
    progress: Callable[[int, int | None], None] | None = field(default=None, compare=False)

    @staticmethod
    def of(values: Mapping[str, Any]) -> "Options":
        names = {f.name for f in fields(Options)}
        for name in values:
            if name not in names:
                raise unknown_name("option of load", name, names)
        return Options(**values)
