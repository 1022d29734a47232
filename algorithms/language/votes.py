"""Votes on answers: how many each question gets, and how good the commonest answer is then."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from algorithms.language.evaluation import solved
from algorithms.language.measures.answers import meanings
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient.schedulers.self_consistency import (
    OnlineSelfConsistencyAllocation,
    OnlineSelfConsistencyConfig,
    SelfConsistencyAllocation,
    fitted_curves,
    majority_right,
)

SURE = 0.75  # of a pool that is one answer, from which a question counts as sure
ALLOCATIONS = ("uniform", "pets", "pets-online")


@dataclass(frozen=True)
class Votes:
    """Of votes with `budget` answers a question on average: how many there were (`used`), those of
    questions of whose whole pool one answer has three quarters or more (`sure`, NaN without one)
    and of the others (`torn`), the share of questions whose vote is that of their whole pool
    (`agrees`), and that of right votes (`accuracy`)."""

    allocation: str
    budget: int
    used: float
    sure: float
    torn: float
    agrees: float
    accuracy: float


class VotePool:
    """`samples` answers to each question, by what they mean, in the groups of `answers`."""

    def __init__(self, parts: Sequence[Rollouts], samples: int) -> None:
        said: list[Hashable] = [answer for part in parts for answer in meanings(part)]
        self.answers = [said[i : i + samples] for i in range(0, len(said), samples)]
        self.right: list[list[bool]] = solved(parts, samples).tolist()

    def __len__(self) -> int:
        return len(self.answers)

    def shuffled(self, rng: np.random.Generator) -> list[list[tuple[Hashable, bool]]]:
        """The answers to each question, each with whether it is right, in a random order."""
        orders = [rng.permutation(len(own)) for own in self.answers]
        return [
            [(own[i], good[i]) for i in order]
            for own, good, order in zip(self.answers, self.right, orders, strict=True)
        ]


def voted(pool: VotePool, allocation: str, budget: int, *, draws: int = 20, seed: int = 0) -> Votes:
    """The mean of `draws` votes on the second half of the pool's questions, whose answers come in
    random orders, the same for every allocation; "pets-online" fits its curves on the first half.
    Raises `ConfigError` for another allocation, a budget beyond the pool, and fewer than two
    questions."""
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation of votes", allocation, ALLOCATIONS)
    half, most = len(pool) // 2, min(map(len, pool.answers), default=0)
    if half < 1 or not 1 <= budget <= most:
        raise ConfigError(
            f"budget {budget} of {most} answers to {len(pool)} questions; give two questions or "
            "more, and a budget from 1 to the number of votes"
        )
    rng = np.random.default_rng(seed)
    online = fitted(pool, half, budget, most, seed) if allocation == "pets-online" else None
    used, agrees, accuracy = np.zeros((draws, len(pool) - half)), 0.0, 0.0
    for draw in range(draws):
        votes = pool.shuffled(rng)[half:]
        if online is not None:
            wanted = [online.wanted([answer for answer, _ in own]) for own in votes]
            counts = [min(n, len(own)) for n, own in zip(wanted, votes, strict=True)]
        elif allocation == "pets":
            counts = allocated(votes, budget)
        else:
            counts = [budget] * len(votes)
        used[draw] = counts
        shown = [own[:n] for own, n in zip(votes, counts, strict=True)]
        agrees += float(
            np.mean(
                [lead(a) == lead(b) for a, b in zip(shown, pool_votes(pool)[half:], strict=True)]
            )
        )
        accuracy += float(np.mean([majority_right(own) for own in shown]))
    sure = np.array([leads(own) >= SURE for own in pool.answers[half:]])
    means = used.mean(0)
    return Votes(
        allocation,
        budget,
        float(means.mean()),
        float(means[sure].mean()) if sure.any() else float("nan"),
        float(means[~sure].mean()) if not sure.all() else float("nan"),
        agrees / draws,
        accuracy / draws,
    )


def fitted(
    pool: VotePool, half: int, budget: int, most: int, seed: int
) -> OnlineSelfConsistencyAllocation:
    """What the first `half` of the questions teach."""
    config = OnlineSelfConsistencyConfig(
        budget=float(budget), warm_up=min(4, budget), most=max(most, budget + 1)
    )
    rng = np.random.default_rng(seed + 1)
    parts = pool.answers[:half], pool.right[:half]
    curves, shares = fitted_curves(*parts, config.warm_up, rng)
    return OnlineSelfConsistencyAllocation(curves, shares, config)


def allocated(votes: Sequence[Sequence[tuple[Hashable, bool]]], budget: int) -> list[int]:
    """How many of its answers each question gets, `budget` of them on average, one after the
    other."""
    names = [list(dict.fromkeys(answer for answer, _ in own)) for own in votes]
    one = SelfConsistencyAllocation(len(votes), max(2, *map(len, names)))
    counts = [0] * len(votes)
    for _ in range(budget * len(votes)):
        able = (q for q in one.next(len(votes)).tolist() if counts[q] < len(votes[q]))
        q = next(able)
        answer = names[q].index(votes[q][counts[q]][0])
        one.observe(torch.tensor([q]), torch.tensor([answer]))
        counts[q] += 1
    return counts


def lead(votes: Sequence[tuple[Hashable, bool]]) -> Hashable:
    """The commonest answer, of equally common ones the first."""
    counts: dict[Hashable, int] = {}
    for answer, _ in votes:
        counts[answer] = counts.get(answer, 0) + 1
    return max(counts, key=lambda answer: counts[answer])


def leads(answers: Sequence[Hashable]) -> float:
    """The share of the commonest answer."""
    return max(map(list(answers).count, set(answers))) / len(answers)


def pool_votes(pool: VotePool) -> list[list[tuple[Hashable, bool]]]:
    """All answers, as they were given."""
    return [
        list(zip(own, good, strict=True))
        for own, good in zip(pool.answers, pool.right, strict=True)
    ]
