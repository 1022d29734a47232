"""Scores of language models, against enumeration."""

import dataclasses
import hashlib
import itertools
import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms.language.evaluation import (
    cons_at,
    evaluate,
    pass_at,
    score,
    standard_error,
    with_error,
)
from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.models.vocabulary import Characters
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import grouped, to_rollouts
from algorithms.language.tasks import TASKS
from algorithms.language.tasks.base import Problem, Reply
from mbrl.errors import ConfigError
from tests.algorithms.language.small import MODEL, Digits, Echo, tiny


@pytest.mark.parametrize("right", [0, 1, 3, 6])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_pass_at_k_is_the_share_of_subsets(right: int, k: int) -> None:
    answers = [i < right for i in range(6)]
    subsets = list(itertools.combinations(answers, k))
    assert pass_at(k, 6, right) == pytest.approx(np.mean([any(s) for s in subsets]))


def test_cons_at_k_is_what_most_say() -> None:
    answers, right = ["a", "b", "b", "c", "a", "c"], [True, False, False, False, True, False]
    assert cons_at(1, answers, right) == pytest.approx(2 / 6)
    assert cons_at(3, answers, right) == pytest.approx((0 + 0) / 2)
    assert cons_at(2, answers, right) == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert cons_at(6, answers, right) == pytest.approx(1 / 3)
    # One of the two that mean 7 has not the form that is asked for.
    assert cons_at(3, [7, 7, 8], [True, False, False]) == pytest.approx(1 / 2)


def test_votes_are_for_answers_and_not_for_their_derivations() -> None:
    """Two ways to 7 outvote two texts that are the same."""
    problem = Problem("1+2+4=", 1, {"answer": 7})
    turns = ["1+2=3;3+4=7;7", "2+4=6;1+6=7;7", "1+4=5;5+2=7;7", "1+2=4;4+4=8;8", "1+2=4;4+4=8;8"]
    codec = Characters()
    rows = []
    for turn in turns:
        right = turn.endswith("7")
        tokens = codec.opening(problem.prompt)
        said = codec.encode(turn)
        rows.append(
            Conversation(
                problem, [*tokens, *said], turns=[turn], replies=[Reply(float(right), True, right)],
                spans=[(len(tokens), len(tokens) + len(said))], behaviour=[0.0] * len(said),
                model=[0.0] * len(said), versions=[0] * len(said),
            )
        )  # fmt: skip
    found = grouped(to_rollouts(rows, codec.pad, torch.empty(0)), [0] * len(rows))
    assert score(1, [found], 5, votes=True).agrees == {1: 3 / 5, 2: 3 / 4, 4: 1.0}


def test_standard_errors_are_over_different_problems() -> None:
    rates = np.random.default_rng(0).random(60)
    names = [f"problem {i}" for i in range(60)]
    assert standard_error(rates, names) == pytest.approx(stats.sem(rates))
    # Of clusters of one size: that of the clusters' means; more of the same draws change nothing.
    means = rates.reshape(6, 10).mean(1)
    repeated = standard_error(rates, [f"problem {i // 10}" for i in range(60)])
    assert repeated == pytest.approx(stats.sem(means))
    assert standard_error(np.tile(rates, 4), 4 * names) == pytest.approx(stats.sem(rates))
    assert standard_error(rates, 60 * ["one"]) is None
    assert with_error(0.5, None) == "0.500 ± unknown" and with_error(0.5, 0.1) == "0.500 ± 0.100"


def test_repeated_problems_of_an_evaluation_are_one() -> None:
    """Four are asked, and two of them always solved: the error is that of two in four, not of half
    of 64. Facts that differ make problems of one prompt different."""

    class Halves(Echo):
        def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
            return Reply(success=problem.prompt in "01")

    options = {"problems": 64, "samples": 2, "rows_at_once": 32, "turn_tokens": 1}
    found = evaluate(tiny(), Characters(), Halves(), (4,), **options)[0]
    assert found.accuracy == pytest.approx(0.5, abs=0.2)
    assert found.error == pytest.approx(stats.sem([0, 0, 1, 1]), rel=0.2)
    assert evaluate(tiny(), Characters(), Halves(), (4,), problems=1)[0].error is None
    same = [Problem("a", 1, {"x": 1}), Problem("a", 2, {"x": 1}), Problem("a", 1, {"x": 2})]
    assert same[0].asked == same[1].asked != same[2].asked


def test_scores_are_those_of_the_texts_and_change_nothing() -> None:
    model, task = tiny(wide=2.0), Digits()
    options = {"problems": 30, "samples": 4, "rows_at_once": 16}
    first, second = (evaluate(model, Characters(), task, (4, 9), **options) for _ in range(2))
    assert first == second and [s.level for s in first] == [4, 9]
    whole = evaluate(model, Characters(), task, (4,), problems=30, samples=4, rows_at_once=999)
    assert whole[0].problems == 30 and set(whole[0].passes) == {1, 2, 4}
    assert whole[0].passes[1] == pytest.approx(whole[0].accuracy)
    assert whole[0].passes[4] >= whole[0].passes[2] >= whole[0].passes[1]
    assert whole[0].agrees == {}  # several turns have no vote
    other = evaluate(model, Characters(), task, (4,), problems=30, samples=4, seed=1)
    assert other != whole


@pytest.mark.parametrize("name", [n for n, task in TASKS.items() if not task.open_text])
def test_problems_of_the_evaluation_are_never_trained_on(name: str, monkeypatch) -> None:
    """What is asked, in whatever words; of the easiest levels, where draws of two seeds would share
    nearly all."""
    task, seen = TASKS[name], []
    kept = task.reply

    def reply(problem: Problem, turns: Sequence[str]) -> Reply:
        seen.append(problem)
        return dataclasses.replace(kept(problem, turns), done=True)

    monkeypatch.setattr(task, "reply", reply)
    levels = task.levels[:2]
    evaluate(tiny(torch.float32), Characters(), task, levels, problems=40, turn_tokens=1)
    assert {p.level for p in seen} == set(levels) and len(seen) == 80
    agent = Imitation(config=ImitationConfig(task=name, levels=levels, model=MODEL))
    trained = {asked(wording) for i in range(600) for wording in task.paraphrases(agent.problem(i))}
    assert not trained & {asked(p) for p in seen}


def asked(problem: Problem) -> str:
    """Whatever the order in which walls are named."""
    facts = {k: v for k, v in problem.facts.items() if k != "wording"}
    facts |= {k: sorted(facts[k]) for k in ("walls",) if k in facts}
    return json.dumps([problem.prompt, facts], sort_keys=True)


def test_one_problem_in_eight_is_held_out() -> None:
    """And which ones is not a matter of the machine or the process."""
    task = TASKS["addition"]
    drawn = [task.problem(4, random.Random(i)) for i in range(4000)]
    share = sum(p.held_out for p in drawn) / 4000
    assert share == pytest.approx(1 / 8, abs=4 * (0.125 * 0.875 / 4000) ** 0.5)
    digest = hashlib.sha256(b'["2+9=", {"answer": 11}]').hexdigest()
    for level in (1, 2):  # a question that two levels ask is on one side
        problem = Problem("2+9=", level, {"answer": 11})
        assert problem.held_out == (int(digest[-1], 16) % 8 == 0)
    for name in map(str, range(50)):
        alike = [Problem(p, level, family=name) for p, level in (("x?", 1), ("y?", 2))]
        assert alike[0].held_out == alike[1].held_out


def test_a_grid_is_on_one_side_however_its_walls_are_drawn() -> None:
    sides: dict[str, set[bool]] = {}
    for i in range(3000):
        problem = TASKS["grid_world"].problem(3, random.Random(i))
        sides.setdefault(asked(problem), set()).add(problem.held_out)
    assert len(sides) < 2700 and all(len(side) == 1 for side in sides.values())


def test_a_task_with_few_problems_says_so() -> None:
    class Single(Digits):
        splits = True

        def draw(self, level: int, rng: random.Random) -> Problem:
            return Problem("one", level)

    kinds = (True, False)
    task, found = Single(), []
    for held_out in kinds:
        try:
            task.problem(4, random.Random(0), held_out=held_out)
        except ConfigError as error:
            found.append(str(error))
    assert len(found) == 1 and "has splits = False" in found[0]
    assert Digits().problem(4, random.Random(0), held_out=True).prompt == "0-4"


def test_counts_of_an_evaluation_are_checked() -> None:
    with pytest.raises(ConfigError, match="problems is 0"):
        evaluate(tiny(), Characters(), Digits(), (4,), problems=0)


def test_conversations_that_are_stopped_are_not_solved() -> None:
    """First attempts alone are those of the whole conversations, with the same draws."""
    from algorithms.language.tasks import text_task
    from tests.algorithms.language.cases import learner

    agent = learner("again-addition", "try_again", turn_tokens=2)

    class Odd(type(agent.task)):  # type: ignore[misc]
        def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
            right = sum(map(ord, turns[-1])) % 4 == 1
            return Reply(float(right), right or len(turns) == 5, right, "again")

    options = {"problems": 20, "samples": 2, "turn_tokens": 2}
    first, last = (
        evaluate(agent.model, agent.codec, Odd(), (1,), max_turns=n, **options)[0] for n in (1, 5)
    )
    assert 0 < first.accuracy < last.accuracy and first.length <= 2
    assert text_task("again-addition") is agent.task
