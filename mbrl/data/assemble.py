"""From verified columns to a `Dataset`, and the readers of things already in memory: arrays and
data frames."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.data.checks import inspect
from mbrl.data.columns import OPTIONAL, Columns, Options, from_named, unmasked
from mbrl.data.issues import raise_errors
from mbrl.data.task_spec import given_spec
from mbrl.errors import DataError
from mbrl.types import Dataset, Provenance, Spec, Transitions

DROPPED = (
    "next observations taken from the next row (D4RL's own view): truncated rows and the last row "
    "are dropped; what a terminated row led to is not known (no dynamics are learned from it)"
)


def build(
    columns: Columns,
    spec: Spec | None,
    options: Options,
    provenance: Provenance,
    *,
    owned: bool = False,
) -> Dataset:
    """Verify and convert; the first error found is raised as a `DataError`. `owned`: nobody else
    has the arrays, so that the dataset may keep them."""
    seen = inspect(columns, spec, options)
    raise_errors(seen.findings, provenance.card)
    columns, spec = seen.columns, seen.spec
    if spec is None:
        raise DataError(f"{provenance.card}: the task could not be determined")
    notes = [f.message for f in seen.findings]
    if options.next_obs == "next-row":
        columns = next_row_view(columns, provenance.card)
        notes.append(DROPPED)
    elif columns.next_obs is None:
        columns, note = following_rows(columns, provenance.card)
        notes.append(note)
    if options.clip_actions and not spec.discrete:
        bounds = (np.asarray(spec.action_low), np.asarray(spec.action_high))
        columns = replace(columns, action=columns.need("action").clip(*bounds))
    provenance = replace(provenance, notes=(*provenance.notes, *notes))
    return Dataset(_transitions(columns, spec, owned), spec, provenance)


def next_row_view(columns: Columns, source: str) -> Columns:
    """D4RL's `qlearning_dataset`: the next row's observation, without truncated rows and without
    the last row; the row before a dropped one becomes the truncated end of its episode."""
    obs, truncated = columns.need("obs"), columns.need("truncated").copy()
    keep = ~truncated
    keep[-1] = False
    if not keep.any():
        raise DataError(
            f"{source}: no row is left after dropping truncated rows and the last row, which have "
            "no next observation"
        )
    ends_here = np.zeros_like(truncated)
    ends_here[:-1] = ~keep[1:] & ~columns.need("terminated")[:-1]
    following = np.concatenate([obs[1:], obs[-1:]])
    changes: dict[str, Any] = {name: array[keep] for name, array in columns.arrays().items()}
    changes["next_obs"], changes["truncated"] = following[keep], ends_here[keep]
    changes["next_known"] = ~columns.need("terminated")[keep]
    return replace(columns, **changes)


def following_rows(columns: Columns, source: str) -> tuple[Columns, str]:
    """Next observations from the next row of the same episode, with a note on what it took.

    The last row of an episode that was cut has none: it is dropped, and the row before it becomes
    the truncated end. The last row of an episode that terminated is kept, since nothing after it
    counts; its next observation repeats its own and is marked as not known.
    """
    obs, terminated = columns.need("obs"), columns.need("terminated")
    ends = terminated | columns.need("truncated")
    keep = ~ends | terminated
    if not keep.any():
        raise DataError(
            f"{source}: no row is left: every episode has one row, was cut after it, and there are "
            "no next observations"
        )
    truncated = columns.need("truncated") & keep
    truncated[:-1] |= ~keep[1:] & ~ends[:-1]
    following = np.concatenate([obs[1:], obs[-1:]])
    following[terminated] = obs[terminated]
    changes: dict[str, Any] = {name: array[keep] for name, array in columns.arrays().items()}
    changes["next_obs"], changes["truncated"] = following[keep], truncated[keep]
    changes["next_known"] = ~terminated[keep]
    note = (
        f"no next observations: taken from the next row of the episode; {int((~keep).sum())} last "
        "rows of episodes that were cut are dropped, what the last rows of the "
        f"{int(terminated.sum())} terminated episodes led to is not known"
    )
    return replace(columns, **changes), note


def _transitions(columns: Columns, spec: Spec, owned: bool) -> Transitions:
    def tensor(name: str, dtype: torch.dtype) -> Tensor:
        kinds = {torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}
        array: np.ndarray = np.ascontiguousarray(columns.need(name), dtype=kinds[dtype])
        # torch must not share memory with the caller's array, nor with one that is read-only
        shared = not owned and np.may_share_memory(array, columns.need(name))
        return torch.from_numpy(array.copy() if shared or not array.flags.writeable else array)

    kinds = {
        "duration": np.float32,
        "next_known": np.bool_,
        "behaviour_prob": np.float32,
        "expert": np.bool_,
        "segment": np.int64,
    }
    held = {name: getattr(columns, name) for name in OPTIONAL}
    optional = {  # a state as it is, but in the byte order of this machine
        name: torch.from_numpy(np.array(v, dtype=kinds.get(name, v.dtype.newbyteorder("="))))
        for name, v in held.items()
        if v is not None
    }
    return Transitions(
        obs=tensor("obs", torch.float32),
        action=tensor("action", torch.int64 if spec.discrete else torch.float32),
        reward=tensor("reward", torch.float32),
        next_obs=tensor("next_obs", torch.float32),
        terminated=tensor("terminated", torch.bool),
        truncated=tensor("truncated", torch.bool),
        **optional,
        **_masks(columns, spec),
    )


def _masks(columns: Columns, spec: Spec) -> dict[str, Tensor]:
    """The action masks, where there are any. Raises `DataError` for masks of another shape, or
    that forbid the action of their row."""
    given = {"action_mask": columns.action_mask, "next_action_mask": columns.next_action_mask}
    masks = {name: mask for name, mask in given.items() if mask is not None}
    if not masks:
        return {}
    if len(masks) == 1:
        raise DataError("action_mask and next_action_mask come together; one is missing")
    action = columns.need("action").reshape(-1).astype(np.int64)
    for name, mask in masks.items():
        if not spec.discrete or mask.shape != (len(action), spec.num_actions):
            raise DataError(
                f"{name} has shape {mask.shape}; masks are for discrete actions, [rows, actions], "
                f"here [{len(action)}, {spec.num_actions}]"
            )
    allowed = masks["action_mask"][np.arange(len(action)), action].astype(bool)
    if not allowed.all():
        row = int(np.argmin(allowed))
        raise DataError(f"row {row}: action {action[row]} is one that its action_mask forbids")
    return {name: torch.from_numpy(mask.astype(bool)) for name, mask in masks.items()}


def _array(name: str, value: Any) -> np.ndarray | None:
    if value is None:
        return None
    try:
        if not isinstance(value, Tensor):
            return unmasked(name, value)
        held = value.float() if value.dtype == torch.bfloat16 else value  # NumPy has no bfloat16
        return held.detach().cpu().numpy()
    except DataError:
        raise
    except ValueError as problem:
        raise DataError(f"not a regular array: {problem}") from problem


def from_arrays(
    obs: Any,
    action: Any,
    reward: Any,
    *,
    terminated: Any = None,
    truncated: Any = None,
    next_obs: Any = None,
    done: Any = None,
    episode: Any = None,
    state: Any = None,
    duration: Any = None,
    next_known: Any = None,
    behaviour_prob: Any = None,
    expert: Any = None,
    segment: Any = None,
    action_mask: Any = None,
    next_action_mask: Any = None,
    provenance: Provenance | None = None,
    **options: Any,
) -> Dataset:
    """A `Dataset` from arrays or tensors in time order, episode after episode.

    `obs`, `next_obs` [N, S]; `action` [N, A] or [N]; `reward` and the flags [N]; where known,
    `duration` [N], the time to the next row in steps (the discount is gamma to its power),
    `next_known` [N], False where what a terminated row led to was not recorded,
    `behaviour_prob` [N], the probability with which each action was chosen, `expert` [N], whether
    the row is of an expert who is to be imitated, `segment` [N], which part of a recording with
    interventions it is of (an index of `mbrl.types.SEGMENTS`), and `action_mask`,
    `next_action_mask` [N, n] of n discrete actions. `options` are those of `load` that concern
    values (`spec`, `discrete`, `done_means`, `horizon`, `next_obs` is the array here, `boundaries`,
    `clip_actions`, `action_low`, `action_high`).
    """
    arrays = {
        "obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": done,
        "terminated": terminated, "truncated": truncated, "episode": episode, "state": state,
        "step_duration": duration, "next_known": next_known, "behaviour_prob": behaviour_prob,
        "action_mask": action_mask, "next_action_mask": next_action_mask, "expert": expert,
        "segment": segment,
    }  # fmt: skip
    chosen = Options.of(options)
    columns = from_named({k: _array(k, v) for k, v in arrays.items() if v is not None})
    return build(columns, given_spec(chosen), chosen, provenance or Provenance(card="arrays"))
