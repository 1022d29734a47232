"""PETS: how many answers each question gets when the majority is returned (self-consistency).
Inference alone; no rewards, no gradient."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, NonNegative, Positive, Probability, Settings
from mbrl.errors import CheckpointError, ConfigError


def agreement(counts: Tensor, prior: float = 1.0) -> Tensor:
    """float64 [Q]: how sure it is that the leading answer is the one that most answers would be,
    after `counts` [Q, A] of each answer: P(x > 1/2) for x of Beta(first + prior, second +
    prior), the two most frequent answers under a Dirichlet prior."""
    top = counts.double().topk(2, 1).values + prior
    from scipy.special import betainc  # here, as it takes long to import

    return torch.from_numpy(betainc(top[:, 1].numpy(), top[:, 0].numpy(), 0.5))


@dataclass(frozen=True)
class SelfConsistencyConfig(Settings):
    prior: NonNegative = 1.0  # count of every answer before any was given


class SelfConsistencyAllocation:
    """Offline allocation: one answer after the other to the question whose agreement an answer can
    raise most (optimistic knowledge gradient: the better of one more vote for the first and one
    more for the second answer). `questions` with up to `answers` different answers each.

    "PETS: A Principled Framework Towards Optimal Trajectory Allocation for Efficient Test-Time
    Self-Consistency".
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

    def gain(self) -> Tensor:
        """float64 [Q]: the largest rise of agreement by one more answer."""
        top = self.counts.topk(2, 1).values
        now = agreement(top, self.config.prior)
        better = []
        for vote in range(2):
            voted = top.clone()
            voted[:, vote] += 1
            better.append(agreement(voted, self.config.prior) - now)
        return torch.maximum(*better)

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
    most: Count = 64  # answers to one question
    fewest: CountOrZero = 2
    grid: Count = 32  # difficulties that are told apart
    law: tuple[Positive, Positive] = (
        1.0,
        1.0,
    )  # Beta law of difficulty, 0 a tie and 1 sure
    observed: Probability = 0.05  # rate at which distribution and price follow it; 0: they stay
    renew: Count = 10  # questions between two tables of where to stop


class OnlineSelfConsistencyAllocation:
    """Questions come one after the other, and each answer costs `price` in units of the chance that
    the majority is right. A question is answered `enough` when stopping is worth at least as much
    as the best way to go on, under the posterior of its difficulty: the share s of the leading
    answer among the two most frequent ones. The price is the one at which a question costs `budget`
    on average, first by the distribution of difficulties, then by dual steps on the stream's costs.

    The online case of "PETS: A Principled Framework Towards Optimal Trajectory Allocation for
    Efficient Test-Time Self-Consistency".
    """

    def __init__(self, config: OnlineSelfConsistencyConfig = OnlineSelfConsistencyConfig()) -> None:
        if not 1 <= config.fewest <= config.budget < config.most or config.grid < 2:
            raise ConfigError(
                f"{config}; give 1 <= fewest <= budget < most and a grid of at least 2"
            )
        if not 0 <= config.observed <= 1 or min(*config.law, config.renew) <= 0:
            raise ConfigError(
                f"{config}; give observed from 0 to 1, a prior above 0 and renew of at least 1"
            )
        self.config = config
        middle = (torch.arange(config.grid, dtype=torch.float64) + 0.5) / config.grid
        self.shares = 0.5 + 0.5 * middle
        a, b = config.law
        weight = middle ** (a - 1) * (1 - middle) ** (b - 1)
        self.law = weight / weight.sum()
        low, high = 1e-6, 1.0
        for _ in range(20):
            self.price = math.sqrt(low * high)
            self.stops, cost = self.solve(self.price)
            low, high = (self.price, high) if cost > config.budget else (low, self.price)
        self.price = high
        self.stops, _ = self.solve(high)
        self.finished = 0

    def evidence(self) -> Tensor:
        """float64 [most + 1, most + 1]: the chance of one order of a votes for the answer that
        leads in truth and b for the other."""
        votes = torch.arange(self.config.most + 1, dtype=torch.float64)[:, None]
        return (self.shares**votes * self.law) @ ((1 - self.shares) ** votes).T

    def solve(self, price: float) -> tuple[Tensor, float]:
        """(bool [most + 1, most + 1] whether to stop at (a, b) votes, answers to a question on
        average) when each answer costs `price`: backward induction over the number of votes."""
        config, e = self.config, self.evidence()
        both = e + e.T  # either answer may be the one that leads in truth
        right = torch.maximum(e, e.T) / both
        value, stops = right.clone(), torch.ones_like(right, dtype=torch.bool)
        for n in range(config.most - 1, -1, -1):
            a = torch.arange(n + 1)
            b = n - a
            up = both[a + 1, b] / both[a, b]
            go = up * value[a + 1, b] + (1 - up) * value[a, b + 1] - price
            stops[a, b] = (right[a, b] >= go) & (n >= config.fewest)
            value[a, b] = torch.where(stops[a, b], right[a, b], go)
        reach, cost = torch.zeros_like(right), 0.0
        reach[0, 0] = 1.0
        for n in range(config.most):
            a = torch.arange(n + 1)
            b = n - a
            going = torch.where(stops[a, b], 0.0, reach[a, b])
            cost += float(going.sum())
            up = both[a + 1, b] / both[a, b]
            reach[a + 1, b] += going * up
            reach[a, b + 1] += going * (1 - up)
        return stops, cost

    def enough(self, counts: Tensor) -> bool:
        """Whether the question with `counts` [A] of its answers is answered often enough."""
        first, second = (int(x) for x in counts.topk(2).values)
        return int(counts.sum()) >= self.config.most or bool(self.stops[first, second])

    def finish(self, counts: Tensor) -> None:
        """A question is done: the distribution of difficulties and the price follow."""
        first, second = (float(x) for x in counts.topk(2).values)
        rate, over = self.config.observed, float(counts.sum()) / self.config.budget - 1
        if rate == 0:
            return
        like = self.law * (
            self.shares**first * (1 - self.shares) ** second
            + self.shares**second * (1 - self.shares) ** first
        )
        self.law = (1 - rate) * self.law + rate * like / like.sum()
        self.price = min(1.0, max(1e-6, self.price * math.exp(rate * over)))
        self.finished += 1
        if self.finished % self.config.renew == 0:
            self.stops, _ = self.solve(self.price)

    def state_dict(self) -> dict[str, Any]:
        return {
            "law": self.law.clone(),
            "price": self.price,
            "stops": self.stops.clone(),
            "finished": self.finished,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["law"].shape != self.law.shape:
            raise CheckpointError(
                "the state is of another grid; load it with the same configuration"
            )
        self.law, self.stops = state["law"].clone(), state["stops"].clone()
        self.price, self.finished = float(state["price"]), int(state["finished"])
