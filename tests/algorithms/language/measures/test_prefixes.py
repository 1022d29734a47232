"""Rounds that go on from prefixes, corrected steps and hints: what is in them, against other ways
to say it."""

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures import prefixes
from algorithms.language.measures.prefixes import (
    CorrectedSteps,
    HintedPrefixes,
    Interventions,
    SolvedPrefixes,
)
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.prefixes import PREFIX, TEACHER, places
from algorithms.language.sampling.tokens import Sampling
from mbrl.errors import ConfigError
from mbrl.policy_gradient import loss
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    part_of,
    rounds,
    scripted,
)

NAMES = ("prefix_rl", "scope", "adhint", "int_rl")


def shown(agent: LanguagePolicyGradient, row: Conversation) -> str:
    return agent.task.demonstration(row.problem, row.turns, random.Random(0))


def begun(agent: LanguagePolicyGradient, row: Conversation) -> str:
    """What was said of the turn that is going on."""
    if len(row.spans) == len(row.turns):
        return ""
    return agent.codec.decode(row.tokens[slice(*row.spans[-1])])


def errs_once(agent: LanguagePolicyGradient) -> list[Conversation]:
    """It is wrong at the second step when it begins by itself, and right when it goes on."""

    def speak(row: Conversation) -> str:
        whole, own = shown(agent, row), begun(agent, row)
        if own:
            assert whole.startswith(own)
            return whole[len(own) :]
        first, _, rest = whole.partition(";")
        return f"{first};9+9=1;1" if rest.count(";") else whole + "0"

    return scripted(agent, speak)


def chain(name: str, **settings: object) -> LanguagePolicyGradient:
    return learner("chain", name, **{"levels": (4,), "group": 4, "prompts": 3} | settings)


def test_every_salvaged_answer_of_one_who_errs_once_is_right() -> None:
    agent = chain("scope", group=8)
    errs_once(agent)
    rows = kept_rows(agent)
    found = agent.sample_round()
    t, part = found.data, part_of(agent, CorrectedSteps)
    salvaged = [i for i, row in enumerate(rows) if row.origins]
    assert len(salvaged) == 3 * 2 and part.acts == len(salvaged) / 24
    assert found.success.tolist() == [i in salvaged for i in range(24)]
    assert t.signals["aided"][:, 0].tolist() == [float(i in salvaged) for i in range(24)]
    assert t.groups["prompt"][:, 0].tolist() == [i // 8 for i in range(24)]
    for i in salvaged:
        row = rows[i]
        ((start, stop, who),) = row.origins
        first = row.spans[0][0]
        text = agent.codec.decode(row.tokens[first:])
        steps = shown(agent, Conversation(row.problem, [])).split(";")
        assert text == ";".join(steps) and who == TEACHER
        assert agent.codec.decode(row.tokens[start:stop]) == steps[1] + ";"
        for step in range(t.mask.shape[1]):  # own before, the teacher's step, own after
            at = step + 1
            assert float(t.signals["teacher"][i, step]) == float(start <= at < stop)
            inside = first <= at < len(row.tokens)
            assert bool(t.mask[i, step]) == inside
            if inside and start <= at < stop:
                assert t.log_probs["behaviour"][i, step] == t.log_probs["old"][i, step]
            elif inside:
                assert float(t.log_probs["behaviour"][i, step]) == -1.0
    # Groups as they are trained: their advantages sum to 0.
    agent.take_in(found)
    assert agent.data is not None
    advantage = agent.data.estimate.advantage
    one = torch.stack([advantage[i][t.mask[i]][0] for i in range(24)])
    assert one.view(3, 8).sum(1).tolist() == pytest.approx([0.0] * 3, abs=1e-5)
    assert float(agent.of_round["rollout/success"]) == 0.0  # none of it its own
    assert float(agent.of_round["rollout/acts"]) == 0.25


def test_nothing_is_salvaged_where_half_is_right_or_nothing_stands_before() -> None:
    agent = chain("scope")
    count = [0]

    def half(row: Conversation) -> str:
        count[0] += 1
        whole = shown(agent, row)
        return whole if count[0] % 2 else f"{whole.partition(';')[0]};9+9=1;1"

    scripted(agent, half)
    rows = kept_rows(agent)
    agent.sample_round()
    assert not any(row.origins for row in rows) and part_of(agent, CorrectedSteps).acts == 0
    agent = chain("scope")
    scripted(agent, lambda row: "8+8=1;3")  # the first step is wrong already
    rows = kept_rows(agent)
    agent.collect()
    assert not any(row.origins for row in rows)
    assert agent.trainer.silent == ["advantage", "mechanism", "teacher"]


def test_prefixes_come_from_right_answers_and_have_one_length_a_group() -> None:
    agent = chain("prefix_rl", prompts=5)
    tries = [0]

    def speak(row: Conversation) -> str:
        own, whole = begun(agent, row), shown(agent, row)
        tries[0] += 1
        if own:
            assert whole.startswith(own)
            return whole[len(own) :] if tries[0] % 2 else "7"
        return whole if tries[0] % 4 == 0 else "1"

    known = scripted(agent, speak)
    rows, part = kept_rows(agent), part_of(agent, SolvedPrefixes)
    found = agent.sample_round()
    assert part.bank is not None and len(part.bank) == prefixes.BANK  # a quarter of four: one each
    for values in part.bank:
        trace = Conversation.from_plain(values)
        assert trace.replies[-1].success and not trace.problem.held_out
    assert len(rows) == 20 and not any(row.origins for row in rows[:8])
    texts = {tuple(v["tokens"]) for v in part.bank}
    for place in (8, 12, 16):
        (lengths,) = {tuple(len(p) for p in (row.origins,)) for row in rows[place : place + 4]}
        spans = {row.origins[0] for row in rows[place : place + 4]}
        assert lengths == (1,) and len(spans) == 1  # one problem, one length
        ((start, stop, who),) = spans
        assert who == PREFIX
        row = rows[place]
        whole = next(t for t in texts if t[:stop] == tuple(row.tokens[:stop]))
        assert 0.4 - 1 / 20 <= (stop - start) / (len(whole) - start) <= 0.8 + 1 / 20
        for i in range(place, place + 4):
            assert not found.data.mask[i, : stop - 1].any()
            assert bool(found.data.mask[i, stop - 1])
    assert found.data.signals["aided"][:, 0].tolist() == [0.0] * 8 + [1.0] * 12
    assert part.acts == 1.0
    assert len(known) == 4 * prefixes.BANK + 20
    before = list(part.bank)
    agent.sample_round()
    assert part.bank == before and len(known) == 4 * prefixes.BANK + 40  # once


def test_without_a_right_answer_there_are_no_prefixes() -> None:
    agent = chain("prefix_rl")
    scripted(agent, lambda row: "1")
    rows = kept_rows(agent)
    agent.collect()
    assert part_of(agent, SolvedPrefixes).bank == [] and not any(r.origins for r in rows)
    assert agent.trainer.silent == ["advantage", "mechanism"]
    assert float(agent.of_round["rollout/acts"]) == 0.0


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_hints_are_as_long_as_the_problem_is_hard(wrong: int) -> None:
    """Of two answers without help `wrong` are wrong."""
    agent = chain("adhint", prompts=2)
    count = [0]

    def speak(row: Conversation) -> str:
        own, whole = begun(agent, row), shown(agent, row)
        count[0] += not own
        if own:
            assert whole.startswith(own)
            return whole[len(own) :]
        return "1" if count[0] % 2 < wrong else whole

    scripted(agent, speak)
    rows, part = kept_rows(agent), part_of(agent, HintedPrefixes)
    found = agent.sample_round()
    weights, aided = (found.data.signals[n][:, 0] for n in ("hint_weight", "aided"))
    if wrong == 0:
        assert part.acts == 0 and aided.tolist() == [0.0] * 8 and weights.tolist() == [1.0] * 8
        assert found.data.groups["prompt"][:, 0].tolist() == [0] * 4 + [1] * 4
        return
    assert part.acts == 1
    rise = wrong / 2
    up, down = 1 + rise, 1 - rise
    assert weights.tolist() == pytest.approx([up, up, down, down] * 2)
    assert aided.tolist() == [0.0, 0.0, 1.0, 1.0] * 2
    assert found.data.groups["prompt"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for row in (rows[2], rows[7]):
        ((start, stop, who),) = row.origins
        said = len(shown(agent, Conversation(row.problem, []))) + 1
        assert stop - start == min(math.ceil(0.8 * wrong / 2 * said - 1e-9), said - 1)
        assert who == TEACHER and len(places(row)) == said
    # A wrong end pushes no token of the hint.
    agent.take_in(found)
    assert agent.data is not None
    t, advantage = agent.data.data, agent.data.estimate.advantage
    assert bool(((t.signals["teacher"] > 0.5) & t.mask).any()) and torch.isfinite(advantage).all()


def test_a_wrong_end_has_no_gradient_at_its_hint() -> None:
    agent = chain("adhint", prompts=2)
    count = [0]

    def speak(row: Conversation) -> str:
        count[0] += 1
        own, whole = begun(agent, row), shown(agent, row)
        return (whole[len(own) :] if count[0] % 2 else "7") if own else "1"

    scripted(agent, speak)
    agent.collect()
    assert agent.data is not None
    t, found = agent.data.data, agent.data.estimate
    log_prob = t.log_probs["old"].clone().requires_grad_()
    plain = dataclasses.replace(agent.recipe, regularisers=())
    value, _ = loss(plain, log_prob, t, found)
    (gradient,) = torch.autograd.grad(value, log_prob)
    hint = t.mask & (t.signals["teacher"] > 0.5)
    wrong, good = (hint & (s * found.advantage > 0) for s in (-1, 1))
    assert bool(wrong.any()) and bool(good.any())
    assert not gradient[wrong].any() and bool((gradient[good] < 0).all())


def test_interventions_end_with_the_corrected_step() -> None:
    agent = chain("int_rl")
    errs_once(agent)
    rows, part = kept_rows(agent), part_of(agent, Interventions)
    found = agent.sample_round()
    kept = [i for i, row in enumerate(rows) if row.origins]
    assert len(kept) == 12 and part.acts == 1.0  # one of each failed answer
    for i in kept:
        row = rows[i]
        ((_, stop, who),) = row.origins
        steps = shown(agent, Conversation(row.problem, [])).split(";")
        assert agent.codec.decode(row.tokens[row.spans[0][0] :]) == f"{steps[0]};{steps[1]};"
        assert who == TEACHER and stop == len(row.tokens)  # nothing after it, no end either
        assert row.tokens[-1] != agent.codec.end
        assert str(row.problem.facts["answer"]) not in f"{steps[0]};{steps[1]};".split("=")
        assert bool(found.data.mask[i, row.spans[0][0] - 1 : len(row.tokens) - 1].all())
        assert float(found.data.reward[i].sum()) == 0
    signals = found.data.signals
    assert signals["demonstration"][:, 0].tolist() == signals["trained"][:, 0].tolist()
    assert signals["trained"][:, 0].tolist() == [float(i in kept) for i in range(24)]
    agent.take_in(found)
    assert agent.data is not None and len(agent.data.rollouts) == 12
    assert not agent.data.estimate.advantage.any()  # by heart alone


def test_interventions_after_which_nobody_succeeds_are_gone() -> None:
    agent = chain("int_rl")

    def speak(row: Conversation) -> str:
        own, whole = begun(agent, row), shown(agent, row)
        return "0" if own else f"{whole.partition(';')[0]};9+9=1;1"

    scripted(agent, speak)
    rows = kept_rows(agent)
    found = agent.sample_round()
    assert not any(row.origins for row in rows) and len(rows) == 12
    assert found.data.signals["trained"][:, 0].tolist() == [1.0] * 12
    assert part_of(agent, Interventions).acts == 0


def test_rewards_come_after_the_rounds_of_interventions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "INTERVENTION_ROUNDS", 1)
    agent = chain("int_rl")
    errs_once(agent)
    rows = kept_rows(agent)
    agent.sample_round()
    assert len(rows) == 24
    agent.sample_round()
    assert len(rows) == 12 and not any(row.origins for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_they_resume_exactly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "BANK", 6)
    agent = learner("calculator", name, levels=(2,), turn_tokens=4)
    agent.task = lenient(agent.task)
    again = continued(agent, tmp_path, 2, 2, rounds)
    assert again.of_round["rollout/acts"] == agent.of_round["rollout/acts"]


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"sampling.top_p is 0.9: recipe .* set it to 1"):
        LanguageConfig(task="chain", recipe=name, sampling=Sampling(top_p=0.9))
    with pytest.raises(ConfigError, match="has rounds of its own"):
        LanguageConfig(task="chain", recipe=name, templates=2)
    if name in ("scope", "int_rl"):
        with pytest.raises(ConfigError, match=r"program that corrects.*addition.*: chain, bra"):
            LanguageConfig(task="addition", recipe=name)


@pytest.mark.parametrize("changes", [{"stages": ("chain", "brackets")}, {"shares_of": "learned"}])
def test_a_bank_that_is_filled_at_first_knows_no_later_stage(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="prefix_rl has its problems before the first round"):
        LanguageConfig(task="chain+brackets", recipe="prefix_rl", **changes)
