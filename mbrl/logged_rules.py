"""What an agent asks of logged rows before it learns from them."""

from typing import Any

from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Spec, Transitions


def require_match(spec: Spec, dataset: Dataset) -> None:
    """Raise `ConfigError` unless the dataset's observations and actions are those of `spec`, in
    number and, where both have names, in these."""
    mine = (spec.obs_dim, spec.action_dim, spec.num_actions)
    theirs = (dataset.spec.obs_dim, dataset.spec.action_dim, dataset.spec.num_actions)
    if mine != theirs:
        raise ConfigError(
            f"agent and dataset differ in (obs_dim, action_dim, num_actions): {mine} against "
            f"{theirs}; build the agent from dataset.spec"
        )
    for kind in ("obs_names", "action_names"):
        named, others = getattr(spec, kind), getattr(dataset.spec, kind)
        if named and others and named != others:
            raise ConfigError(
                f"agent and dataset differ in {kind}: {list(named)} against {list(others)}; give "
                "data with the agent's names in its order, or build the agent from dataset.spec"
            )
    if len(dataset) == 0:
        raise DataError(f"dataset {dataset.provenance.card!r} has no transitions")


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


def drawn_obs(rows: Transitions) -> Tensor:
    """The observations of the rows that may be drawn."""
    return rows.obs if rows.weight is None else rows.obs[rows.weight > 0]
