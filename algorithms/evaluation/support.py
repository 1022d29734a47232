"""How far the actions of a policy are from those that were logged at like observations.

Distances are of observations and actions each divided by their standard deviation in the data. A
policy's action at a state is compared with the actions logged at the nearest observations of other
episodes; how far logged actions themselves are from theirs is the yardstick.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mbrl.data.neighbours import Neighbours
from mbrl.errors import DataError
from mbrl.types import Dataset

NEIGHBOURS = 20
ROWS = 2000  # states looked at, spread evenly over the data
LIBRARY = 50_000  # logged rows searched for neighbours
QUANTILE = 0.95  # of the logged actions' own distances: beyond it an action is outside
RARE = 0.02  # a discrete action less frequent among neighbours is outside


@dataclass(frozen=True)
class Support:
    """`outside`: share of states at which the policy's action is farther from the logged ones than
    all but 5 % of the logged actions are from each other (discrete: at which fewer than 2 % of the
    neighbours did the same); `logged_outside`: that share of the logged actions themselves.
    `distances` [N]: of the policy's actions, over the yardstick (1 is its edge); of discrete
    actions, 1 less their share among the neighbours."""

    outside: float
    logged_outside: float
    distances: np.ndarray


def support(actions: Tensor, dataset: Dataset, rows: np.ndarray) -> Support:
    """Of `actions` [M, A] (or [M]) in the task's units, those of a policy at the observations of
    `rows` [M] of `dataset`. Raises `DataError` for a dataset of a single episode: it has no others
    to compare with; and for actions that are not finite."""
    if not bool(torch.isfinite(actions).all()):
        raise DataError("the policy gives actions that are not finite; has its fit diverged?")
    data = dataset.transitions
    spans = data.episodes()
    if len(spans) < 2:
        raise DataError(
            "support compares a row with those of other episodes, and the data has one episode"
        )
    episode = np.repeat(np.arange(len(spans)), [b - a for a, b in spans])
    obs = data.obs.cpu().numpy().astype(np.float64)
    obs = obs / _spread(obs)
    logged = _actions(data.action, dataset)
    mine = _actions(actions, dataset)
    scale = _spread(logged)
    near = _neighbours(obs, episode, rows)
    known = near >= 0
    there = logged[np.maximum(near, 0)] / scale  # [M, k, A]
    pair = (mine / scale, logged[rows] / scale)
    if dataset.spec.discrete:
        shares = [
            ((there[:, :, 0] == own) & known).sum(1) / np.maximum(known.sum(1), 1)
            for own in (p[:, :1] for p in pair)
        ]
        outside = [float((share < RARE).mean()) for share in shares]
        return Support(outside[0], outside[1], 1.0 - shares[0])
    distances = []
    for own in pair:
        apart = np.linalg.norm(there - own[:, None], axis=2)
        distances.append(np.where(known, apart, np.inf).min(1))
    compared = distances[1][np.isfinite(distances[1])]
    edge = max(float(np.quantile(compared, QUANTILE)) if len(compared) else 0.0, 1e-6)
    outside = [float((d > edge).mean()) for d in distances]
    return Support(outside[0], outside[1], distances[0] / edge)


def rows_to_look_at(dataset: Dataset) -> np.ndarray:
    """Row numbers [M], spread evenly over the data."""
    return np.unique(np.linspace(0, len(dataset) - 1, ROWS).astype(np.int64))


def _neighbours(obs: np.ndarray, episode: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows [M, k] of the nearest observations of other episodes, -1 where there are fewer."""
    library = np.unique(np.linspace(0, len(obs) - 1, LIBRARY).astype(np.int64))
    asked = min(4 * NEIGHBOURS, len(library))
    index = library[Neighbours(obs[library]).nearest(obs[rows], asked)]
    foreign = episode[index] != episode[rows][:, None]
    order = np.argsort(~foreign, axis=1, kind="stable")[:, :NEIGHBOURS]
    picked = np.take_along_axis(index, order, 1)
    picked = np.where(np.take_along_axis(foreign, order, 1), picked, -1)
    # Where the nearest are of the row's own episode (entries that are fixed in an episode, say),
    # those of the others are asked for by themselves.
    short = (picked < 0).any(1) | (picked.shape[1] < NEIGHBOURS)
    for own in np.unique(episode[rows][short]):
        others, mine = library[episode[library] != own], short & (episode[rows] == own)
        count = min(NEIGHBOURS, len(others), picked.shape[1])
        if count > 0:
            picked[mine, :count] = others[Neighbours(obs[others]).nearest(obs[rows[mine]], count)]
    return picked


def _spread(values: np.ndarray) -> np.ndarray:
    std = values.std(axis=0)
    return np.where(std > 0, std, 1.0)


def _actions(action: Tensor, dataset: Dataset) -> np.ndarray:
    values = action.detach().cpu().to(torch.float64).numpy()
    return values.reshape(len(values), -1)
