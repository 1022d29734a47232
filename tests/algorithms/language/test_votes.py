"""Votes on answers: who gets how many, and how good they are."""

from collections import Counter

import numpy as np
import pytest

from algorithms.language.evaluation import answers
from algorithms.language.measures.answers import meanings
from algorithms.language.models.vocabulary import Characters
from algorithms.language.tasks import Problem
from algorithms.language.votes import VotePool, allocated, lead, leads, voted
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import learner, lenient
from tests.algorithms.language.small import Echo, tiny


def pool_of(answers_: list[list[str]], right: str = "r") -> VotePool:
    """Different questions, of two levels by turns."""
    pool = VotePool.__new__(VotePool)
    pool.problems = [Problem(str(i), i % 2) for i in range(len(answers_))]
    pool.answers = [list(own) for own in answers_]
    pool.right = [[x == right for x in own] for own in answers_]
    return pool


def torn(count: int, votes: int, seed: int) -> VotePool:
    """Half of the questions are sure, the others right in two of three answers."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        if i % 2:
            rows.append(["r"] * votes)
        else:
            rows.append([("r", "r", "w", "v")[rng.integers(4)] for _ in range(votes)])
    return pool_of(rows)


@pytest.mark.long
def test_sure_questions_get_fewer_answers_and_the_budget_is_spent() -> None:
    pool = torn(40, 32, 0)
    even = voted(pool, "uniform", 6, draws=4)
    assert even.used == even.sure == even.torn == 6.0
    for name in ("pets", "pets-online"):
        found = voted(pool, name, 6, draws=4)
        assert found.sure < 6 < found.torn
        assert found.agrees >= even.agrees - 0.02
        if name == "pets":
            assert found.used == 6.0
        else:
            assert found.used <= 6.6
    votes = pool.shuffled(np.random.default_rng(3))
    assert sum(allocated(votes, 5)) == 5 * 40
    few = pool_of([["r"] * 3, ["r", "w", "r"], ["w", "r", "w"], ["r"] * 3])
    assert allocated(few.shuffled(np.random.default_rng(0)), 3) == [3] * 4  # no more than there are


def test_nobody_gets_more_answers_than_there_are() -> None:
    pool = torn(12, 6, 0)
    votes = voted(pool, "pets-online", 6, draws=2)
    assert votes.used <= 6.0 and votes.torn == 6.0


def test_uniform_votes_by_hand() -> None:
    pool = torn(20, 9, 1)
    found = voted(pool, "uniform", 3, draws=5, seed=7)
    rng, agrees, right = np.random.default_rng(7), [], []
    for _ in range(5):
        mixed = pool.shuffled(rng)
        for i in pool.halves()[1]:
            own, whole = mixed[i], pool.answers[i]
            said = [answer for answer, _ in own[:3]]
            most = max(Counter(said).values())
            mine = next(x for x in said if said.count(x) == most)
            all_ = max(Counter(whole).values())
            agrees.append(mine == next(x for x in whole if whole.count(x) == all_))
            right.append(mine == "r")
    assert found.agrees == pytest.approx(np.mean(agrees))
    assert found.accuracy == pytest.approx(np.mean(right))
    assert lead([("b", True), ("a", False)]) == "b"
    assert leads(["a", "b", "a", "a"]) == 0.75


def test_answers_are_known_by_what_they_mean() -> None:
    agent = learner("chain", "grpo", turn_tokens=4)
    agent.task = lenient(agent.task)
    parts = answers(agent.model, agent.codec, agent.task, 1, problems=4, samples=6)
    pool = VotePool(parts, 6)
    assert len(pool) == 4 and all(len(own) == 6 for own in pool.answers)
    assert any(isinstance(x, int) or x for own in pool.answers for x in own)


def test_no_question_is_in_both_halves_and_each_has_all_levels() -> None:
    """Level 2 of the task has two questions, level 4 has four, and all are drawn again and again;
    each level comes in one part."""
    parts = [p for x in (2, 4) for p in answers(tiny(), Characters(), Echo(), x, problems=40)]
    assert len(parts) == 2
    pool = VotePool(parts, 1)
    first, second = pool.halves()
    assert sorted(first + second) == list(range(80))
    asked = [{pool.problems[i].asked for i in half} for half in (first, second)]
    assert not asked[0] & asked[1] and len(asked[0] | asked[1]) == 4
    assert {pool.problems[i].level for i in first} == {pool.problems[i].level for i in second}
    assert [p.level for p in pool.problems[:4]] == [2, 4, 2, 4]
    said = [a for part in parts for a in meanings(part)]
    shown = [(p.prompt, p.level) for part in parts for p in part.problems]
    kept = [(p.prompt, p.level) for p in pool.problems]
    ours = zip(kept, [a for (a,) in pool.answers], [r for (r,) in pool.right], strict=True)
    right = [bool(r) for part in parts for r in part.success]
    assert Counter(ours) == Counter(zip(shown, said, right, strict=True))


def test_what_votes_refuse() -> None:
    pool = torn(4, 4, 0)
    one = torn(3, 4, 0)
    one.problems = [Problem("1+1=", 1)] * 3
    with pytest.raises(ConfigError, match="3 problems ask 1 different questions, and votes need 2"):
        voted(one, "uniform", 2)
    with pytest.raises(ConfigError, match="budget 9 of 4 answers"):
        voted(pool, "uniform", 9)
    with pytest.raises(ConfigError, match="unknown allocation of votes 'pet'"):
        voted(pool, "pet", 2)
