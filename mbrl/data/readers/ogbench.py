"""OGBench's files for goals (arXiv 2410.20092; ogbench/utils.py at 1d41409): trajectories without
rewards and without goals, `NAME.npz` to train on and `NAME-val.npz` beside it."""

from pathlib import Path
from typing import Any

import numpy as np

from mbrl.data.cards import Card, Tier
from mbrl.data.columns import Columns, Options, from_named
from mbrl.data.issues import has_error
from mbrl.data.readers.files import file_hash, read_file
from mbrl.data.readers.named import (
    Source,
    card_provenance,
    card_spec,
    checksum_findings,
    obtain,
)
from mbrl.errors import DataError
from mbrl.goals import goal_fields
from mbrl.types import Spec

NEEDED = ("observations", "actions", "terminals")


def is_goal_file(arrays: dict[str, np.ndarray]) -> bool:
    """Whether the arrays are those of a file for goals."""
    return {*NEEDED, "qpos"} <= arrays.keys() and not {"rewards", "reward", "masks"} & arrays.keys()


def goal_columns(path: Path, arrays: dict[str, np.ndarray]) -> Columns:
    """Steps with goals: an observation is followed by the last one of its trajectory, which stands
    for the goal, and every step is paid -1.

    The last row of a trajectory, where `terminals` is 1, holds what it ended in and no step; the
    trajectory is cut there, not ended. Raises `DataError` for images, and for trajectories of one
    row.
    """
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise DataError(f"{path}: no {', '.join(missing)}; found {', '.join(arrays)}")
    obs, action = arrays["observations"], arrays["actions"]
    last = arrays["terminals"].reshape(-1) != 0
    if obs.ndim != 2 or action.ndim != 2:
        raise DataError(
            f"{path}: observations {obs.shape} and actions {action.shape}; this reader takes one "
            "row of numbers a step, not images or discrete actions"
        )
    if not len(obs) == len(action) == len(last) or len(last) == 0 or not last[-1]:
        raise DataError(
            f"{path}: {len(obs)} observations, {len(action)} actions and {len(last)} terminals, of "
            "which the last must be 1: the file is cut short"
        )
    ends = np.nonzero(last)[0]
    if (np.diff(ends, prepend=-1) < 2).any():
        raise DataError(f"{path}: a trajectory has one row and no step; drop it")
    keep = ~last
    obs = obs.astype(np.float32, copy=False)
    goal = obs[ends[np.searchsorted(ends, np.nonzero(keep)[0])]]
    following = np.roll(obs, -1, 0)[keep]
    stop = np.roll(last, -1)[keep]
    columns = from_named(
        {
            "obs": np.concatenate([obs[keep], goal], 1),
            "action": action[keep].astype(np.float32, copy=False),
            "reward": np.full(int(keep.sum()), -1.0, np.float32),
            "next_obs": np.concatenate([following, goal], 1),
            "terminated": np.zeros_like(stop),
            "truncated": stop,
        }
    )
    return columns.with_notes(
        f"OGBench's layout for goals: {len(ends)} trajectories, whose last observation stands for "
        "the goal; every step is paid -1"
    )


def goal_spec(task: str, columns: Columns) -> Spec:
    """The spec of such columns: the goal is a whole observation; actions in [-1, 1]."""
    own, size = columns.need("obs").shape[1] // 2, columns.need("action").shape[1]
    fields: dict[str, Any] = goal_fields(own, tuple(range(own)))
    bounds = {"action_low": (-1.0,) * size, "action_high": (1.0,) * size}
    return Spec(task=task, action_dim=size, **bounds, **fields)


def read_ogbench(card: Card, tier: Tier, options: Options, collect: bool) -> Source:
    """The training file, or with split="val" the one beside it."""
    name = Path(str(tier.file))
    file = str(name) if options.split == "train" else f"{name.stem}-val{name.suffix}"
    path = obtain(card, tier, file, options)
    sha256 = file_hash(path)
    wanted = card.checksum(tier, path.name) if options.verify else None
    findings = checksum_findings(path, wanted, sha256, strict=True)
    if has_error(findings) and not collect:
        raise DataError(findings[0].message)
    columns = goal_columns(path, read_file(path))
    spec, origin = card_spec(card, tier, options), card_provenance(card, tier, sha256)
    return Source(columns, spec, origin, options, findings)
