"""Answers that are sampled with help and learned from without it: texts, flags and log-probs."""

import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.evaluation import evaluate
from algorithms.language.measures.guided import (
    FeedbackTokens,
    GuidedAttempts,
    RescuedPrompts,
    ShownDocuments,
    TextFeedback,
)
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling import rollouts as rollouts_module
from algorithms.language.sampling.contexts import MARK
from algorithms.language.sampling.conversation import Conversation
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    rounds,
    scripted,
)

NAMES = (
    "policy_rollout",
    "policy_rollout_weighted",
    "agent_rlvr",
    "cog_rethinker",
    "rltf_sd",
    "rltf_fm",
)
ALL = (*NAMES, "prefix_rl", "scope", "adhint", "int_rl", "tt_opd", "openclaw_rl", "latr")


def hint_of(agent: LanguagePolicyGradient, row: Conversation) -> str:
    """The text after the prompt, from the tokens."""
    text = agent.codec.decode(row.tokens[1 : row.tokens.index(2)])  # 2: the mark of an answer
    return text.partition(MARK)[2]


def needs_help(agent: LanguagePolicyGradient) -> list[Conversation]:
    """It is right where there is a hint, and else wrong."""

    def speak(row: Conversation) -> str:
        right = agent.task.demonstration(row.problem, row.turns, random.Random(0))
        return right if hint_of(agent, row) else "1"

    return scripted(agent, speak)


def chain(name: str, **settings: Any) -> LanguagePolicyGradient:
    return learner("chain", name, **{"levels": (4,), "group": 4, "prompts": 3} | settings)


def no_help_in(agent: LanguagePolicyGradient, rows: list[Conversation]) -> None:
    for row in rows:
        opening = agent.codec.opening(row.problem.prompt)
        assert row.tokens[: len(opening)] == opening and row.spans[0][0] == len(opening)


def test_half_a_group_sees_the_document_and_all_are_scored_without() -> None:
    agent = chain("policy_rollout")
    known, rows = needs_help(agent), kept_rows(agent)
    found = agent.sample_round()
    seeds = {k.seed: hint_of(agent, k) for k in known}
    helps = [bool(seeds[row.seed]) for row in rows]
    assert helps == [False, False, True, True] * 3
    no_help_in(agent, rows)
    assert found.data.signals["aided"][:, 0].tolist() == [float(h) for h in helps]
    assert found.success.tolist() == helps and part_of(agent, ShownDocuments).acts == 1.0
    assert found.data.groups["prompt"][:, 0].tolist() == [i // 4 for i in range(12)]
    agent.take_in(found)
    assert agent.data is not None and float(agent.of_round["rollout/success"]) == 0.0
    a = [float(agent.data.estimate.advantage[i][found.data.mask[i]][0]) for i in range(4)]
    std = statistics.stdev([0, 0, 1, 1]) + 1e-4
    assert a == pytest.approx([-0.5 / std] * 2 + [0.5 / std] * 2, rel=1e-4)


def test_ratios_are_to_the_context_that_was_sampled_in() -> None:
    """With a real model: behaviour with the hint, old without, both by one pass a token."""
    agent = chain("policy_rollout_weighted", prompts=1, turn_tokens=5)
    rows = kept_rows(agent)
    found = agent.sample_round()
    hint = agent.task.hint(rows[0].problem, [])
    moved = 0.0
    for i, row in enumerate(rows):
        (start, stop), mask = row.spans[0], found.data.mask[i]
        text = row.problem.prompt + (MARK + hint if i >= 2 else "")
        with_help = log_probs(agent.model, agent.codec.opening(text), row.tokens[start:stop])
        without = log_probs(agent.model, row.tokens[:start], row.tokens[start:stop])
        known = found.data.log_probs
        assert known["behaviour"][i, mask].tolist() == pytest.approx(with_help, abs=1e-4)
        assert known["old"][i, mask].tolist() == pytest.approx(without, abs=1e-4)
        moved = max(moved, *(abs(a - b) for a, b in zip(with_help, without, strict=True)))
    assert moved > 0.01


def test_guidance_comes_after_failure_alone() -> None:
    agent = chain("agent_rlvr")
    count = [0]

    def speak(row: Conversation) -> str:
        right = agent.task.demonstration(row.problem, row.turns, random.Random(0))
        count[0] += 1
        return right if hint_of(agent, row) or count[0] == 1 else "1"

    known, rows = scripted(agent, speak), kept_rows(agent)
    found = agent.sample_round()
    first = rows[0].problem
    helps = {k.seed: bool(hint_of(agent, k)) for k in known}
    assert [helps[r.seed] for r in rows] == [False] * 12 + [True] * 8
    assert all(r.problem != first for r in rows[12:])  # it was solved without
    no_help_in(agent, rows)
    assert found.data.groups["prompt"][:, 0].tolist() == [i // 4 for i in range(20)]
    assert part_of(agent, GuidedAttempts).acts == 1.0
    agent.take_in(found)
    assert float(agent.of_round["rollout/success"]) == pytest.approx(1 / 12)


def test_rescued_answers_are_learned_after_the_bare_prompt() -> None:
    agent = chain("cog_rethinker")

    def speak(row: Conversation) -> str:
        right = agent.task.demonstration(row.problem, row.turns, random.Random(0))
        reflected = hint_of(agent, row) == "1"  # the wrong answer that it gave
        tried = hint_of(agent, row) and row.seed % 2
        return right if reflected or tried else "1"

    known, rows = scripted(agent, speak), kept_rows(agent)
    found = agent.sample_round()
    no_help_in(agent, rows)
    texts = {k.seed: hint_of(agent, k) for k in known}
    rescued = rows[12:]
    assert rescued and all(texts[r.seed] and r.replies[-1].success for r in rescued)
    signals = found.data.signals
    assert signals["demonstration"][:, 0].tolist() == [0.0] * 12 + [1.0] * len(rescued)
    prompts = found.data.groups["prompt"][:, 0].tolist()
    assert prompts[12:] == list(range(3, 3 + len(rescued)))  # in no group
    assert part_of(agent, RescuedPrompts).acts == 1.0
    # Reflection is for those that the first stage left.
    left = {k.problem.prompt for k in known if texts[k.seed] == "1"}
    solved = {r.problem.prompt for r in rescued if texts[r.seed] != "1"}
    assert not left & solved
    agent.take_in(found)
    assert agent.data is not None and not agent.data.estimate.advantage.any()


def test_a_solved_prompt_is_not_rescued() -> None:
    agent = chain("cog_rethinker")
    scripted(agent, lambda r: agent.task.demonstration(r.problem, r.turns, random.Random(0)))
    rows = kept_rows(agent)
    agent.collect()
    assert len(rows) == 12 and agent.trainer.silent == ["advantage", "demonstration", "mechanism"]


@pytest.mark.parametrize("name", ["rltf_sd", "rltf_fm"])
def test_second_attempts_are_worth_what_they_add_to_the_first(name: str) -> None:
    agent = chain(name, prompts=2)
    count = [0]

    def speak(row: Conversation) -> str:
        right = agent.task.demonstration(row.problem, row.turns, random.Random(0))
        count[0] += 1
        if hint_of(agent, row):
            return right if row.seed % 2 else "2"
        first = right.partition(";")[0]
        return right if count[0] % 4 == 0 else f"{first};2"

    known, rows = scripted(agent, speak), kept_rows(agent)
    found = agent.sample_round()
    texts = {k.seed: hint_of(agent, k) for k in known}
    kind = FeedbackTokens if name == "rltf_fm" else TextFeedback
    assert part_of(agent, kind).acts == 1.0  # 1 - 1/4 or 0 - 1/4
    t = found.data
    apart, worth = (t.signals[n][:, 0] for n in ("apart", "worth"))
    each = 4 + 3 * (3 if name == "rltf_fm" else 2)
    assert len(rows) == 2 * each
    for i, row in enumerate(rows):
        place = i % each
        if place < 4:
            assert apart[i] == 0 and not texts[row.seed] and t.signals["aided"][i, 0] == 0
            continue
        assert t.signals["aided"][i, 0] == 1
        if place < 7:  # after the prompt with feedback
            assert apart[i] == 0 and hint_of(agent, row) == texts[row.seed] != ""
            steps = agent.task.demonstration(row.problem, [], random.Random(0)).split(";")
            assert texts[row.seed] == steps[1]  # what is right at the first wrong step
        elif place < 10:
            no_help_in(agent, [row])
            assert apart[i] == 1
            assert float(worth[i]) == pytest.approx(float(row.replies[-1].success) - 0.25)
        else:  # the feedback as a text to be predicted after the first attempt
            first = rows[i - i % each + place - 10]
            start = row.spans[0][0]
            said = agent.codec.opening(row.problem.prompt)
            said += agent.codec.turn(first.turns[0])
            assert row.tokens[:start] == said
            assert agent.codec.decode(row.tokens[start:-1]) == row.turns[0]
            assert apart[i] == 1 and worth[i] == 0 and t.signals["demonstration"][i, 0] == 1
            assert t.mask[i].sum() == len(row.tokens) - start


@pytest.mark.parametrize("name", ALL)
def test_evaluation_sees_no_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After rounds with help: evaluated conversations begin with the bare prompt of a problem that
    is held out, and nobody but the model says anything."""
    from algorithms.language.measures import prefixes

    monkeypatch.setattr(prefixes, "BANK", 4)
    agent = chain(name, levels=(2,), prompts=2, group=2, turn_tokens=4)
    agent.task = lenient(agent.task)
    rounds(agent, 2)
    seen: list[Conversation] = []
    usual = rollouts_module.advance

    def advance(model: Any, codec: Any, task: Any, rows: Any, *rest: Any, **options: Any) -> None:
        for row in rows:
            assert row.tokens == codec.opening(row.problem.prompt) and row.problem.held_out
            assert not (row.spans or row.given or row.origins) and MARK not in row.problem.prompt
        usual(model, codec, task, rows, *rest, **options)
        seen.extend(rows)

    monkeypatch.setattr(rollouts_module, "advance", advance)
    scores = evaluate(agent.model, agent.codec, agent.task, (2, 3), problems=6, samples=2)
    assert len(seen) == 24 and not any(row.origins for row in seen)
    right = [row.replies[-1].success for row in seen]
    assert [s.accuracy for s in scores] == [sum(right[:12]) / 12, sum(right[12:]) / 12]


@pytest.mark.parametrize("name", [*ALL, "tcod_backward", "fission_grpo", "cleaner"])
def test_no_success_with_help_counts_as_the_policys_own(name: str, tmp_path: Path) -> None:
    """Whoever had a hint, a prefix or a correction, by what was sampled, is flagged; all others are
    the success of the round."""
    multi = name in ("tcod_backward", "fission_grpo", "cleaner")
    expert = None
    if name == "tcod_backward":
        first = learner("calculator", "grpo")
        first.save(tmp_path / "expert.pt")
        expert = str(tmp_path / "expert.pt")
    task = "calculator" if multi else "chain"
    agent = learner(task, name, levels=(2,), prompts=4, group=4, turn_tokens=20, expert=expert)
    agent.task = lenient(agent.task)
    aided: dict[int, bool] = {}
    usual = agent.collector.advance

    def advance(rows: Any, limits: Any, **options: Any) -> None:
        for row in rows:
            aided[row.seed] = MARK in agent.codec.decode(row.tokens) or bool(
                row.given or row.origins
            )
        usual(rows, limits, **options)

    agent.collector.advance = advance  # type: ignore[method-assign]
    rows = kept_rows(agent)
    some = False
    for _ in range(3):
        found = agent.sample_round()
        flags = found.data.signals.get("aided", torch.zeros(len(rows), 1))[:, 0].tolist()
        expected = [
            bool(row.origins) or bool(row.given) or aided.get(row.seed, False) for row in rows
        ]
        assert flags == [float(e) for e in expected]
        some |= any(expected)
        agent.take_in(found)
        own = [row.replies[-1].success for row, e in zip(rows, expected, strict=True) if not e]
        mean = sum(own) / max(1, len(own))
        assert float(agent.of_round["rollout/success"]) == pytest.approx(mean)
    assert some or name in ("tt_opd", "openclaw_rl", "latr", "cleaner", "scope", "int_rl")


@pytest.mark.parametrize("name", NAMES)
def test_they_resume_exactly(name: str, tmp_path: Path) -> None:
    agent = chain(name, levels=(2,), turn_tokens=4)
    agent.task = lenient(agent.task)
    continued(agent, tmp_path, 2, 2, rounds)


@pytest.mark.parametrize("name", NAMES)
def test_tasks_without_hints_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"hints.*, which addition does not have.*: chain"):
        LanguageConfig(task="addition", recipe=name)
    if name.startswith("rltf"):
        with pytest.raises(ConfigError, match="take a task of one turn"):
            LanguageConfig(task="calculator", recipe=name)
