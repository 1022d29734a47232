"""Rounds of domains, of further attempts, and beside an expert: texts, flags, what is paid."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures.domains import (
    DomainRatios,
    DomainStages,
    ExpertAnswers,
    FurtherAttempts,
    repeated,
)
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.tasks import TASKS, text_task
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.axes.aggregation import Annealed
from mbrl.policy_gradient.axes.reward_shaped import ShortWhereEasy
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    scripted,
    told,
)

TWO = {"task": "addition+chain", "levels": (1, 1001), "turn_tokens": 4}


def two(name: str, **settings: Any) -> Any:
    values = TWO | settings
    agent = learner(values.pop("task"), name, **values)
    agent.task = lenient(agent.task)
    return agent


def test_stages_act_from_the_second_on() -> None:
    agent = two("nemotron_cascade", stages=("addition", "chain"), stage_tokens=20)
    seen = []
    for _ in range(5):
        for _ in range(agent.collect()):
            agent.update(agent.next_batch())
        seen.append((agent.domains.at, part_of(agent, DomainStages).acts))
    assert {(0, 0.0), (1, 1.0)} == set(seen)


def test_ratios_act_where_shares_are_moved_and_lengths_differ() -> None:
    agent = learner("addition+chain", "apriel", shares_of="learned", prompts=2, group=3)
    part = part_of(agent, DomainRatios)
    task = agent.task
    one = task.problem(1001, random.Random(0))
    right = task.demonstration(one, [], random.Random(0))
    short = right.rpartition(";")[2]
    chats = [(one, [right]), (one, [short]), (one, ["x"])]
    part.measure(told(agent, chats))
    assert part.acts == 0.0  # nothing was learned from: shares are as they are to be
    agent.domains.count([0, 0, 0, 1])
    part.measure(told(agent, chats))
    moved = max(abs(w - 0.5) for w in agent.domains.weights())
    assert moved > 0.45 and part.acts == pytest.approx(moved / 2)  # one of two is longer
    # What they earn: 1 of the shorter, less of the longer, by two of three that succeed.
    data = told(agent, chats).data
    paid = ShortWhereEasy(0.5)(data).sum(1).tolist()
    n, m = (len(text) + 1 for text in (right, short))
    assert paid == pytest.approx([1 - 0.5 * 2 / 3 * (n - m) / (n - m + 1), 1.0, 0.0])


def test_the_penalty_of_lengths_grows_with_the_share_that_succeeds() -> None:
    agent = learner("chain", "grpo")
    one = TASKS["chain"].problem(2, random.Random(1))
    right = TASKS["chain"].demonstration(one, [], random.Random(0))
    short = right.rpartition(";")[2]
    by_share = []
    for wrong in (6, 2, 0):
        chats = [(one, [right]), (one, [short]), *[(one, ["x"])] * wrong]
        by_share.append(1 - float(ShortWhereEasy(1.0)(told(agent, chats).data)[0].sum()))
    over = len(right) - len(short)
    assert by_share == pytest.approx([p * over / (over + 1) for p in (0.25, 0.5, 1.0)])


def test_again_shows_the_same_text_after_every_wrong_answer() -> None:
    task = text_task("again-brackets")
    for seed in range(20):
        problem = task.problem(4, random.Random(seed))
        assert problem == TASKS["brackets"].problem(4, random.Random(seed))
        right = task.demonstration(problem, ["x"], random.Random(0))
        for count in range(5):
            turns = ["(" * (k + 1) for k in range(count)]
            for k in range(1, count + 1):
                reply = task.reply(problem, turns[:k])
                assert (reply.reward, reply.success, reply.observation) == (0, False, "try again")
                assert not reply.done and reply.state == f"after {k}"
            reply = task.reply(problem, [*turns, right])
            assert (reply.reward, reply.done, reply.success) == (1, True, True)
        last = task.reply(problem, ["(", "x", "x", "x", "x"])
        assert last.done and not last.success and last.observation == ""


def test_repetitions_as_the_authors_count_them() -> None:
    assert repeated(["a", "a", "b"]) == pytest.approx(1 / 3)
    assert repeated([" A", "a ", "b", ""]) == pytest.approx(1 / 3)
    assert repeated(["a"]) == 0.0 and repeated(["", " "]) == 1.0


def test_the_third_attempt_after_a_repetition() -> None:
    """Right at the third attempt, answers a, a, b: 1/4 - 1/2 (1 - 2/3)."""
    agent = learner("again-addition", "try_again")
    one = agent.task.problem(1, random.Random(0))
    answer = str(one.facts["answer"])
    chats = [(one, ["x", "x", answer]), (one, [answer]), (one, ["1x", "2x", "", "3x", "4x"])]
    rollouts = part_of(agent, FurtherAttempts).measure(told(agent, chats))
    (term,) = RECIPES["try_again"].terms
    assert term.reward(rollouts.data).sum(1).tolist() == pytest.approx(
        [0.25 - 0.5 * (1 - 2 / 3), 1.0, 0.0]
    )
    assert part_of(agent, FurtherAttempts).acts == pytest.approx(2 / 3)


def test_an_experts_answer_stands_beside_every_problem() -> None:
    agent = learner("chain", "datamind", levels=(2,), prompts=3, group=2)
    rows = kept_rows(agent)
    scripted(agent, lambda row: "1")
    found = agent.sample_round()
    shown = found.data.signals["demonstration"][:, 0]
    assert shown.tolist() == [0.0] * 6 + [1.0] * 3
    problems = [p.prompt for p in found.problems]
    assert problems[6:] == problems[0:6:2] and found.success[6:].all()
    assert found.data.groups["prompt"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 4, 5]
    assert found.data.signals["round"].unique().tolist() == [0.0]
    agent.take_in(found)
    nll: list[float] = []
    for row in rows[6:]:
        ((start, stop),) = row.spans
        nll += [-x for x in log_probs(agent.model, row.tokens[:start], row.tokens[start:stop])]
    acts = part_of(agent, ExpertAnswers).acts
    assert acts == pytest.approx(sum(nll) / len(nll), rel=1e-4)
    assert agent.data is not None and not agent.data.estimate.advantage[6:].any()
    known = found.data.log_probs
    assert torch.equal(known["behaviour"][6:], known["old"][6:])
    assert float(agent.sample_round().data.signals["round"].max()) == 1.0


def test_the_weight_of_demonstrations_falls_by_half_a_cosine() -> None:
    agent = learner("chain", "datamind", levels=(2,), prompts=1, group=2)
    found = agent.sample_round()
    for number, mu in ((0, 0.9), (175, 0.475), (350, 0.05), (1000, 0.05)):
        found.data.signals["round"][:] = number
        assert float(Annealed().share(found.data)) == pytest.approx(mu)
    at = 100
    found.data.signals["round"][:] = at
    mu = 0.05 + 0.85 * (1 + math.cos(math.pi * at / 350)) / 2
    value = torch.where(found.data.signals["demonstration"] > 0.5, 3.0, 1.0)
    found.data.signals["round"][:, 1:] = at  # of all steps
    whole = Annealed()(value, value, found.data)
    assert float(whole) == pytest.approx((1 - mu) * 1 + mu * 3, rel=1e-5)


@pytest.mark.parametrize("name", ["nemotron_cascade", "apriel", "try_again", "datamind"])
def test_they_resume_exactly(name: str, tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "nemotron_cascade": {"stages": ("addition", "chain"), "stage_tokens": 20},
        "apriel": {"shares_of": "learned", "shares": (3.0, 1.0)},
        "try_again": {"task": "again-addition", "levels": (1,)},
        "datamind": {},
    }
    continued(two(name, **settings[name]), tmp_path, 2, 2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nemotron_cascade", "and stages"),
        ("apriel", "set shares_of to learned"),
        ("try_again", "take again-addition"),
    ],
)
def test_without_their_settings_they_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LanguageConfig(recipe=name)


def test_attempts_at_tasks_of_several_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="guessing has 9 turns"):
        text_task("again-guessing")
