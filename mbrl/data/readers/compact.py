"""The compact file of this library: npz with T + 1 observations an episode, so that no
observation is stored twice; nothing in it is ever unpickled."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mbrl.data.columns import ALIASES, OPTIONAL, Columns
from mbrl.errors import DataError
from mbrl.files import replacing
from mbrl.types import Dataset, Provenance, Spec

FORMAT = "longreach-compact"
VERSION = 1
KEYS = ("meta", "obs", "action", "reward", "lengths", "terminated", "truncated")


def refuse_weights(dataset: Dataset) -> None:
    """Raise `DataError` for rows with weights."""
    if dataset.transitions.weight is not None:
        raise DataError(
            f"the rows of {dataset.provenance.card} have weights, which no file keeps; write the "
            "datasets that it was joined from"
        )


def save_npz(dataset: Dataset, path: str | Path) -> Path:
    """Write `dataset` to `path`, which a crash leaves as it was.

    float32 values, int64 actions, flags, state, spec and provenance come back exactly as they
    were. Equal datasets give equal bytes.
    """
    rows = dataset.transitions
    refuse_weights(dataset)
    episodes = rows.episodes()
    if not episodes:
        raise DataError(f"nothing to save to {path}: the dataset has no rows")
    ends = rows.ends.cpu()
    if not bool(ends[-1]):
        raise DataError("the last row has no end flag: set truncated there before saving")
    inside = ~ends[:-1]
    apart = (rows.obs[1:] != rows.next_obs[:-1]).any(dim=1).cpu() & inside
    if rows.action_mask is not None and rows.next_action_mask is not None:
        apart |= (rows.action_mask[1:] != rows.next_action_mask[:-1]).any(dim=1).cpu() & inside
    if bool(apart.any()):
        row = int(torch.nonzero(apart)[0])
        raise DataError(
            f"next_obs of row {row} is not obs of row {row + 1} inside an episode (or so of its "
            "action mask); the compact "
            "file stores one of them only. Set truncated where episodes are cut"
        )
    obs, next_obs = _numpy(rows.obs, np.float32), _numpy(rows.next_obs, np.float32)
    blocks = [part for a, b in episodes for part in (obs[a:b], next_obs[b - 1 : b])]
    last = np.array([b - 1 for _, b in episodes])
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "spec": dataset.spec.to_dict(),
        "provenance": dataset.provenance.to_dict(),
    }
    arrays: dict[str, np.ndarray] = {
        "meta": np.array(json.dumps(meta)),
        "obs": np.concatenate(blocks),
        "action": _numpy(rows.action, np.int64 if dataset.spec.discrete else np.float32),
        "reward": _numpy(rows.reward, np.float32),
        "lengths": np.array([b - a for a, b in episodes], dtype=np.int64),
        "terminated": rows.terminated.cpu().numpy()[last],
        "truncated": rows.truncated.cpu().numpy()[last],
    }
    for name in OPTIONAL:
        value = getattr(rows, name)
        if value is not None:
            arrays[ALIASES[name][0]] = value.cpu().numpy()
    if rows.action_mask is not None and rows.next_action_mask is not None:
        now, then = (m.cpu().numpy() for m in (rows.action_mask, rows.next_action_mask))
        arrays["action_mask"] = np.concatenate(
            [part for a, b in episodes for part in (now[a:b], then[b - 1 : b])]
        )
    path = Path(path)
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path


def _numpy(value: torch.Tensor, dtype: Any) -> np.ndarray:
    return value.detach().cpu().numpy().astype(dtype)


def is_compact(arrays: dict[str, np.ndarray]) -> bool:
    return "meta" in arrays and "lengths" in arrays


def read_compact(arrays: dict[str, np.ndarray], source: str) -> tuple[Columns, Spec, Provenance]:
    """Columns, spec and provenance of a compact file; `arrays` as read from the npz."""
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise DataError(f"{source}: no {', '.join(missing)} in it; found {', '.join(arrays)}")
    spec, provenance = _meta(arrays["meta"], source)
    lengths = arrays["lengths"]
    if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or not len(lengths):
        raise DataError(f"{source}: lengths must be integers [episodes], got {lengths.dtype}")
    if lengths.min() < 1:
        raise DataError(f"{source}: episode {int(lengths.argmin())} has {lengths.min()} steps")
    rows, episodes = int(lengths.sum()), len(lengths)
    expected = {
        "obs": rows + episodes, "action": rows, "reward": rows,
        "terminated": episodes, "truncated": episodes,
        **{ALIASES[name][0]: rows for name in OPTIONAL},
        "action_mask": rows + episodes,
    }  # fmt: skip
    for name, count in expected.items():
        array = arrays.get(name)
        if array is not None and (array.ndim == 0 or len(array) != count):
            raise DataError(
                f"{source}: {name} has shape {array.shape}; {episodes} episodes of {rows} steps "
                f"in all need {count} rows"
            )
    at = np.arange(rows) + np.repeat(np.arange(episodes), lengths)
    last = np.cumsum(lengths) - 1
    flags: dict[str, Any] = {}
    for name in ("terminated", "truncated"):
        if arrays[name].dtype != np.bool_ or arrays[name].ndim != 1:
            raise DataError(f"{source}: {name} must be bool [episodes], got {arrays[name].dtype}")
        flags[name] = np.zeros(rows, dtype=bool)
        flags[name][last] = arrays[name]
    unended = ~(arrays["terminated"] | arrays["truncated"])
    if unended.any():
        raise DataError(f"{source}: episode {int(unended.argmax())} has no end flag")
    optional: dict[str, Any] = {name: arrays.get(ALIASES[name][0]) for name in OPTIONAL}
    if "action_mask" in arrays:
        flags["action_mask"] = arrays["action_mask"][at]
        flags["next_action_mask"] = arrays["action_mask"][at + 1]
    columns = Columns(
        obs=arrays["obs"][at],
        action=arrays["action"],
        reward=arrays["reward"],
        next_obs=arrays["obs"][at + 1],
        **optional,
        present=tuple(arrays),
        **flags,
    )
    return columns, spec, provenance


def _meta(value: np.ndarray, source: str) -> tuple[Spec, Provenance]:
    try:
        meta = json.loads(str(value))
        if meta["format"] != FORMAT or meta["version"] > VERSION:
            raise DataError(
                f"{source}: format {meta['format']!r} version {meta['version']}; this release "
                f"reads {FORMAT!r} up to version {VERSION}"
            )
        origin = meta["provenance"]
        origin["notes"] = tuple(origin.get("notes", ()))
        return Spec.from_dict(meta["spec"]), Provenance(**origin)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        if isinstance(problem, DataError):
            raise
        raise DataError(f"{source}: its description cannot be read: {problem}") from problem
