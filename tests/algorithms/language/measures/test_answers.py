"""What answers mean, by hand."""

import math
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
    part = part_of(agent, Kinds)
    found = part.measure(told(agent, said))
    assert part.acts == 1 / 2  # the second prompt has one answer
    a, b, c, d, e = whole(found, found.data.groups["cluster"])
    assert a == c and len({a, b, d, e}) == 4


def test_the_majority() -> None:
    agent = learner("addition", "ettrl")
    said = [(FIRST, ["5"]), (FIRST, ["6"]), (FIRST, ["06"]), (SECOND, ["5"]), (SECOND, ["6"])]
    found = part_of(agent, Majority).measure(told(agent, said))
    assert whole(found, found.data.signals["majority_reward"]) == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_agreement_with_the_mean_interval() -> None:
    agent = learner("intervals", "urpa")
    first = Problem("raised 0128760123:", 8, {"start": 3, "stop": 6})
    other = Problem("raised 0128760124:", 8, {"start": 3, "stop": 6})
    turns = ["0-3", "0-3", "4-7", "x", "3-1", "0-8"]  # the last: there are 8 places
    said = [(first, [x]) for x in turns] + [(other, ["3-5"]), (other, ["03-05"])]
    part = part_of(agent, ConsistencyReward)
    found = part.measure(told(agent, said))
    rewards = whole(found, found.data.signals["consistency_reward"])
    # Ends (0, 0, 1/2) and (1/2, 1/2, 1): means 1/6, 2/3, variances 1/18 each.
    c = math.exp(-2 * math.sqrt(1 / 18))
    overlap = (1 / 2 - 1 / 6) / (2 / 3), (2 / 3 - 1 / 2) / (1 - 1 / 6)
    assert rewards == pytest.approx(
        [0.5 + c * x / 2 for x in (overlap[0], *overlap)] + [0, 0, 0, 1, 1]
    )
    assert part.acts == pytest.approx(1 - (c + 1) / 2)
    with pytest.raises(ConfigError, match="are intervals, which those of addition are not"):
        LanguageConfig(task="addition", recipe="urpa")


def test_predicted_scores() -> None:
    agent = learner("rating", "q_hawkeye")
    a, b = (Problem(f"rate {x}:", 4, {"score": 1}) for x in ("0120", "0121"))
    said = [(a, [x]) for x in ("1", "5", "2", "x", "9")] + [(b, ["4"]), (b, [""])]
    part = part_of(agent, PredictedScore)
    found = part.measure(told(agent, said))
    scores = whole(found, found.data.signals["predicted_score"].nan_to_num(-1.0))
    assert scores == pytest.approx([1.0, 5.0, 2.0, -1.0, 5.0, 4.0, -1.0])
    mean = (1 + 5 + 2 + 5) / 4
    variance = sum((x - mean) ** 2 for x in (1, 5, 2, 5)) / 4
    assert part.acts == pytest.approx(variance / 4 / 2)
    with pytest.raises(ConfigError, match="scores of a fixed range, which addition does not"):
        LanguageConfig(task="addition", recipe="q_hawkeye")


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
