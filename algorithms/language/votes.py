"""Votes on answers: how many each question gets, and how good the commonest answer is then."""

from collections import Counter
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
    """`samples` answers to each question, by what they mean, in the groups of `answers`; questions
    of all levels by turns."""

    def __init__(self, parts: Sequence[Rollouts], samples: int) -> None:
        said: list[Hashable] = [answer for part in parts for answer in meanings(part)]
        right: list[list[bool]] = solved(parts, samples).tolist()
        problems = [p for part in parts for p in part.problems][::samples]
        before: Counter[int] = Counter()  # questions of a level
        turns = []
        for problem in problems:
            turns.append(before[problem.level])
            before[problem.level] += 1
        order = sorted(range(len(problems)), key=turns.__getitem__)
        self.answers = [said[i * samples : (i + 1) * samples] for i in order]
        self.right = [right[i] for i in order]
        self.problems = [problems[i] for i in order]

    def __len__(self) -> int:
        return len(self.answers)

    def halves(self) -> tuple[list[int], list[int]]:
        """Which questions curves are fitted on, and which are voted on. What is asked in one half
        (`Problem.asked`) is not asked in the other, and each has about half of every level. Raises
        `ConfigError` where all ask the same."""
        places: dict[str, list[int]] = {}
        for i, problem in enumerate(self.problems):
            places.setdefault(problem.asked, []).append(i)
        if len(places) < 2:
            raise ConfigError(
                f"{len(self)} problems ask {len(places)} different questions, and votes need 2 or "
                "more, as curves are fitted on others; give more problems, or levels with more"
            )
        halves: tuple[list[int], list[int]] = [], []
        sizes: tuple[Counter[int], Counter[int]] = Counter(), Counter()  # by level
        for own in places.values():
            level = self.problems[own[0]].level
            smaller = min((0, 1), key=lambda at: (sizes[at][level], len(halves[at])))
            halves[smaller].extend(own)
            sizes[smaller].update(self.problems[i].level for i in own)
        return sorted(halves[0]), sorted(halves[1])

    def shuffled(self, rng: np.random.Generator) -> list[list[tuple[Hashable, bool]]]:
        """The answers to each question, each with whether it is right, in a random order."""
        orders = [rng.permutation(len(own)) for own in self.answers]
        return [
            [(own[i], good[i]) for i in order]
            for own, good, order in zip(self.answers, self.right, orders, strict=True)
        ]


def voted(pool: VotePool, allocation: str, budget: int, *, draws: int = 20, seed: int = 0) -> Votes:
    """The mean of `draws` votes on the second of the pool's `halves`, whose answers come in random
    orders, the same for every allocation; "pets-online" fits its curves on the first one. Raises
    `ConfigError` for another allocation, a budget beyond the pool, and fewer than two different
    questions."""
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation of votes", allocation, ALLOCATIONS)
    (first, second), most = pool.halves(), min(map(len, pool.answers))
    if not 1 <= budget <= most:
        raise ConfigError(
            f"budget {budget} of {most} answers to a question; give one from 1 to the number of "
            "votes"
        )
    rng = np.random.default_rng(seed)
    online = fitted(pool, first, budget, most, seed) if allocation == "pets-online" else None
    used, agrees, accuracy = np.zeros((draws, len(second))), 0.0, 0.0
    whole = pool_votes(pool)
    for draw in range(draws):
        mixed = pool.shuffled(rng)
        votes = [mixed[i] for i in second]
        if online is not None:
            wanted = [online.wanted([answer for answer, _ in own]) for own in votes]
            counts = [min(n, len(own)) for n, own in zip(wanted, votes, strict=True)]
        elif allocation == "pets":
            counts = allocated(votes, budget)
        else:
            counts = [budget] * len(votes)
        used[draw] = counts
        shown = [own[:n] for own, n in zip(votes, counts, strict=True)]
        same = [lead(own) == lead(whole[i]) for own, i in zip(shown, second, strict=True)]
        agrees += float(np.mean(same))
        accuracy += float(np.mean([majority_right(own) for own in shown]))
    sure = np.array([leads(pool.answers[i]) >= SURE for i in second])
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
    pool: VotePool, half: Sequence[int], budget: int, most: int, seed: int
) -> OnlineSelfConsistencyAllocation:
    """What the questions of this `half` teach."""
    config = OnlineSelfConsistencyConfig(
        budget=float(budget), warm_up=min(4, budget), most=max(most, budget + 1)
    )
    rng = np.random.default_rng(seed + 1)
    parts = [pool.answers[i] for i in half], [pool.right[i] for i in half]
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
