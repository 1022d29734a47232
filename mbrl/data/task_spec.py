"""Which task a dataset belongs to: from the caller, from a card, or, for a bare file, from the
data itself, never by guessing bounds that the data contradict."""

from typing import Any

import numpy as np

from mbrl.data.cards import spec_of_task
from mbrl.data.columns import Columns, Options
from mbrl.errors import ConfigError, DataError
from mbrl.types import Spec

MOST_ACTIONS = 100_000  # discrete ones that data alone can say there are


def given_spec(options: Options) -> Spec | None:
    """The spec that the caller named, by value or by task id."""
    if options.spec is None or isinstance(options.spec, Spec):
        return options.spec
    if not isinstance(options.spec, str):
        raise ConfigError(f"spec is {options.spec!r}; give a Spec or the id of a task")
    known = spec_of_task(options.spec)
    if known is not None:
        return known
    from mbrl.tasks import make  # only a task that no card describes has to be built

    return make(options.spec).spec


def resolve_spec(
    columns: Columns, spec: Spec | None, options: Options
) -> tuple[Spec, tuple[str, ...]]:
    """`spec`, or one made from tidy columns and the caller's options, with notes on what was
    assumed."""
    if spec is not None:
        return spec, ()
    action = columns.need("action")
    width = action.reshape(len(action), -1).shape[1]
    sizes: dict[str, Any] = {"task": "file", "obs_dim": columns.need("obs").shape[1]}
    discrete = options.discrete
    if discrete is None:
        # integers written as floats stay continuous: only the dtype decides
        discrete = action.dtype.kind in "iub" and width == 1
    if discrete:
        count = max(int(np.max(action)) + 1, 2)
        if count > MOST_ACTIONS:
            raise DataError(
                f"discrete actions reach {count - 1}, and more than {MOST_ACTIONS} of them are not "
                "inferred; give spec= with num_actions, or discrete=False and the bounds"
            )
        text = f"no spec given: discrete actions 0 to {count - 1}, as found in the data"
        never = sorted(set(range(count)) - set(np.unique(action).astype(int).tolist()))
        if never:
            text += (
                f"; never taken: {', '.join(map(str, never[:8]))}{', ...' * (len(never) > 8)}. A "
                "policy may choose those; number the actions from 0 without gaps where there are "
                "no such actions"
            )
        spec = Spec(num_actions=count, max_episode_steps=options.horizon, **sizes)
        return spec, (text,)
    low, high = bound(options.action_low, width), bound(options.action_high, width)
    notes: tuple[str, ...] = ()
    if low is None or high is None:
        if np.abs(action).max() > 1.0 + 1e-5:
            peak = float(np.abs(action).max())
            raise DataError(
                f"the bounds of the actions are not known and actions reach {peak:.6g}; give "
                "spec=, or action_low= and action_high="
            )
        low, high = (-1.0,) * width, (1.0,) * width
        notes = ("no spec given: action bounds taken as -1 and 1, which all actions respect",)
    spec = Spec(
        action_dim=width,
        action_low=low,
        action_high=high,
        max_episode_steps=options.horizon,
        **sizes,
    )
    return spec, notes


def bound(value: tuple[float, ...] | float | None, width: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    if isinstance(value, int | float):
        return (float(value),) * width
    if len(value) != width:
        raise DataError(f"an action bound has {len(value)} entries, actions have {width}")
    return tuple(float(v) for v in value)
