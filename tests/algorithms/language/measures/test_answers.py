"""What answers mean, by hand."""

import random
from collections import Counter

import pytest

from algorithms.language.measures.answers import (
    ConsistencyReward,
    Kinds,
    Majority,
    Paraphrases,
    PredictedScore,
    meaning,
)
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.tasks import Problem, text_task
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import learner, part_of, told, whole

FIRST = Problem("2+3=", 1, {"answer": 5})
SECOND = Problem("4+4=", 1, {"answer": 8})


@pytest.mark.parametrize(
    ("turn", "value"),
    [
        ("5", 5),
        ("05", 5),
        ("-7", -7),
        ("answer 12", 12),
        ("4*2=8;3+8=11;11", 11),
        ("<11;16><16>", 16),
        ("1 2 3", "1 2 3"),
        ("3+8=11", "3+8=11"),
        ("", ""),
        (";", ""),
    ],
)
def test_meanings(turn: str, value: int | str) -> None:
    assert meaning(turn) == value


def test_answers_of_one_meaning() -> None:
    agent = learner("addition", "seed_grpo")
    said = [(FIRST, ["5"]), (SECOND, ["5"]), (FIRST, ["05"]), (FIRST, ["6"]), (FIRST, ["x"])]
    found = part_of(agent, Kinds).measure(told(agent, said))
    a, b, c, d, e = whole(found, found.data.groups["cluster"])
    assert a == c and len({a, b, d, e}) == 4


def test_the_majority() -> None:
    agent = learner("addition", "ettrl")
    said = [(FIRST, ["5"]), (FIRST, ["6"]), (FIRST, ["06"]), (SECOND, ["5"]), (SECOND, ["6"])]
    found = part_of(agent, Majority).measure(told(agent, said))
    assert whole(found, found.data.signals["majority_reward"]) == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_agreement_with_the_mean_prediction() -> None:
    agent = learner("addition", "urpa")
    said = [(FIRST, [x]) for x in ("10", "20", "10", "?")] + [(SECOND, ["7"]), (SECOND, ["07"])]
    found = part_of(agent, ConsistencyReward).measure(told(agent, said))
    # Points (0, 1), (1, 1), (0, 1), (1/2, 0) with mean (3/8, 3/4); the second prompt's are one.
    points, mean = [(0, 1), (1, 1), (0, 1), (0.5, 0)], (0.375, 0.75)
    apart = [(abs(a - mean[0]) + abs(b - mean[1])) / 2 for a, b in points]
    variance = [
        sum((p[i] - mean[i]) ** 2 for p in points) / 4 for i in range(2)
    ]  # of the two numbers
    assert max(variance) > 0  # the largest, so that this prompt's confidence is 0
    rewards = whole(found, found.data.signals["consistency_reward"])
    assert rewards == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    said += [(Problem("1+1=", 1, {"answer": 2}), [x]) for x in ("1", "2", "3")]
    found = part_of(agent, ConsistencyReward).measure(told(agent, said))
    rewards = whole(found, found.data.signals["consistency_reward"])
    largest = sum(variance) / 2
    confidence = 1 - (1 / 6 / 2) / largest  # of (0, 1), (1/2, 1), (1, 1)
    assert rewards[6:] == pytest.approx(
        [confidence * (1 - 0.25), confidence * 1.0, confidence * (1 - 0.25)]
    )
    assert rewards[:4] == pytest.approx([0 * (1 - x) for x in apart])


def test_predicted_scores() -> None:
    agent = learner("addition", "q_hawkeye")
    said = [(FIRST, [x]) for x in ("10", "20", "13", "x")] + [(SECOND, ["8"])]
    found = part_of(agent, PredictedScore).measure(told(agent, said))
    scores = whole(found, found.data.signals["predicted_score"])
    assert scores == pytest.approx([1.0, 5.0, 2.2, 1.0, 3.0])


def test_likeness_of_answers_to_paraphrases() -> None:
    agent = learner("retrieval", "ps_grpo")
    task = text_task("retrieval")
    problem = next(
        p
        for p in (task.problem(2, random.Random(i)) for i in range(20))
        if p.facts["kind"] == "number"
    )
    a, b, c, _ = task.paraphrases(problem)
    other = next(
        p for p in (task.problem(2, random.Random(i)) for i in range(20)) if p.family != a.family
    )
    said = [(a, ["7"]), (a, ["8"]), (b, ["07"]), (b, ["7"]), (c, ["x"]), (other, ["7"])]
    found = part_of(agent, Paraphrases).measure(told(agent, said))
    ids = whole(found, found.data.groups["paraphrases"])
    assert len(set(ids[:5])) == 1 and ids[5] != ids[0]
    likeness = whole(found, found.data.signals["group_similarity"])
    # Of the first: two of the three answers to other wordings say 7.
    assert likeness == pytest.approx([2 / 3, 0.0, 1 / 3, 1 / 3, 0.0, 0.0])


def test_rounds_hold_problems_in_several_wordings() -> None:
    agent = learner("retrieval", "ps_grpo", prompts=6, group=2, pool=12, turn_tokens=1)
    seen = set()
    for _ in range(30):
        found = agent.sample_round()
        assert len(found) == 12
        families = Counter(p.family for p in found.problems)
        assert sorted(families.values()) == [4, 8]
        wordings = {p.prompt for p in found.problems}
        assert len(wordings) == 6
        seen |= set(families)
    assert len(seen) == 12
    with pytest.raises(ConfigError, match="compares at least 2 wordings"):
        LanguageConfig(task="retrieval", recipe="ps_grpo", prompts=1)
