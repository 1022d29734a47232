"""Datasets from data frames and from stable-baselines3's replay buffers, duck-typed: neither
package is imported."""

from dataclasses import replace
from typing import Any

import numpy as np

from mbrl.data.assemble import build
from mbrl.data.columns import Columns, Options, from_named
from mbrl.data.episode_ends import steps_since_end
from mbrl.data.readers.files import group_columns
from mbrl.data.task_spec import given_spec
from mbrl.errors import DataError
from mbrl.types import Dataset, Provenance, Spec


def from_dataframe(frame: Any, *, provenance: Provenance | None = None, **options: Any) -> Dataset:
    """A `Dataset` from a table (pandas, polars) with columns obs_0.., action_0.., reward,
    terminated, truncated, and where there are, next_obs_0.. and episode. `options`: see `load`."""
    chosen = Options.of(options)
    try:
        names = [str(name) for name in frame.columns]
        if len(set(names)) < len(names):
            raise DataError(f"the table has two columns of one name; its columns are {names}")
        columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    except (AttributeError, KeyError, TypeError) as problem:
        raise DataError(f"not a table with named columns: {problem}") from problem
    named = from_named(group_columns(columns, "table"))
    return build(named, given_spec(chosen), chosen, provenance or Provenance(card="table"))


def from_sb3(
    buffer: Any,
    *,
    scaled_actions: bool = True,
    provenance: Provenance | None = None,
    **options: Any,
) -> Dataset:
    """A `Dataset` from a stable-baselines3 `ReplayBuffer`, environment after environment, each in
    time order.

    stable-baselines3's off-policy algorithms store continuous actions scaled to [-1, 1]; they are
    scaled back to the bounds of the buffer's action space (`scaled_actions=False` where you filled
    the buffer with actions in the task's own units). Its `dones` include time limits; `timeouts`
    tell them apart.
    """
    chosen = Options.of(options)
    space = buffer.action_space
    kind = type(space).__name__
    if kind.startswith("Multi"):
        raise DataError(
            f"the actions of the buffer are {kind}; one discrete action or a vector of continuous "
            "ones can be used. Number the combinations (one Discrete space) before recording"
        )
    if len(buffer.obs_shape) > 1:
        raise DataError(
            f"the observations of the buffer have shape {tuple(buffer.obs_shape)}; the algorithms "
            "take vectors: encode an image as one before recording"
        )
    obs, action, reward, next_obs, done, timeout = _rows(buffer)
    discrete = hasattr(space, "n")
    spec = given_spec(chosen) or _sb3_spec(buffer, chosen)
    if discrete:
        action = action.reshape(len(action)) - int(getattr(space, "start", 0))
    elif scaled_actions:
        low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        peak = float(np.abs(action).max())
        if peak > 1.0 + 1e-5:
            raise DataError(
                f"actions reach {peak:.6g}, but scaled actions lie in [-1, 1]; say "
                "scaled_actions=False for a buffer in the task's own units"
            )
        action = low + 0.5 * (action + 1.0) * (high - low)
    arrays = {
        "obs": obs, "action": action, "reward": reward, "next_obs": next_obs,
        "terminated": done & ~timeout, "truncated": timeout,
    }  # fmt: skip
    columns = _end_each(from_named(arrays), buffer)
    if not buffer.handle_timeout_termination:
        columns = _split_done(columns, done, spec, chosen)
    return build(columns, spec, chosen, provenance or Provenance(card="stable-baselines3"))


def _rows(buffer: Any) -> tuple[np.ndarray, ...]:
    """Fields of the buffer [N, ...], oldest row first, one environment after the other."""
    if getattr(buffer, "optimize_memory_usage", False):
        raise DataError(
            "a buffer with optimize_memory_usage=True has overwritten the last observation of "
            "each episode; record with optimize_memory_usage=False"
        )
    if isinstance(buffer.observations, dict):
        raise DataError("the observations of the buffer are a dict; flatten them before recording")
    order = _order(buffer)
    if not len(order):
        raise DataError("the replay buffer is empty")

    def rows(value: np.ndarray) -> np.ndarray:
        # [time, env, ...] to [env * time, ...]: an episode must lie in consecutive rows
        picked: np.ndarray = np.swapaxes(np.asarray(value)[order], 0, 1)
        return picked.reshape(-1, *picked.shape[2:])

    count = len(order) * buffer.n_envs
    return (
        rows(buffer.observations).reshape(count, -1),
        rows(buffer.actions),
        rows(buffer.rewards),
        rows(buffer.next_observations).reshape(count, -1),
        rows(buffer.dones) != 0,
        rows(buffer.timeouts) != 0,
    )


def _order(buffer: Any) -> np.ndarray:
    if buffer.full:  # a ring: the oldest row is the next to be overwritten
        return np.roll(np.arange(buffer.buffer_size), -buffer.pos)
    return np.arange(buffer.pos)


def _end_each(columns: Columns, buffer: Any) -> Columns:
    """Truncate the last row of each environment, where its recording stopped."""
    steps = len(_order(buffer))
    last = np.arange(1, buffer.n_envs + 1) * steps - 1
    truncated = columns.need("truncated").copy()
    truncated[last] |= ~columns.need("terminated")[last]
    return replace(columns, truncated=truncated)


def _split_done(columns: Columns, done: np.ndarray, spec: Spec, options: Options) -> Columns:
    """A buffer with handle_timeout_termination=False holds merged flags: split as the caller
    says, or refuse."""
    horizon = options.horizon or spec.max_episode_steps
    if options.done_means == "terminated":
        return columns
    if options.done_means is None or horizon is None:
        raise DataError(
            "the buffer was made with handle_timeout_termination=False, so its `dones` do not say "
            'whether the task ended. Say done_means="terminated", or done_means="by-length" with '
            "horizon="
        )
    ends = done | columns.need("truncated")
    limit = done & (steps_since_end(ends) + 1 >= horizon)
    truncated = (columns.need("truncated") & ~done) | limit
    return replace(columns, terminated=done & ~limit, truncated=truncated)


def _sb3_spec(buffer: Any, options: Options) -> Spec:
    space = buffer.action_space
    common: dict[str, Any] = {
        "task": "stable-baselines3",
        "obs_dim": int(np.prod(buffer.obs_shape)),
        "max_episode_steps": options.horizon,
    }
    if hasattr(space, "n"):
        return Spec(num_actions=int(space.n), **common)
    low, high = (np.asarray(b, np.float64).reshape(-1) for b in (space.low, space.high))
    return Spec(
        action_dim=len(low), action_low=tuple(low.tolist()), action_high=tuple(high.tolist()),
        **common,
    )  # fmt: skip
