"""PETS: how many answers each question gets when the majority is returned (self-consistency).
Inference alone; no rewards, no gradient."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.config import Count, NonNegative, Positive, Settings
from mbrl.errors import CheckpointError, ConfigError

POINTS = 200  # at which the distribution of the largest share is summed up
FEWEST = 3  # answers from which a curve of agreement is fitted; the authors' code


def agreement(counts: Tensor, prior: float = 1.0) -> Tensor:
    """float64 [Q]: how sure it is that the leading answer is the one that most answers would be,
    after `counts` [Q, A] of each answer: the probability that its share is the largest under the
    Dirichlet posterior of all A shares. It is that of the largest of gamma variables, P(x_1 > all
    others), of which the authors' code draws 500."""
    alpha = counts.double() + prior
    return torch.tensor([_largest(row) for row in alpha.tolist()], dtype=torch.float64)


def _largest(alpha: Sequence[float]) -> float:
    """P that the variable of the largest of `alpha` is above all others."""
    from scipy.special import gammainc, gammaincinv  # here, as it takes long to import

    kinds = Counter(alpha)
    lead = max(kinds)
    kinds[lead] -= 1
    nodes, weights = np.polynomial.legendre.leggauss(POINTS)
    at = gammaincinv(lead, (nodes + 1) / 2)  # quantiles of the leading one
    below = np.ones(POINTS)
    for value, count in kinds.items():
        below *= gammainc(value, at) ** count
    return float((below * weights).sum() / 2)


@dataclass(frozen=True)
class SelfConsistencyConfig(Settings):
    prior: NonNegative = 1.0  # count of every answer before any was given


class SelfConsistencyAllocation:
    """Offline allocation: one answer after the other to the question whose agreement an answer can
    raise most (optimistic knowledge gradient: the best of one more vote for any of its answers).
    `questions` with up to `answers` different answers each.

    "PETS: A Principled Framework Towards Optimal Trajectory Allocation for Efficient Test-Time
    Self-Consistency", as in the authors' code (github.com/ZDCSlab/PETS).
    """

    def __init__(
        self, questions: int, answers: int, config: SelfConsistencyConfig = SelfConsistencyConfig()
    ) -> None:
        if questions < 1 or answers < 2 or config.prior <= 0:
            raise ConfigError(
                f"{questions} questions, {answers} answers, prior {config.prior:g}; give at least "
                "1 question, 2 answers and a prior above 0"
            )
        self.config = config
        self.counts = torch.zeros(questions, answers, dtype=torch.float64)
        self.known: dict[tuple[float, ...], float] = {}  # gains by sorted counts

    def gain(self) -> Tensor:
        """float64 [Q]: the largest rise of agreement by one more answer."""
        ordered = self.counts.sort(1, descending=True).values
        gains = [self._gain(tuple(row)) for row in ordered.tolist()]
        return torch.tensor(gains, dtype=torch.float64)

    def _gain(self, counts: tuple[float, ...]) -> float:
        if counts not in self.known:
            alpha = [c + self.config.prior for c in counts]
            places = {value: i for i, value in enumerate(alpha)}.values()  # one of equal ones
            better = [_largest([a + (i == k) for i, a in enumerate(alpha)]) for k in places]
            self.known[counts] = max(better) - _largest(alpha)
        return self.known[counts]

    def next(self, count: int = 1) -> Tensor:
        """int64 [min(count, Q)]: the questions that come next, each for one answer; those without
        an answer first."""
        gain = torch.where(self.counts.sum(1) == 0, torch.inf, self.gain())
        return gain.argsort(descending=True, stable=True)[:count]

    def observe(self, questions: Tensor, answers: Tensor) -> None:
        """Counts `answers` [M] (0 to answers - 1) to `questions` [M]."""
        ones = torch.ones(len(questions), dtype=torch.float64)
        self.counts.index_put_((questions, answers), ones, accumulate=True)

    def majority(self) -> Tensor:
        """int64 [Q]: the most frequent answer, of equal ones the first."""
        return self.counts.argmax(1)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["counts"].shape != self.counts.shape:
            raise CheckpointError(
                f"counts have shape {tuple(state['counts'].shape)}, here "
                f"{tuple(self.counts.shape)}; load them for the same questions"
            )
        self.counts = state["counts"].clone()


@dataclass(frozen=True)
class OnlineSelfConsistencyConfig(Settings):
    budget: Positive = 8.0  # answers per question, on average over the stream
    warm_up: Count = 4  # answers to every question, by which it is easy or hard
    most: Count = 64  # answers to one question


class OnlineSelfConsistencyAllocation:
    """Questions come one after the other. Each gets `warm_up` answers; it is easy if these are all
    the same, else hard, and gets as many answers as its kind has (`budgets`, easy and hard), which
    are read off `curves`: the chance that k answers agree with the right one, Phi(a sqrt(k) + b),
    for either kind, of which `shares` are the shares of questions. One more answer goes to the kind
    where the chance rises most for what it costs, until that would leave the budget.

    The online case of "PETS: A Principled Framework Towards Optimal Trajectory Allocation for
    Efficient Test-Time Self-Consistency", as in the authors' code.
    """

    def __init__(
        self,
        curves: Sequence[tuple[float, float]],
        shares: Sequence[float],
        config: OnlineSelfConsistencyConfig = OnlineSelfConsistencyConfig(),
    ) -> None:
        if not config.warm_up <= config.budget < config.most:
            raise ConfigError(f"{config}; give warm_up <= budget < most")
        if len(curves) != 2 or len(shares) != 2 or min(shares) < 0 or not sum(shares) > 0:
            raise ConfigError(
                f"{len(curves)} curves and shares {tuple(shares)}; give two of each, easy and hard"
            )
        self.config, self.curves = config, [(float(a), float(b)) for a, b in curves]
        self.shares = [float(s) / sum(shares) for s in shares]
        self.budgets = self.solve()

    def accuracy(self, kind: int, k: int) -> float:
        a, b = self.curves[kind]
        return normal(a * math.sqrt(k) + b)

    def solve(self) -> list[int]:
        """Answers to an easy and to a hard question."""
        config = self.config
        counts = [config.warm_up, config.warm_up]
        while True:
            spent = sum(s * n for s, n in zip(self.shares, counts, strict=True))
            able = [k for k in (0, 1) if self.shares[k] > 0 and counts[k] < config.most]
            # What an answer brings is its kind's share times the rise, and so is what it costs.
            rises = [self.accuracy(k, counts[k] + 1) - self.accuracy(k, counts[k]) for k in able]
            if not able or max(rises) <= 0:
                return counts
            best = able[rises.index(max(rises))]
            if spent + self.shares[best] > config.budget + 1e-9:
                return counts
            counts[best] += 1

    def wanted(self, answers: Sequence[Any]) -> int:
        """How many answers the question gets that has had these, `warm_up` or more."""
        first = list(answers[: self.config.warm_up])
        if len(first) < self.config.warm_up:
            return self.config.warm_up
        return self.budgets[0 if len(set(first)) == 1 else 1]


def fitted_curves(
    answers: Sequence[Sequence[Any]],
    right: Sequence[Sequence[bool]],
    warm_up: int,
    rng: np.random.Generator,
    draws: int = 64,
) -> tuple[list[tuple[float, float]], list[float]]:
    """Curves and shares of easy and hard questions for `OnlineSelfConsistencyAllocation`, from many
    `answers` to each question of a training set and whether they are `right`. Of every question the
    share of right majorities of k answers, k from 3, over `draws` draws without replacement; its
    (a, b) by least squares of the inverse normal distribution on sqrt(k); a kind's curve is their
    mean, each weighted by how often the question's first answers make it one of the kind. Raises
    `ConfigError` with fewer answers than 5."""
    if min(map(len, answers), default=0) < max(FEWEST + 2, warm_up):
        raise ConfigError(
            f"{min(map(len, answers), default=0)} answers to a question; give at least "
            f"{max(FEWEST + 2, warm_up)}"
        )
    pairs, easy = [], []
    for own, good in zip(answers, right, strict=True):
        sizes = np.arange(FEWEST, len(own) + 1)
        wins, same = np.zeros(len(sizes)), 0
        for _ in range(draws):
            order = rng.permutation(len(own))
            same += len({own[i] for i in order[:warm_up]}) == 1
            wins += [majority_right([(own[i], good[i]) for i in order[:k]]) for k in sizes]
        # Half a draw on either side, so that no chance is 0 or 1.
        score = [inverse_normal((w + 0.5) / (draws + 1)) for w in wins]
        slope, height = np.polyfit(np.sqrt(sizes), score, 1)
        pairs.append((float(slope), float(height)))
        easy.append(same / draws)
    weight = np.array([easy, [1 - e for e in easy]])
    means = []
    for kind in weight:
        whole = max(kind.sum(), 1e-12)
        means.append(tuple(float((kind * [p[i] for p in pairs]).sum() / whole) for i in (0, 1)))
    return [(a, b) for a, b in means], [float(kind.mean()) for kind in weight]


def majority_right(votes: Sequence[tuple[Any, bool]]) -> bool:
    """Whether the commonest answer is right, of equally common ones the first."""
    counts = Counter(answer for answer, _ in votes)
    first = dict(reversed(list(votes)))
    return bool(first[counts.most_common(1)[0][0]])


def normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def inverse_normal(p: float) -> float:
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))
