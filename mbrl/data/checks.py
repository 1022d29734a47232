"""What can be wrong with logged transitions, found without stopping at the first: `inspect` gives
tidy columns, the spec and every `Finding`; loading raises the first error, `check` lists all."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mbrl.data.columns import Columns, Options, by_blocks
from mbrl.data.episode_ends import resolve_ends
from mbrl.data.issues import Finding, error, has_error, note
from mbrl.data.task_spec import resolve_spec
from mbrl.errors import ConfigError, DataError
from mbrl.types import EXACT, SEGMENTS, Spec

FLAGS = ("terminated", "truncated", "done", "next_known", "expert")
LIMITS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "duration": ("above 0", lambda array: array > 0),
    "behaviour_prob": ("above 0", lambda array: array > 0),
    "segment": (f"0 to {len(SEGMENTS) - 1}", lambda array: np.isin(array, range(len(SEGMENTS)))),
}
WIDE = ("obs", "next_obs", "action", "state", "action_mask", "next_action_mask")  # [N, size]
PRECISION = 1e-2  # rounding above this share of a deviation loses what is observed
MOST = 1 + 1e-5  # of a probability, rounding included
FLOAT32_MAX = np.finfo(np.float32).max  # of NumPy: Python's would become float16 beside float16


@dataclass(frozen=True)
class Inspection:
    """Tidy columns (`spec` None and columns raw where an error stopped the inspection early)."""

    columns: Columns
    spec: Spec | None
    findings: list[Finding]


def inspect(columns: Columns, spec: Spec | None, options: Options) -> Inspection:
    """Verify `columns` against `spec` (inferred from the data and `options` where None)."""
    findings = [*map(note, columns.notes), *_shapes(columns)]
    if has_error(findings):
        return Inspection(columns, None, findings)
    columns = tidy(columns)
    findings += _values(columns)
    if has_error(findings):
        return Inspection(columns, None, findings)
    try:
        spec, notes = resolve_spec(columns, spec, options)
    except (DataError, ConfigError) as problem:
        return Inspection(columns, None, [*findings, error(str(problem))])
    findings += [*map(note, notes), *_sizes(columns, spec)]
    if has_error(findings):
        return Inspection(columns, None, findings)
    columns = _shape_actions(columns, spec)
    findings += _actions(columns, spec, options)
    columns, more = resolve_ends(columns, spec, options)
    return Inspection(columns, spec, [*findings, *more])


def _shapes(columns: Columns) -> list[Finding]:
    arrays = columns.arrays()
    missing = [name for name in ("obs", "action", "reward") if name not in arrays]
    if missing:
        return [error(f"no {' and no '.join(missing)}; found: {columns.listing()}")]
    findings = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            findings.append(
                error(f"{name} has dtype {array.dtype}; only numbers and booleans can be used")
            )
        limit = 2 if name in WIDE else 1
        column = array.ndim == limit + 1 == 2 and array.shape[1] == 1
        if not (1 <= array.ndim <= limit or column):
            wanted = "[N, size]" if limit == 2 else "[N] or [N, 1]"
            text = f"{name} has shape {array.shape}, expected {wanted}: one row a transition"
            if limit == 2 and array.ndim > 2:
                text += ". The algorithms take vectors: encode an image as one first"
            findings.append(error(text))
        elif 0 in array.shape[1:]:
            findings.append(error(f"{name} has shape {array.shape}: its rows are empty"))
    if has_error(findings):
        return findings
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        findings.append(error(f"the arrays differ in length: {rows}"))
    elif rows["obs"] == 0:
        findings.append(error("there are no rows"))
    if columns.next_obs is not None and columns.obs is not None:
        shapes = (columns.obs.shape[1:], columns.next_obs.shape[1:])
        if shapes[0] != shapes[1]:
            findings.append(error(f"rows of obs and next_obs differ in shape: {shapes}"))
    return findings


def tidy(columns: Columns) -> Columns:
    """Rewards and flags [N], observations [N, S]; files of the wild hold (N, 1) and (N,)."""
    changes: dict[str, Any] = {}
    for name, array in columns.arrays().items():
        if name in WIDE and name != "action":
            changes[name] = array.reshape(len(array), -1)
        elif name != "action":
            changes[name] = array.reshape(-1)
    return replace(columns, **changes)


def _values(columns: Columns) -> list[Finding]:
    findings = []
    for name, array in columns.arrays().items():
        if array.dtype.kind == "f":
            bad = by_blocks(_not_finite, array)
            if bad.any():
                row = int(np.argmax(bad))
                value = array[row].reshape(-1)[~_holds(array[row]).reshape(-1)][0]
                findings.append(
                    error(
                        f"{name} is not finite in row {row} ({value}); {_share(bad)} are affected. "
                        "Drop the episodes they belong to",
                        row,
                        bad,
                    )
                )
                continue
        findings += _held(name, array)
        if name in LIMITS:
            text, right = LIMITS[name]
            bad = ~right(array)
            if bad.any():
                row = int(np.argmax(bad))
                text = f"{name} is {array[row]} in row {row}; it must be {text}"
                findings.append(error(text, row, bad))
        if name in FLAGS:
            bad = (array != 0) & (array != 1)
            if bad.any():
                row = int(np.argmax(bad))
                findings.append(
                    error(f"{name} is {array[row]} in row {row}; flags must be 0 or 1", row, bad)
                )
    return findings


def _holds(values: np.ndarray) -> np.ndarray:
    """Where float32 can hold the values; the comparison is False for NaN too."""
    held: np.ndarray = np.less_equal(np.abs(values), FLOAT32_MAX)
    return held


def _not_finite(values: np.ndarray) -> np.ndarray:
    """[N] bool: rows of `values` [N, ...] with one that float32 cannot hold."""
    bad: np.ndarray = np.logical_not(_holds(values)).reshape(len(values), -1).any(axis=1)
    return bad


def _held(name: str, array: np.ndarray) -> list[Finding]:
    """Numbers that float32 rounds, so that different ones would become equal: large whole numbers,
    and observations far from 0 that vary little."""
    if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4 or array.dtype == np.float32:
        return []
    if name in ("episode", "state", "action"):  # kept as they are; see `_actions`
        return []
    size = np.abs(array.astype(np.float64))
    most = 2.0**53 if array.dtype.kind == "f" else math.inf
    large = (size > EXACT) & (size <= most)
    bad = (
        large & (array == np.floor(array)) & (array.astype(np.float32).astype(np.float64) != array)
    )
    bad = bad.reshape(len(array), -1).any(axis=1)
    if not bad.any():
        return _close_together(name, array) if name in ("obs", "next_obs", "reward") else []
    row = int(np.argmax(bad))
    text = (
        f"{name} has whole numbers above {EXACT} in row {row} that float32 would round; "
        f"{_share(bad)} are affected. Subtract an offset or change the unit"
    )
    return [error(text, row, bad)]


def _close_together(name: str, array: np.ndarray) -> list[Finding]:
    """An error for the first entry whose numbers float32 brings together."""
    if array.dtype == np.float32 or array.dtype.kind not in "iuf":
        return []
    values = array.reshape(len(array), -1)
    for i, entry in enumerate(values.T):
        spread = float(entry.std()) if entry.max() > entry.min() else 0.0
        lost = np.abs(entry.astype(np.float32) - entry).max()
        if spread > 0 and lost > PRECISION * spread:
            which = f"{name}[{i}]" if array.ndim > 1 else name
            text = (
                f"{which} lies near {np.median(entry):.6g} and varies by {spread:.3g} only, "
                "which 32-bit numbers do not keep; subtract an offset first"
            )
            return [error(text)]
    return []


def _sizes(columns: Columns, spec: Spec) -> list[Finding]:
    findings = []
    probability = columns.behaviour_prob
    if spec.discrete and probability is not None and (probability > MOST).any():
        bad = probability > MOST
        row = int(np.argmax(bad))
        text = (
            f"behaviour_prob is {probability[row]} in row {row}; of discrete actions it is at most"
        )
        findings.append(error(f"{text} 1 (per cent: divide by 100)", row, bad))
    obs_dim = columns.need("obs").shape[1]
    if obs_dim != spec.obs_dim:
        findings.append(
            error(f"obs has {obs_dim} entries a row, task {spec.task!r} has {spec.obs_dim}")
        )
    action = columns.need("action")
    size = action.reshape(len(action), -1).shape[1]
    if size != spec.action_dim:
        kind = "one integer a row (discrete)" if spec.discrete else f"{spec.action_dim}"
        findings.append(
            error(f"action has {size} entries a row, task {spec.task!r} expects {kind}")
        )
    return findings


def _shape_actions(columns: Columns, spec: Spec) -> Columns:
    action = columns.need("action").reshape(len(columns.need("action")), -1)
    return replace(columns, action=action[:, 0] if spec.discrete else action)


def _actions(columns: Columns, spec: Spec, options: Options) -> list[Finding]:
    action = columns.need("action")
    if spec.discrete:
        count = int(spec.num_actions or 0)
        bad = (action < 0) | (action >= count) | (action != np.floor(action))
        if not bad.any():
            return []
        row = int(np.argmax(bad))
        text = (
            f"action is {action[row]} in row {row}; task {spec.task!r} has actions 0 to "
            f"{count - 1}. If actions are continuous, say discrete=False and give the bounds"
        )
        return [error(text, row, bad)]
    if close := _close_together("action", action):
        return close
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    slack = 1e-5 * (high - low)  # float32 rounding of a bound is not a violation
    outside = (action < low - slack) | (action > high + slack)
    bad = outside.any(axis=1)
    if not bad.any():
        return []
    row = int(np.argmax(bad))
    entry = int(np.argmax(outside[row]))
    text = (
        f"action[{entry}] is {action[row, entry]:.6g} in row {row}, outside "
        f"[{low[entry]:g}, {high[entry]:g}]; {_share(bad)} are affected"
    )
    if options.clip_actions:
        return [note(f"clipped to the bounds: {text}", row, bad)]
    return [error(f"{text}. clip_actions=True (--clip-actions) clips them", row, bad)]


def _share(bad: np.ndarray) -> str:
    return f"{int(bad.sum())} of {len(bad)} rows"
