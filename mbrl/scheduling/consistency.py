"""PETS: how many answers each question gets when the majority is returned (self-consistency).
Inference alone; no rewards, no gradient."""

from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import betainc, betaln, xlog1py, xlogy
from torch import Tensor

from mbrl.errors import CheckpointError, ConfigError


def agreement(counts: Tensor, prior: float = 1.0) -> Tensor:
    """float64 [Q]: how sure it is that the leading answer is the one that most answers would be,
    after `counts` [Q, A] of each answer: P(x > 1/2) for x of the law Beta(first + prior, second +
    prior), the two most frequent answers under a Dirichlet prior."""
    top = counts.double().topk(2, 1).values + prior
    return torch.from_numpy(betainc(top[:, 1].numpy(), top[:, 0].numpy(), 0.5))


@dataclass(frozen=True)
class PETSConfig:
    prior: float = 1.0  # count of every answer before any was given


class PETS:
    """Offline allocation: one answer after the other to the question whose agreement an answer can
    raise most (optimistic knowledge gradient: the better of one more vote for the first and one
    more for the second answer). `questions` with up to `answers` different answers each.

    "PETS: A Principled Framework Towards Optimal Trajectory Allocation for Efficient Test-Time
    Self-Consistency".
    """

    def __init__(self, questions: int, answers: int, config: PETSConfig = PETSConfig()) -> None:
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


def majority_rate(share: Tensor, answers: Tensor) -> Tensor:
    """How often the majority of `answers` answers (odd numbers) is the answer that each is with
    probability `share`, broadcast: the upper tail of a binomial law."""
    need, n = (answers.double() + 1) / 2, answers.double()
    p = share.double()
    return torch.from_numpy(betainc(need.numpy(), (n - need + 1).numpy(), p.numpy()))


@dataclass(frozen=True)
class OnlinePETSConfig:
    budget: float = 8.0  # answers per question, on average over the stream
    most: int = 65  # answers to one question
    fewest: int = 3
    grid: int = 20  # difficulties that are told apart
    law: tuple[float, float] = (2.0, 1.0)  # Beta law of the leading answer's share above one half
    observed: float = 0.05  # rate at which the law follows the stream; 0: it stays


class OnlinePETS:
    """Questions come one after the other. A question of difficulty s (the leading answer's share)
    is worth n(s) answers: as many as each pay at least `price` in the rate of right majorities. The
    price is the one at which n(s) is `budget` on average over difficulties. `enough` stops a
    question when it has as many answers as n is on average under the posterior of s from its
    votes."""

    def __init__(self, config: OnlinePETSConfig = OnlinePETSConfig()) -> None:
        odd = config.fewest % 2 and config.most % 2
        if not odd or not 1 <= config.fewest <= config.budget <= config.most or config.grid < 2:
            raise ConfigError(
                f"{config}; give odd numbers 1 <= fewest <= budget <= most and a grid of at least 2"
            )
        if not 0 <= config.observed <= 1 or min(config.law) <= 0:
            raise ConfigError(f"{config}; give observed from 0 to 1 and a law above 0")
        self.config = config
        middle = (torch.arange(config.grid, dtype=torch.float64) + 0.5) / config.grid
        self.shares = 0.5 + 0.5 * middle
        a, b = config.law
        x = middle.numpy()
        law = torch.from_numpy(xlogy(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b)).exp()
        self.law = law / law.sum()
        sizes = torch.arange(config.fewest, config.most + 1, 2)
        rate = majority_rate(self.shares[:, None], sizes)
        self.sizes, self.pays = sizes, rate.diff(dim=1) / 2  # [grid, sizes - 1], per answer
        self.solve()

    def answers_at(self, price: float) -> Tensor:
        """float64 [grid]: answers that each difficulty is worth at `price`."""
        paid = (self.pays >= price).long().cumprod(1).sum(1)
        return self.sizes[paid].double()

    def solve(self) -> None:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            over = float((self.law * self.answers_at(middle)).sum()) > self.config.budget
            low, high = (middle, high) if over else (low, middle)
        self.price, self.worth = high, self.answers_at(high)

    def posterior(self, counts: Tensor) -> Tensor:
        """float64 [grid] of a question's difficulty, given `counts` [A] of its answers. Votes that
        are not for the leading answer count against it, whatever they are for."""
        lead, total = float(counts.max()), float(counts.sum())
        s = self.shares.numpy()
        # The leader among the votes may be either of the two: both ways are added.
        ways = [xlogy(k, s) + xlog1py(total - k, -s) for k in (lead, total - lead)]
        shift = max(float(way.max()) for way in ways)
        like = sum(torch.from_numpy(way - shift).exp() for way in ways)
        weight = self.law * like
        return weight / weight.sum()

    def enough(self, counts: Tensor) -> bool:
        """Whether the question with `counts` [A] is answered often enough."""
        n = int(counts.sum())
        if n < self.config.fewest:
            return False
        return n >= self.config.most or n >= float((self.posterior(counts) * self.worth).sum())

    def finish(self, counts: Tensor) -> None:
        """A question is done: the law of difficulties, and with it the price, follow."""
        rate = self.config.observed
        self.law = (1 - rate) * self.law + rate * self.posterior(counts)
        self.solve()

    def state_dict(self) -> dict[str, Any]:
        return {"law": self.law.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["law"].shape != self.law.shape:
            raise CheckpointError("the law has another grid; load it with the same configuration")
        self.law = state["law"].clone()
        self.solve()
