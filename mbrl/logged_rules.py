"""What an agent asks of logged rows before it learns from them."""

import hashlib
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Spec, Transitions, require_entries

SHOWN = 50_000  # rows that a dataset is told by


def require_match(spec: Spec, dataset: Dataset) -> None:
    """Raise `ConfigError` unless the dataset's observations and actions are those of `spec`, in
    number and, where both have names, in these."""
    require_entries(spec, dataset.spec, "dataset", "build the agent from dataset.spec")
    if len(dataset) == 0:
        raise DataError(f"dataset {dataset.provenance.card!r} has no transitions")


def with_bounds_of(spec: Spec, dataset: Dataset) -> Dataset:
    """The dataset with the action bounds of `spec`, widened where logged actions go beyond them:
    what an agent is worth does not depend on the bounds that a log was read with, and none of its
    actions is cut to them."""
    if dataset.spec.discrete:
        return dataset
    action = dataset.transitions.action.double().cpu()
    low, high = (torch.tensor(b, dtype=torch.float64) for b in (spec.action_low, spec.action_high))
    slack = 1e-5 * (high - low)  # float32 rounding of a bound
    least, most = action.min(0).values, action.max(0).values
    low = torch.where(least < low - slack, least, low)
    high = torch.where(most > high + slack, most, high)
    bounded = replace(
        dataset.spec, action_low=tuple(low.tolist()), action_high=tuple(high.tolist())
    )
    return replace(dataset, spec=bounded)


def require_rows(dataset: Dataset, model: Any, algorithm: str) -> None:
    """Raise `ConfigError` for steps of different length, or rows with weights, where the `model`
    of the `algorithm` is not None: it would be fitted to all of them alike."""
    if model is None:
        return
    name = dataset.provenance.card
    if dataset.transitions.duration is not None:
        raise ConfigError(
            f"the steps of {name} differ in length and the world model of {algorithm} predicts "
            "steps of one length; use an algorithm without a world model (iql, td3_bc, edac, ...), "
            "or import the log without `step`"
        )
    if dataset.transitions.weight is not None:
        raise ConfigError(
            f"the rows of {name} have weights (imagined ones among them, say), and the model of "
            f"{algorithm} would be fitted to all alike; use an algorithm without one (iql, td3_bc, "
            "edac, ...), or the real rows alone"
        )


def rows_mark(rows: Transitions) -> str:
    """What tells `rows` from others: a hash of how many there are, and of every column of up to
    SHOWN of them, evenly spread (files that are mapped may have too many to read them all)."""
    count = len(rows)
    at = torch.linspace(0, max(count - 1, 0), min(count, SHOWN), dtype=torch.float64)
    few = rows.select(at.round().long())
    hashed = hashlib.sha256(str(count).encode())
    for part in fields(few):
        value = getattr(few, part.name)
        if isinstance(value, Tensor):
            hashed.update(part.name.encode())
            hashed.update(value.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def require_no_others(agent: Any, dataset: Dataset) -> str:
    """The mark of the dataset's rows. Raises `ConfigError` where the agent has others already, with
    which it would go on: those of another dataset, or experience alone; and where it learned from
    others before it was saved or copied, since it would keep its model of them."""
    mark, name = rows_mark(dataset.transitions), type(agent).__name__
    source = getattr(agent.source, "real", agent.source)
    known = agent.source.logged
    if known == 0 and getattr(source, "online", False):
        raise ConfigError(
            f"this {name} has experience of its own and would not see the {len(dataset)} rows of "
            f"{dataset.provenance.card}; fit an agent to logged data before it acts"
        )
    # Learners of goals leave out rows whose next observation is not known.
    counts = (len(dataset), len(dataset.transitions.with_known_next()))
    other = agent.rows_mark not in (None, mark)
    if other or (known and known not in counts):
        which = f"has {known} rows of" if known else "learned from"
        raise ConfigError(
            f"this {name} {which} another dataset and would go on with what it has of that (rows, "
            f"world model, moments), not with the {len(dataset)} rows of {dataset.provenance.card};"
            " make a new agent (mbrl.continuation.take_over gives it the networks of this one)"
        )
    return mark


def drawn_obs(rows: Transitions) -> Tensor:
    """The observations of the rows that may be drawn."""
    return rows.obs if rows.weight is None else rows.obs[rows.weight > 0]
