"""A learner on the log of another policy, whose probabilities stand in it: learning from every row
with an estimate by importance weights, or replay that rejects what the learner did not do."""

import numpy as np
import torch
from torch import Tensor

from algorithms.bandits.base import BanditLearner, Rows
from algorithms.evaluation.bandit import LoggedDecisions
from mbrl.config import Count, check
from mbrl.errors import DataError

AHEAD = 32  # rows whose probabilities are computed together


def progressive(learner: BanditLearner, log: Rows, batch: int = 1) -> LoggedDecisions:
    """Go through the log in its order: before each `batch` of rows the learner says what it would
    do, then it learns them. The result's weights are its probabilities over those of the log, and
    the rewards that it expected are `q` and `v`, fitted on earlier rows alone; take it to
    `algorithms.evaluation.bandit.evaluate`. The estimate is of the learner while it learns (the
    progressive value), and unbiased by `ipw` and `dr` since each row is weighted before it is
    learned. Raises `DataError` for probabilities that are none."""
    check({"batch": batch}, {"batch": Count})
    log = learner.checked(log)
    require_probabilities(log.probability)
    parts: list[list[Tensor]] = [[], [], []]
    for rows in _batches(log, batch):
        p = learner.probabilities(rows.context).double()
        q = learner.oracle.predict(rows.context).mean(0).double()
        taken = rows.action[:, None]
        weight = p.gather(1, taken)[:, 0] / rows.probability.double()
        for part, column in zip(
            parts, (weight, q.gather(1, taken)[:, 0], (p * q).sum(1)), strict=True
        ):
            part.append(column)
        learner.update(rows)
    return LoggedDecisions(
        np.asarray(log.reward.double()), *(np.asarray(torch.cat(part)) for part in parts)
    )


def rejection(learner: BanditLearner, log: Rows, generator: torch.Generator) -> Rows:
    """Replay by rejection: a row is taken with probability min(1, pi(a|x) / (b(a|x) M)), M = 1 over
    the least probability in the log, and the learner learns those alone, one by one. For a log of
    uniform decisions it is the replay of "Unbiased Offline Evaluation of Contextual-bandit-based
    News Article Recommendation Algorithms" (arXiv 1003.5956): the rows taken are distributed as if
    the learner had decided. Returns them, which may be none."""
    log = learner.checked(log)
    require_probabilities(log.probability)
    least = log.probability.min()
    draws = torch.rand(len(log.action), generator=generator)
    taken: list[int] = []
    first = 0
    while first < len(draws):  # the learner stays as it is until a row is taken
        rows = Rows(*(column[first : first + AHEAD] for column in log))
        p = learner.probabilities(rows.context).gather(1, rows.action[:, None])[:, 0]
        hits = draws[first : first + AHEAD] < p * least / rows.probability
        if not hits.any():
            first += AHEAD
            continue
        at = first + int(hits.int().argmax())
        learner.update(Rows(*(column[at : at + 1] for column in log)))
        taken.append(at)
        first = at + 1
    return Rows(*(column[taken] for column in log))


def _batches(log: Rows, size: int) -> list[Rows]:
    return [Rows(*parts) for parts in zip(*(column.split(size) for column in log), strict=True)]


def require_probabilities(probability: Tensor) -> None:
    """Raise `DataError` unless all are above 0 and at most 1."""
    if not ((probability > 0) & (probability <= 1)).all():
        raise DataError(
            f"logged probabilities lie in [{probability.min():g}, {probability.max():g}]; each "
            "must be above 0 and at most 1: log the probability with which the action was taken"
        )
