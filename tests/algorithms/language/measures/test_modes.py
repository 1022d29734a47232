"""Answers in modes: forms, forced characters, what needless steps cost."""

import random
from pathlib import Path
from typing import Any

import pytest

from algorithms.language.measures.modes import ModeRouting, routed_rewards
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks import TASKS, text_task
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    scripted,
)


def modes(**settings: Any) -> LanguagePolicyGradient:
    return learner("routed-chain", "a2fm", **{"levels": (2,), "group": 8, "prompts": 3} | settings)


def test_answers_have_the_form_of_their_mode() -> None:
    task, once = text_task("routed-chain"), TASKS["chain"]
    for seed in range(30):
        problem = task.problem(2, random.Random(seed))
        assert problem == once.problem(2, random.Random(seed))
        steps = once.demonstration(problem, [], random.Random(0))
        answer = steps.rpartition(";")[2]
        for turn, right in (
            (f"a{answer}", True),
            (f"w{steps}", True),
            (f"w{answer}", False),
            (f"a{steps}", False),
            (answer, False),
            (f"b{answer}", False),
            ("a", False),
            (f"a{int(answer) + 1}", False),
            ("", False),
        ):
            assert task.reply(problem, [turn]).success == right, turn
        shown = {task.demonstration(problem, [], random.Random(i)) for i in range(20)}
        assert shown == {f"a{answer}", f"w{steps}"}
        assert max(map(len, shown)) <= task.turn_length


def said(turns: list[str]) -> list[Conversation]:
    """Answers to "3+4*2=", which is 11."""
    task = text_task("routed-chain")
    problem = next(
        p
        for p in (task.problem(2, random.Random(i)) for i in range(1000))
        if p.facts["answer"] == 11 and "*" in p.facts["expression"]
    )
    steps = TASKS["chain"].demonstration(problem, [], random.Random(0))
    full = {"a": "a11", "w": f"w{steps}", "x": "a1", "y": "w1+1=2;2"}
    return [
        Conversation(problem, [], turns=[full[t]], replies=[task.reply(problem, [full[t]])])
        for t in turns
    ]


def test_steps_cost_where_answers_at_once_do() -> None:
    # Half at once are right, and of the forced ones, the first, as many.
    assert routed_rewards(said(["a", "x", "w", "y"]), 2) == [1, 0, 0.75, 0]
    assert routed_rewards(said(["a", "w", "w", "y"]), 2) == [1, 0, 0, 0]  # they need no steps
    assert routed_rewards(said(["a", "x", "x", "w"]), 2) == [1, 0, 0, 1]  # a third is
    assert routed_rewards(said(["w", "y", "w", "w"]), 2) == [1, 0, 1, 1]  # nobody tried


def test_forced_characters_are_read_and_not_learned() -> None:
    agent = modes()
    heard = scripted(agent, lambda row: "5")  # after what there is
    rows = kept_rows(agent)
    found = agent.sample_round()
    assert len(rows) == 24 and len(heard) == 24
    aided = found.data.signals["aided"][:, 0].tolist()
    assert aided == ([1.0] * 4 + [0.0] * 4) * 3
    for i, row in enumerate(rows):
        start = row.spans[0][0]
        first = agent.codec.decode([row.tokens[start]])
        place = i % 8
        assert first == ("a", "a", "w", "w")[place] if place < 4 else first == "5"
        # The choice of the first token is learned where the policy made it.
        assert bool(found.data.mask[i, start - 1]) == (place >= 4)
        assert found.data.mask[i].sum() == len(row.tokens) - start - (place < 4)
    assert len({row.problem.prompt for row in rows[:8]}) == 1


def test_log_probs_are_those_after_the_forced_character() -> None:
    agent = modes(prompts=1, turn_tokens=4)
    rows = kept_rows(agent)
    found = agent.sample_round()
    for i, row in enumerate(rows):
        start = row.spans[0][0] + (i < 4)
        expected = log_probs(agent.model, row.tokens[:start], row.tokens[start:])
        for name in ("behaviour", "old"):
            own = found.data.log_probs[name][i, found.data.mask[i]].tolist()
            assert own == pytest.approx(expected, abs=1e-4)


def test_what_is_paid_and_how_much_it_acts() -> None:
    agent = modes(prompts=1)

    def speak(row: Conversation) -> str:
        steps = TASKS["chain"].demonstration(row.problem, [], random.Random(0))
        answer = steps.rpartition(";")[2]
        begun = row.turn_length_so_far
        first = agent.codec.decode(row.tokens[-begun:]) if begun else "w"
        own = answer if first == "a" else steps
        return own if begun else first + own

    scripted(agent, speak)
    found = agent.sample_round()
    assert found.success.all()
    paid = found.data.signals["routed"][:, 0].tolist()
    assert paid == [1.0, 1.0] + [0.0] * 6
    assert part_of(agent, ModeRouting).acts == 6 / 8


def test_it_resumes_exactly(tmp_path: Path) -> None:
    agent = modes(turn_tokens=4)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 2)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"task": "chain"}, "take routed-chain"),
        ({"task": "routed-chain", "group": 3}, "set it to 4 or more"),
        ({"task": "routed-sorting"}, "sorting has no steps"),
    ],
)
def test_what_has_no_modes_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LanguageConfig(recipe="a2fm", **settings)
