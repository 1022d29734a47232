"""What acts in a policy's place outside its data: a fixed action, or a clone of the logged ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from algorithms.bc import BC
from experiments.export.graph import FixedAction
from mbrl.errors import ConfigError, unknown_name
from mbrl.types import Dataset, Spec

UPDATES = 3000  # of the clone

Wanted = str | int | float | Sequence[float] | np.ndarray | torch.Tensor | None


def fallback_of(wanted: Wanted, spec: Spec, dataset: Dataset | None) -> nn.Module | None:
    """None for None; the policy of behaviour cloning for "cloned"; else the action: numbers (with
    commas between them, in text) in the task's units, or the name of a discrete one (where it
    has none, its number).
    Raises `ConfigError` for what is no action of the task."""
    if wanted is None:
        return None
    wanted = plain(wanted)
    if dataset is None:
        raise ConfigError(
            "a fallback needs the data: it acts where the out-of-data score is above 1"
        )
    if wanted == "cloned":
        agent = BC(spec, seed=0).fit(dataset, UPDATES, callbacks=[])
        policy: nn.Module = agent.policy
        return policy
    if spec.action_mask:
        raise ConfigError(
            f"task {spec.task!r} masks actions, and a fixed one may be forbidden where it is "
            "needed; use the fallback cloned"
        )
    return FixedAction(fixed_action(wanted, spec))


def plain(wanted: Any) -> Any:
    """An array or tensor as numbers, anything else as it is."""
    return wanted.tolist() if isinstance(wanted, np.ndarray | np.generic | torch.Tensor) else wanted


def fixed_action(wanted: Any, spec: Spec) -> torch.Tensor:
    """The action that text, a number or numbers mean: [A] float32, or a single int64."""
    if spec.discrete:
        names = spec.action_names or tuple(map(str, range(int(spec.num_actions or 0))))
        text = str(wanted)
        if text in names:
            return torch.tensor(names.index(text))
        raise unknown_name("action for the fallback", text, names)
    parts = wanted.split(",") if isinstance(wanted, str) else wanted
    try:
        values = [float(part) for part in (parts if isinstance(parts, list | tuple) else [parts])]
    except (TypeError, ValueError):
        raise ConfigError(
            f"fallback is {wanted!r}; allowed: cloned, or {spec.action_dim} numbers with commas "
            "between them, in the task's units"
        ) from None
    bounds = list(zip(spec.action_low, spec.action_high, strict=True))
    inside = len(values) == len(bounds) and all(
        low <= value <= high for value, (low, high) in zip(values, bounds, strict=True)
    )
    if not inside:
        raise ConfigError(
            f"fallback is {wanted!r}; an action of task {spec.task!r} is {spec.action_dim} numbers "
            f"from {list(spec.action_low)} to {list(spec.action_high)}"
        )
    return torch.tensor(values)


def describe_fallback(wanted: Wanted) -> str | None:
    """A sentence for the card."""
    if wanted is None:
        return None
    if isinstance(wanted, str) and wanted == "cloned":
        return f"the policy of behaviour cloning, {UPDATES} updates on the data"
    return f"the action {plain(wanted)}"
