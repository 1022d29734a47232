"""Readers of published benchmark files: D4RL, NeoRL and NeoRL-2, with the habits of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mbrl.data.cards import Card, Tier
from mbrl.data.columns import Columns, Options, from_named
from mbrl.data.issues import Finding, has_error
from mbrl.data.locate import find_file
from mbrl.data.readers.files import file_hash, read_file
from mbrl.data.readers.named import (
    Source,
    card_provenance,
    card_spec,
    checksum_findings,
    obtain,
)
from mbrl.errors import ConfigError, DataError


def read_d4rl(card: Card, tier: Tier, options: Options, collect: bool) -> Source:
    """`terminals` are true terminations and `timeouts` the step limit; rewards and flags may be
    (N, 1) or float, metadata may hold text: both are taken care of on reading."""
    path = obtain(card, tier, str(tier.file), options)
    findings, sha256 = _verified(card, tier, path, options, collect)
    columns = _named(path, read_file(path))
    return _source(card, tier, options, columns, sha256, findings)


def read_neorl(card: Card, tier: Tier, options: Options, collect: bool) -> Source:
    """The flag `done` marks termination or the step limit; `index` says where trajectories start,
    without its leading 0 and as floats."""
    wanted = options.trajectories or 1000
    stored = [n for n in (100, 1000, 10000) if n >= wanted]
    if not stored:
        raise ConfigError(f"trajectories={wanted}; NeoRL has at most 10000")
    # validation files hold a tenth as many trajectories
    scale = 1 if options.split == "train" else 10
    files = [str(tier.file).format(trajectories=n // scale, split=options.split) for n in stored]
    # a larger file that is here already begins with the same trajectories
    file = next((f for f in files if find_file(card.family, f)), files[0])
    path = obtain(card, tier, file, options)
    findings, sha256 = _verified(card, tier, path, options, collect)
    arrays = read_file(path)
    columns = _neorl_ends(path, arrays, int(card.spec(tier).max_episode_steps or 0))
    columns = _first(columns, max(wanted // scale, 1), path)
    return _source(card, tier, options, columns, sha256, findings)


def _neorl_ends(path: Path, arrays: dict[str, np.ndarray], horizon: int) -> Columns:
    missing = [k for k in ("obs", "action", "reward", "next_obs", "done") if k not in arrays]
    if missing:
        raise DataError(f"{path}: no {', '.join(missing)}; found {', '.join(arrays)}")
    columns = _named(path, {k: v for k, v in arrays.items() if k != "index"})
    done = _flag(path, "done", arrays["done"])
    rows = len(done)
    if rows == 0:
        raise DataError(f"{path}: there are no rows")
    ends = done.copy()
    if "index" in arrays:
        starts = _starts(path, arrays["index"], rows)
        ends = np.zeros(rows, dtype=bool)
        ends[starts[1:] - 1] = True
        inside = done & ~ends
        inside[-1] = False
        if inside.any():
            row = int(np.argmax(inside))
            raise DataError(f"{path}: done is set in row {row}, where index ends no trajectory")
    ends[-1] = True
    last = np.nonzero(ends)[0]
    lengths = np.diff(np.concatenate([[-1], last]))
    terminated = np.zeros(rows, dtype=bool)
    # shorter than the limit and done: the task ended; everything else is a stopped recording
    terminated[last] = done[last] & (lengths < horizon)
    limit = int((lengths >= horizon).sum())
    return replace(
        columns,
        done=None,
        terminated=terminated,
        truncated=ends & ~terminated,
        notes=(f"done split by length: {limit} of {len(last)} trajectories reach {horizon} steps",),
    )


def _starts(path: Path, index: np.ndarray, rows: int) -> np.ndarray:
    if index.dtype.kind not in "iuf" or not np.isfinite(index).all():
        raise DataError(f"{path}: index must hold row numbers, got {index.dtype}")
    values = index.reshape(-1).astype(np.int64)
    values = np.concatenate([[0], values[(values != 0) & (values != rows)]])
    if (np.diff(values) <= 0).any() or values[-1] >= rows or values.min() < 0:
        raise DataError(f"{path}: index must rise from 0 to below the {rows} rows of the file")
    return values


def read_neorl2(card: Card, tier: Tier, options: Options, collect: bool) -> Source:
    """`done` is a termination and `truncated` the step limit; the parquet copies have one flag
    only, which is then split by length."""
    file = str(tier.file).format(split=options.split)
    parquet = find_file(card.family, str(Path(file).with_suffix(".parquet")))
    if parquet is not None and find_file(card.family, file) is None:
        path = parquet
    else:
        path = obtain(card, tier, file, options)
    findings, sha256 = _verified(card, tier, path, options, collect)
    columns = _named(path, read_file(path))
    done = columns.terminated if columns.done is None else columns.done
    if done is None:
        raise DataError(f"{path}: no done; found {', '.join(columns.present)}")
    if columns.truncated is None:
        columns = replace(columns, done=done, terminated=None)
        options = replace(options, done_means=options.done_means or "by-length")
    else:
        columns = replace(columns, done=None, terminated=done)
    default = tier.trajectories and tier.trajectories // (1 if options.split == "train" else 4)
    count = options.trajectories or default
    if count:
        columns = _first(columns, count, path)
    return _source(card, tier, options, columns, sha256, findings)


def _first(columns: Columns, count: int, path: Path) -> Columns:
    """The first `count` trajectories; all of them, with a note, where there are fewer."""
    flags = [f for f in (columns.terminated, columns.truncated, columns.done) if f is not None]
    rows = len(flags[0])
    if any(len(array) != rows for array in columns.arrays().values()):
        return columns  # the verification that follows says which lengths differ
    ends = np.zeros(rows, dtype=bool)
    for flag in flags:
        ends |= _flag(path, "done", flag)
    last = np.nonzero(ends)[0]
    if len(last) < count:
        return columns.with_notes(f"{len(last)} trajectories in the file, {count} asked for")
    cut = int(last[count - 1]) + 1
    kept: dict[str, Any] = {name: array[:cut] for name, array in columns.arrays().items()}
    return replace(columns, **kept).with_notes(f"the first {count} trajectories of {len(last)}")


def _flag(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path}: {name} has dtype {array.dtype}; flags must be 0 or 1")
    flag = array.reshape(-1)
    bad = (flag != 0) & (flag != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{path}: {name} is {flag[row]} in row {row}; flags must be 0 or 1")
    return np.asarray(flag != 0)


def _named(path: Path, arrays: dict[str, np.ndarray]) -> Columns:
    try:
        return from_named(arrays)
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from problem


def _verified(
    card: Card, tier: Tier, path: Path, options: Options, collect: bool
) -> tuple[tuple[Finding, ...], str]:
    """Checksum findings and the file's sha256; raises on a wrong one unless collecting."""
    sha256 = file_hash(path)
    # the published checksums are of the original files, not of copies in another format
    known = path.suffix == Path(str(tier.file)).suffix
    wanted = card.checksum(tier, path.name) if options.verify and known else None
    findings = checksum_findings(path, wanted, sha256, strict=True)
    if has_error(findings) and not collect:
        raise DataError(findings[0].message)
    return findings, sha256


def _source(
    card: Card,
    tier: Tier,
    options: Options,
    columns: Columns,
    sha256: str,
    findings: tuple[Finding, ...],
) -> Source:
    return Source(
        columns,
        card_spec(card, tier, options),
        card_provenance(card, tier, sha256),
        options,
        findings,
    )
