"""Rewards by assignment: predicted tool calls matched with those of a reference, one to one
(Hungarian) or softly (entropic optimal transport). "MatchTIR: Fine-Grained Supervision for
Tool-Integrated Reasoning via Bipartite Matching"."""

import numpy as np
from scipy.special import logsumexp

from mbrl.errors import ConfigError


def hard_match(scores: np.ndarray, penalty: float = 0.0) -> np.ndarray:
    """[P] rewards from `scores` [P, G] of predicted against reference calls: the score with the
    call that the best assignment gives each, less `penalty` for predictions that are left over.
    The best assignment has the largest sum of scores."""
    from scipy.optimize import linear_sum_assignment  # here, as it takes long to import

    scores = checked(scores)
    rewards = np.full(len(scores), -penalty)
    rows, columns = linear_sum_assignment(scores, maximize=True)
    rewards[rows] = scores[rows, columns]
    return rewards


def soft_match(scores: np.ndarray, temperature: float = 0.1, sweeps: int = 200) -> np.ndarray:
    """[P] rewards: each prediction's scores [P, G] weighted by its row of the transport plan, whose
    rows then sum to 1. As the temperature falls, `hard_match` for P = G."""
    plan = transport(checked(scores), temperature, sweeps)
    weights: np.ndarray = plan * len(scores)
    result: np.ndarray = (weights * scores).sum(1)
    return result


def transport(scores: np.ndarray, temperature: float = 0.1, sweeps: int = 200) -> np.ndarray:
    """[P, G]: the plan with rows of 1 / P and columns of 1 / G that makes its mean score plus
    `temperature` times its entropy largest, by Sinkhorn's sweeps in logarithms; rows are exact, as
    the last sweep is over them."""
    if temperature <= 0:
        raise ConfigError(f"temperature {temperature}: it is above 0; small is nearly hard")
    scores = checked(scores)
    if scores.size == 0:
        return np.zeros(scores.shape)
    log_plan = scores / temperature
    rows, columns = -np.log(len(scores)), -np.log(scores.shape[1])
    for _ in range(sweeps):
        log_plan = log_plan - logsumexp(log_plan, axis=0, keepdims=True) + columns
        log_plan = log_plan - logsumexp(log_plan, axis=1, keepdims=True) + rows
    plan: np.ndarray = np.exp(log_plan)
    return plan


def checked(scores: np.ndarray) -> np.ndarray:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2:
        raise ConfigError(
            f"scores are of shape {table.shape}; give [predictions, references], also if one is 0"
        )
    return table
