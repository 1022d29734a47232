"""What a set of vector returns is worth: hypervolume, expected utility, loss of utility, as in
"Hyperparameter Optimization for Multi-Objective Reinforcement Learning" (Felten, Gareev, Talbi,
Danoy, arXiv 2310.16487) and its code (LucasAlegre/morl-baselines)."""

import itertools

import numpy as np

from mbrl.errors import ConfigError


def non_dominated(points: np.ndarray) -> np.ndarray:
    """The rows of `points` [N, M] that no other row dominates (as good in all objectives and better
    in one), each once, sorted."""
    unique = np.unique(_checked(points), axis=0)
    as_good = (unique[:, None] >= unique[None]).all(-1)
    better = (unique[:, None] > unique[None]).any(-1)
    kept: np.ndarray = unique[~(as_good & better).any(0)]
    return kept


def hypervolume(points: np.ndarray, reference: np.ndarray) -> float:
    """Volume of what the rows of `points` [N, M] dominate above `reference` [M], exactly: slabs
    along the last objective, in two objectives a sum of rectangles."""
    reference = np.asarray(reference, float)
    points = _checked(points)
    if reference.shape != points.shape[1:]:
        raise ConfigError(
            f"reference has the shape {reference.shape}, points have {points.shape[1]} objectives"
        )
    if np.isnan(reference).any():
        raise ConfigError(f"reference is {reference}; give a number for each objective")
    above = points[(points > reference).all(1)]
    if len(above) == 0:
        return 0.0
    if points.shape[1] == 1:
        return float(above.max() - reference[0])
    # From the highest value of the last objective down, each slab as deep as to the next value.
    order = above[np.argsort(-above[:, -1])]
    floors = [*order[1:, -1], reference[-1]]
    slabs = [
        float(row[-1] - floor) * hypervolume(order[: k + 1, :-1], reference[:-1])
        for k, (row, floor) in enumerate(zip(order, floors, strict=True))
        if row[-1] > floor
    ]
    return sum(slabs)


def weights_on_simplex(objectives: int, divisions: int) -> np.ndarray:
    """Evenly spread weights [N, objectives] that sum to 1: all multiples of 1 / `divisions`."""
    if objectives < 1 or divisions < 1:
        raise ConfigError(
            f"objectives is {objectives} and divisions {divisions}; both must be at least 1"
        )
    counts = itertools.product(range(divisions + 1), repeat=objectives - 1)
    rows = [(*row, divisions - sum(row)) for row in counts if sum(row) <= divisions]
    return np.array(rows, float) / divisions


def expected_utility(points: np.ndarray, weights: np.ndarray) -> float:
    """Mean over `weights` [W, M] of the best w . v among the rows v of `points` [N, M]."""
    return float((weights @ _checked(points).T).max(1).mean())


def utility_loss(points: np.ndarray, best: np.ndarray, weights: np.ndarray) -> float:
    """The most that a weight of `weights` [W, M] loses with `points` [N, M] in the place of the
    front `best` [K, M]."""
    lost = (weights @ _checked(best).T).max(1) - (weights @ _checked(points).T).max(1)
    return float(lost.max())


def _checked(points: np.ndarray) -> np.ndarray:
    array = np.asarray(points, float)
    if array.ndim != 2 or len(array) == 0 or not np.isfinite(array).all():
        raise ConfigError(
            f"points have the shape {array.shape}; they must be one row or more of finite vector "
            "returns, [N, objectives]"
        )
    return array
