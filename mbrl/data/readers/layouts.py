"""Files of other libraries whose arrays have this library's names and another meaning."""

from pathlib import Path

import numpy as np

from mbrl.data.columns import Columns, from_named
from mbrl.data.readers.ogbench import goal_columns, is_goal_file
from mbrl.errors import DataError

D3RLPY = ("create_mask", "mask_size", "discrete_action", "episode_terminals")


def read_layout(path: Path, arrays: dict[str, np.ndarray]) -> Columns | None:
    """Columns of a file in OGBench's or d3rlpy's layout; None for any other."""
    if "episode_terminals" in arrays and "discrete_action" in arrays:
        return _d3rlpy(path, arrays)
    if "terminals" in arrays and "masks" in arrays:
        return _ogbench(arrays)
    if is_goal_file(arrays):
        return goal_columns(path, arrays)
    return None


def _d3rlpy(path: Path, arrays: dict[str, np.ndarray]) -> Columns:
    """d3rlpy before version 1: a row holds an observation, the action there and the reward that
    was paid on arrival, so the reward of an action stands one row below. The last row of an episode
    holds what it ended in and no step; `terminals` says whether the task ended there."""
    if "version" in arrays:
        raise DataError(
            f"{path}: written by d3rlpy {arrays['version']}; this reader knows the files without a "
            "version. Load it in d3rlpy and pass its arrays to from_arrays"
        )
    missing = [k for k in ("observations", "actions", "rewards", "terminals") if k not in arrays]
    lengths = {len(v) for k, v in arrays.items() if k not in D3RLPY[:3] and v.ndim}
    if missing or len(lengths) > 1:
        raise DataError(
            f"{path}: not a complete d3rlpy file: "
            + (f"no {', '.join(missing)}" if missing else f"arrays of {sorted(lengths)} rows")
        )
    last = arrays["episode_terminals"].reshape(-1) != 0
    last[-1] = True
    keep = ~last
    before_last = np.concatenate([last[1:], [False]])[keep]
    ended = np.concatenate([arrays["terminals"].reshape(-1)[1:] != 0, [False]])[keep]
    obs, reward = arrays["observations"], arrays["rewards"].reshape(-1)
    columns = from_named(
        {
            "obs": obs[keep],
            "action": arrays["actions"][keep],
            "reward": np.concatenate([reward[1:], reward[:1]])[keep],
            "next_obs": np.concatenate([obs[1:], obs[:1]])[keep],
            "terminated": before_last & ended,
            "truncated": before_last & ~ended,
        }
    )
    return columns.with_notes(
        f"d3rlpy's layout: rewards stand one row below their action; {int(last.sum())} episodes, "
        "whose last rows hold no step"
    )


def _ogbench(arrays: dict[str, np.ndarray]) -> Columns:
    """OGBench's single-task view: `terminals` ends a trajectory, `masks` is 0 where the task ended
    (the goal was reached) and nothing is bootstrapped."""
    over = arrays["masks"].reshape(-1) == 0
    stop = arrays["terminals"].reshape(-1) != 0
    named = {k: v for k, v in arrays.items() if k not in ("masks", "terminals")}
    columns = from_named({**named, "terminated": over, "truncated": stop & ~over})
    return columns.with_notes(
        f"OGBench's layout: {int(over.sum())} rows with mask 0 terminated, {int(stop.sum())} "
        "trajectories end"
    )
