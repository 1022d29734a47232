"""Where episodes end, and why: `terminated` (the task ended) and `truncated` (the recording
stopped) from whatever flags a file has, and whether its next observations agree with them."""

from dataclasses import replace

import numpy as np

from mbrl.data.columns import Columns, Options, by_blocks
from mbrl.data.issues import Finding, error, note, warning
from mbrl.types import Spec

TOLERANCE = 1e-5  # relative and absolute; float32 against float64 copies of one number


def resolve_ends(columns: Columns, spec: Spec, options: Options) -> tuple[Columns, list[Finding]]:
    """Columns with bool `terminated` and `truncated` [N], the last row of the file ending."""
    horizon = options.horizon or spec.max_episode_steps
    flags, findings = _flags(columns, horizon, options)
    if flags is None:
        return columns, findings
    terminated, truncated = flags
    truncated, more = _episode_ids(columns, terminated, truncated)
    findings += more
    if not (terminated[-1] or truncated[-1]):
        truncated[-1] = True
        findings.append(note("the last row is in mid-episode: marked truncated"))
    truncated, more = _boundaries(columns, terminated, truncated, options)
    findings += more
    findings += _lengths(terminated | truncated, spec.max_episode_steps)
    return replace(columns, terminated=terminated, truncated=truncated), findings


def _flags(
    columns: Columns, horizon: int | None, options: Options
) -> tuple[tuple[np.ndarray, np.ndarray] | None, list[Finding]]:
    terminated, truncated, done = (
        None if value is None else value.astype(bool)
        for value in (columns.terminated, columns.truncated, columns.done)
    )
    if terminated is not None and truncated is not None:
        return (terminated, truncated.copy()), []
    if done is not None and truncated is not None:
        early = truncated & ~done
        if early.any():
            row = int(np.argmax(early))
            text = f"row {row} is truncated, but not done; done must mark every end"
            return None, [error(text, row, early)]
        return (done & ~truncated, truncated.copy()), []
    if done is not None and terminated is not None:
        return (terminated, done & ~terminated), []
    if terminated is not None:
        return _without_truncated(columns, terminated, horizon)
    if done is None:
        return None, [
            error(
                f"nothing says where the task ended (terminated or terminals); found: "
                f"{columns.listing()}"
            )
        ]
    return _merged(done, horizon, options)


def _merged(
    done: np.ndarray, horizon: int | None, options: Options
) -> tuple[tuple[np.ndarray, np.ndarray] | None, list[Finding]]:
    if options.done_means is None:
        text = (
            "the only end flag is a merged `done`, which does not say whether the task ended or "
            'the recording stopped. Say done_means="terminated" if time limits are not in it, or '
            'done_means="by-length" (with horizon= where no card gives it) to read an episode of '
            "full length as truncated"
        )
        return None, [error(text)]
    if options.done_means == "terminated":
        return (done, np.zeros_like(done)), [note("done was read as terminated, as asked")]
    if horizon is None:
        return None, [error('done_means="by-length" needs horizon=, the step limit of the task')]
    step = steps_since_end(done)
    limit = done & (step + 1 >= horizon)
    text = f"done split by length: {int(limit.sum())} episodes of {horizon} steps truncated"
    return (done & ~limit, limit), [note(text)]


def _without_truncated(
    columns: Columns, terminated: np.ndarray, horizon: int | None
) -> tuple[tuple[np.ndarray, np.ndarray] | None, list[Finding]]:
    truncated = np.zeros_like(terminated)
    if columns.episode is not None:
        return (terminated, truncated), []
    if horizon is not None:
        truncated = (steps_since_end(terminated) + 1) % horizon == 0
        text = f"no truncated flags: episodes cut after {horizon} steps, the task's limit"
        return (terminated, truncated), [note(text)]
    if columns.next_obs is not None:
        return (terminated, truncated), []
    text = (
        "no truncated (timeouts), no next_obs, no episode numbers and no step limit: where a "
        "recording stopped is unknown. Give horizon="
    )
    return None, [error(text)]


def steps_since_end(ends: np.ndarray) -> np.ndarray:
    """[N] how many rows of the same episode come before each row."""
    rows = np.arange(len(ends))
    starts = np.zeros(len(ends), dtype=np.int64)
    starts[1:] = np.where(ends[:-1], rows[1:], 0)
    return rows - np.maximum.accumulate(starts)


def _episode_ids(
    columns: Columns, terminated: np.ndarray, truncated: np.ndarray
) -> tuple[np.ndarray, list[Finding]]:
    """Truncate where the episode number changes; refuse numbers that come back."""
    episode = columns.episode
    if episode is None:
        return truncated, []
    change = np.ones(len(episode), dtype=bool)
    change[:-1] = episode[1:] != episode[:-1]
    if change.sum() != len(np.unique(episode)):
        first = _returning_row(episode, change)
        return truncated, [
            error(
                f"episode {episode[first]} comes back in row {first}: the rows are not in time "
                "order. Sort them by episode and step",
                first,
            )
        ]
    ends = terminated | truncated
    early = ends & ~change
    if early.any():
        row = int(np.argmax(early))
        text = f"row {row} ends an episode, but row {row + 1} has the same episode number"
        return truncated, [error(text, row, early)]
    if columns.truncated is not None and (change & ~ends)[:-1].any():
        row = int(np.argmax(change & ~ends))
        text = f"the episode number changes after row {row}, which has no end flag"
        return truncated, [error(text, row)]
    return truncated | (change & ~terminated), []


def _returning_row(episode: np.ndarray, change: np.ndarray) -> int:
    starts = np.concatenate([[0], np.nonzero(change)[0][:-1] + 1])
    seen: set[float] = set()
    for row in starts:
        if episode[row] in seen:
            return int(row)
        seen.add(episode[row])
    return 0


def _boundaries(
    columns: Columns, terminated: np.ndarray, truncated: np.ndarray, options: Options
) -> tuple[np.ndarray, list[Finding]]:
    """Inside an episode, next_obs of a row must be obs of the next row."""
    if columns.next_obs is None or len(terminated) < 2:
        return truncated, []
    apart = by_blocks(_apart, columns.need("obs")[1:], columns.next_obs[:-1])
    broken = np.zeros_like(terminated)
    broken[:-1] = apart & ~(terminated | truncated)[:-1]
    if not broken.any():
        return truncated, []
    row, count, share = int(np.argmax(broken)), int(broken.sum()), float(broken.mean())
    text = (
        f"next_obs of row {row} is not obs of row {row + 1}, though row {row} ends no episode; "
        f"{count} of {len(broken)} rows ({share:.1%})"
    )
    if options.boundaries == "cut":
        return truncated | broken, [note(f"cut into shorter episodes: {text}", row, broken)]
    why = (
        "the rows seem to be shuffled, or next_obs belongs to other rows"
        if share > 0.2
        else 'end flags are missing there; boundaries="cut" ends the episodes at these rows'
    )
    return truncated, [error(f"{text}: {why}", row, broken)]


def _apart(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    """[N] bool: rows of two arrays [N, S] that differ by more than rounding."""
    distance = np.abs(after.astype(np.float64) - before)
    apart: np.ndarray = (distance > TOLERANCE * (1.0 + np.abs(after))).any(axis=1)
    return apart


def _lengths(ends: np.ndarray, horizon: int | None) -> list[Finding]:
    if horizon is None:
        return []
    over = steps_since_end(ends) >= horizon
    if not over.any():
        return []
    row = int(np.argmax(over))
    text = f"an episode is longer than the task's limit of {horizon} steps at row {row}"
    return [warning(f"{text}; end flags may be missing", row, over)]
