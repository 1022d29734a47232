"""Histories, bundles and pairs, against loops."""

import numpy as np
import pytest

from algorithms.language.measures.groups import Bundles, Histories, Pairs
from algorithms.language.tasks import Problem
from tests.algorithms.language.cases import at_turns, learner, lenient, part_of, told, whole

RANGE = Problem("guess 1-8 in 5", 8, {"low": 1, "high": 8, "sought": 6, "limit": 5}, state="1-8")


def sums(*levels: int) -> list[Problem]:
    return [Problem(f"{i}+1=", level, {"answer": i + 1}) for i, level in enumerate(levels)]


def test_histories_of_states() -> None:
    agent = learner("guessing", "hgpo")
    other = Problem("guess 1-8 in 4", 8, dict(RANGE.facts) | {"limit": 4}, state="1-8")
    chats = [
        (RANGE, ["4", "x", "7", "6"]),
        (RANGE, ["x", "4", "7", "6"]),
        (RANGE, ["4", "7", "6"]),
        (other, ["4", "x", "7", "6"]),
    ]
    found = part_of(agent, Histories).measure(told(agent, chats))
    states = [
        ["1-8", "5-8", "5-8", "5-6"],
        ["1-8", "1-8", "5-8", "5-6"],
        ["1-8", "5-8", "5-6"],
        ["1-8", "5-8", "5-8", "5-6"],
    ]
    for k in (2, 3):
        ids = at_turns(found, found.data.groups[f"history_{k}"])
        assert found.data.groups[f"history_{k}"].max() < found.data.mask.numel()
        flat = [
            (set(turn), (chats[i][0].prompt, *states[i][max(0, n - k + 1) : n + 1]))
            for i, row in enumerate(ids)
            for n, turn in enumerate(row)
        ]
        for a, history in flat:
            assert len(a) == 1
            for b, past in flat:
                assert (a == b) == (history == past)


def test_bundles_and_the_quantiles_of_their_papers() -> None:
    agent = learner("addition", "riskpo", prompts=7, group=3)
    agent.task = lenient(agent.task)
    quantiles = None
    for _ in range(3):
        found = agent.sample_round()
        found = part_of(agent, Bundles).measure(found)
        bundle, paper = (whole(found, found.data.groups[k]) for k in ("bundle", "paper"))
        assert bundle == [0] * 21 and paper == [0, 1, 2] * 7
        earned = np.array([row[-1].reward for row in found.replies]).reshape(7, 3)
        scores = earned.sum(0)
        if quantiles is None:
            quantiles = np.quantile(scores, [0.2, 0.8])
        else:
            below = [np.mean(scores < q) for q in quantiles]
            quantiles = quantiles + 0.1 * (np.array([0.2, 0.8]) - below)
        for name, value in zip(("quantile_low", "quantile_high"), quantiles, strict=True):
            assert whole(found, found.data.signals[name]) == pytest.approx([value] * 21)


def test_bundles_are_of_about_five() -> None:
    agent = learner("addition", "riskpo", prompts=12, group=1)
    found = part_of(agent, Bundles).measure(agent.sample_round())
    assert whole(found, found.data.groups["bundle"]) == [0] * 6 + [1] * 6
    agent = learner("addition", "riskpo", prompts=13, group=1)
    found = part_of(agent, Bundles).measure(agent.sample_round())
    assert whole(found, found.data.groups["bundle"]) == [0] * 5 + [1] * 4 + [2] * 4


def test_pairs_of_a_hard_and_an_easy_prompt() -> None:
    agent = learner("addition", "weighted_grpo", pool=8)
    problems, part = sums(1, 2, 1, 2, 4), part_of(agent, Pairs)
    right = [(p, [str(p.facts["answer"])]) for p in problems]
    wrong = [(p, ["x"]) for p in problems]
    found = part.measure(told(agent, right))  # all rates are 1/2: by level, then in order
    assert whole(found, found.data.groups["pair"]) == [1, 1, 0, 2, 0]
    assert whole(found, found.data.signals["hard"]) == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert part.tracker.value(problems[0]) == pytest.approx((0.9 + 1) / (0.9 * 2 + 1))
    found = part.measure(told(agent, [wrong[0], wrong[0], right[1], right[1]]))
    assert whole(found, found.data.signals["hard"]) == [0.0, 0.0, 1.0, 1.0]  # rates before it
    found = part.measure(told(agent, [wrong[0], right[1], wrong[4]]))
    # Rates: prompt 0 lowest, then 4, then 1; the middle one is mostly solved.
    assert whole(found, found.data.groups["pair"]) == [0, 0, 1]
    assert whole(found, found.data.signals["hard"]) == [1.0, 0.0, 0.0]


def test_prompts_that_do_not_come_again_are_known_by_their_level() -> None:
    agent = learner("addition", "weighted_grpo")
    part, problems = part_of(agent, Pairs), sums(1, 2)
    part.measure(told(agent, [(problems[0], ["x"]), (problems[1], ["2"])]))
    new = [Problem("7+1=", 1, {"answer": 8}), Problem("8+1=", 2, {"answer": 9})]
    found = part.measure(told(agent, [(p, ["x"]) for p in new]))
    assert whole(found, found.data.signals["hard"]) == [1.0, 0.0]
