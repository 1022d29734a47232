"""Teachers at the policy's own steps, against passes of one token, and depths that grow."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.learner import ModelConfig
from algorithms.language.measures import teachers
from algorithms.language.measures.teachers import (
    ExpertDistribution,
    GrowingDepth,
    HindsightTeacher,
    InformedTeacher,
    TeacherFirst,
    places_in_turns,
)
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    MODEL,
    at_turns,
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    rounds,
    shake,
)

DISTILLED = ("on_policy_distillation", "tcod", "tcod_backward")


@pytest.fixture
def expert(tmp_path: Path) -> str:
    """Another model."""
    agent = learner("calculator", "grpo", seed=5)
    shake(agent.model, 9)
    agent.save(tmp_path / "expert.pt")
    return str(tmp_path / "expert.pt")


def made(name: str, expert: str | None = None, **settings: Any) -> LanguagePolicyGradient:
    known = {"levels": (2,), "turn_tokens": 4, "minibatches": 1} | settings
    agent = learner("calculator", name, expert=expert, **known)
    agent.task = lenient(agent.task)
    return agent


def whole_law(model: Any, tokens: list[int]) -> list[float]:
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0, -1].double().log_softmax(-1).tolist()


def slow_kl(p: list[float], q: list[float]) -> float:
    return sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))


def test_divergences_from_an_expert_at_every_step(expert: str) -> None:
    agent = made("on_policy_distillation", expert)
    found = agent.trainer.estimated(agent.sample_round()).rollouts
    teacher = part_of(agent, ExpertDistribution).model
    t = found.data
    for i in range(len(found)):
        tokens = found.tokens[i].tolist()
        for step in t.mask[i].nonzero().flatten().tolist():
            p, q = (whole_law(m, tokens[: step + 1]) for m in (agent.model, teacher))
            assert float(t.signals["reverse_kl"][i, step]) == pytest.approx(
                slow_kl(p, q), rel=1e-3, abs=1e-4
            )
            assert float(t.signals["forward_kl"][i, step]) == pytest.approx(
                slow_kl(q, p), rel=1e-3, abs=1e-4
            )
    assert not t.signals["reverse_kl"][~t.mask].any()


@pytest.mark.parametrize("rows_at_once", [256, 2])
def test_the_gradient_is_that_of_the_current_divergence(expert: str, rows_at_once: int) -> None:
    """In one pass and in parts: the weights move as by a loss that is written out here."""
    agent = made("on_policy_distillation", expert, rows_at_once=rows_at_once, clip_norm=1e9)
    agent.collect()
    batch = agent.next_batch()
    teacher = part_of(agent, ExpertDistribution).model
    t, terms = batch.data, []
    for i in range(len(batch.rollouts)):
        own = []
        for step in t.mask[i].nonzero().flatten().tolist():
            tokens = batch.rollouts.tokens[i : i + 1, : step + 1]
            log_p = agent.model(tokens)[0, -1].log_softmax(-1)
            log_q = teacher(tokens)[0, -1].log_softmax(-1)
            own.append((log_p.exp() * (log_p - log_q)).sum())
        terms.append(torch.stack(own).mean())
    wanted = torch.stack(terms).mean()
    slow = torch.autograd.grad(wanted, list(agent.model.parameters()))
    metrics = agent.update(batch)
    assert float(metrics["policy/loss"]) == pytest.approx(float(wanted.detach()), rel=1e-4)
    for p, g in zip(agent.model.parameters(), slow, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, g, rtol=2e-3, atol=1e-5)


def test_an_expert_teaches_the_policy(expert: str) -> None:
    """Its divergence falls."""
    agent = made("on_policy_distillation", expert, learning_rate=3e-3, warm_up=0, group=8)
    falls = []
    for _ in range(25):
        for _ in range(agent.collect()):
            agent.update(agent.next_batch())
        assert agent.data is not None
        t = agent.data.data
        falls.append(float(t.signals["reverse_kl"][t.mask].mean()))
    assert sum(falls[-5:]) < 0.8 * sum(falls[:5]) and agent.trainer.silent == []


def test_places_in_turns(expert: str) -> None:
    agent = made("tt_opd")
    found = agent.sample_round()
    for row in at_turns(found, places_in_turns(found)):
        for turn in row:
            assert turn == list(range(len(turn)))


def test_the_informed_teacher_sees_the_hint_and_follows_slowly() -> None:
    agent = made("tt_opd", learning_rate=0.05, warm_up=0)
    part = part_of(agent, InformedTeacher)
    weights = [p.detach().clone() for p in agent.model.parameters()]
    averages = [p.clone() for p in part.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(weights, averages, strict=True))
    for _ in range(3):
        for _ in range(agent.collect()):
            if agent.updates == 2:
                check_informed(agent, part)
            agent.update(agent.next_batch())
            now = [p.detach() for p in agent.model.parameters()]
            averages = [0.999 * a + 0.001 * w for a, w in zip(averages, now, strict=True)]
    for a, p in zip(averages, part.model.parameters(), strict=True):
        torch.testing.assert_close(a, p, rtol=1e-4, atol=1e-6)
    assert not any(p.requires_grad for p in part.model.parameters())


def check_informed(agent: LanguagePolicyGradient, part: InformedTeacher) -> None:
    assert agent.data is not None
    found = agent.data.rollouts
    t = found.data
    for i in range(len(found)):
        tokens, problem = found.tokens[i].tolist(), found.problems[i]
        bare = agent.codec.opening(problem.prompt)
        more = agent.codec.opening(f"{problem.prompt}#{agent.task.hint(problem, [])}")
        for step in t.mask[i].nonzero().flatten().tolist():
            p = whole_law(agent.model, tokens[: step + 1])
            q = whole_law(part.model, [*more, *tokens[len(bare) : step + 1]])
            assert float(t.signals["reverse_kl"][i, step]) == pytest.approx(
                slow_kl(p, q), rel=2e-3, abs=2e-4
            )
    near = at_turns(found, t.signals["near"])
    for row in near:
        for turn in row:
            assert turn == [float(k < 2) for k in range(len(turn))]  # half of four tokens
    at = t.mask & (t.signals["near"] > 0.5)
    assert part.acts == pytest.approx(float(t.signals["reverse_kl"][at].mean()))


def test_without_a_hint_the_informed_teacher_is_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = made("tt_opd")
    monkeypatch.setattr(type(agent.task), "hint", lambda self, problem, turns: "")
    agent.collect()
    assert agent.data is not None
    assert float(agent.data.data.signals["reverse_kl"].abs().max()) < 1e-5
    assert "mechanism" in agent.trainer.silent
    metrics = agent.update(agent.next_batch())
    assert float(metrics["rollout/no_signal"]) == 1.0


def test_hindsight_scores_failed_conversations_after_the_hint() -> None:
    agent = made("openclaw_rl", group=6)
    found = agent.trainer.estimated(agent.sample_round())
    rollouts, t, moved = found.rollouts, found.data, []
    for i in range(len(rollouts)):
        tokens, problem, mask = rollouts.tokens[i].tolist(), rollouts.problems[i], t.mask[i]
        bare = agent.codec.opening(problem.prompt)
        solved = rollouts.replies[i][-1].success
        text = "" if solved else f"#{agent.task.hint(problem, [])}"
        more = agent.codec.opening(problem.prompt + text)
        for step in mask.nonzero().flatten().tolist():
            old = log_probs(agent.model, tokens[: step + 1], [tokens[step + 1]])[0]
            context = [*more, *tokens[len(bare) : step + 1]]
            teacher = log_probs(agent.model, context, [tokens[step + 1]])[0]
            assert float(t.log_probs["teacher"][i, step]) == pytest.approx(teacher, abs=1e-3)
            reward = 1.0 if solved else -1.0
            wanted = reward + max(-5.0, min(5.0, teacher - old))
            assert float(found.estimate.advantage[i, step]) == pytest.approx(wanted, abs=2e-3)
            if not solved:
                moved.append(abs(teacher - old))
    assert part_of(agent, HindsightTeacher).acts == pytest.approx(sum(moved) / len(moved), abs=1e-3)


def test_depth_grows_turn_by_turn(expert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teachers, "DEPTH_EVERY", 2)
    agent = made("tcod", expert)
    for number in range(20):
        found = agent.sample_round()
        depth = min(8, 1 + number // 2)
        assert max(len(turns) for turns in found.turns) <= depth
        broken = [not r[-1].done for r in found.replies]
        assert all(len(t) == depth for t, b in zip(found.turns, broken, strict=True) if b)
        assert part_of(agent, GrowingDepth).acts == sum(broken) / len(broken)
    assert part_of(agent, GrowingDepth).acts == 0  # the task's own limit


def test_at_full_depth_it_is_plain_distillation(expert: str) -> None:
    """Bit for bit: the same conversations, signals and weights."""
    plain, deep = (made(n, expert) for n in ("on_policy_distillation", "tcod"))
    part_of(deep, GrowingDepth).rounds = 1000
    for agent in (plain, deep):
        rounds(agent, 2)
    pairs = zip(plain.model.parameters(), deep.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_expert_begins_and_is_not_trained_on(
    expert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = made("tcod_backward", expert, group=2, prompts=6)
    shown: list[Any] = []
    usual = teachers.advance

    def advance(model: Any, codec: Any, task: Any, rows: Any, limits: Any) -> None:
        assert model is part_of(agent, ExpertDistribution).model
        usual(model, codec, task, rows, limits)
        shown.extend(rows)

    monkeypatch.setattr(teachers, "advance", advance)
    rows = kept_rows(agent)
    before = agent.tokens["sampled"]
    found = agent.sample_round()
    t, part = found.data, part_of(agent, TeacherFirst)
    given = [row.given for row in rows]
    assert given[::2] == [len(row.turns) - 1 for row in shown]  # one turn is left at first
    assert any(given)
    for row, start in zip(rows[::2], shown, strict=True):
        assert row.turns[: row.given] == start.turns[: row.given]
    assert part.acts == sum(g > 0 for g in given[::2]) / 6 > 0
    assert given[::2] == given[1::2]  # a group goes on from one place
    own = sum(len(row.behaviour) for row in rows)
    assert agent.tokens["sampled"] - before > own  # the expert's count, too
    for i, row in enumerate(rows):
        assert not t.mask[i, : row.spans[row.given][0] - 1].any()
        assert int(t.mask[i].sum()) == len(row.behaviour)
        assert not t.reward[i, : row.spans[row.given][0] - 1].any()


@pytest.mark.parametrize("name", [*DISTILLED, "tt_opd", "openclaw_rl"])
def test_they_resume_exactly(name: str, tmp_path: Path, expert: str) -> None:
    agent = made(name, expert)
    continued(agent, tmp_path, 2, 2, rounds)


def test_what_cannot_be_is_refused() -> None:
    for name in DISTILLED:
        with pytest.raises(ConfigError, match="needs an expert; give `expert`"):
            LanguageConfig(task="calculator", recipe=name)
    with pytest.raises(ConfigError, match=r"several turns, and chain has one; a task.*calc"):
        LanguageConfig(task="chain", recipe="tcod", expert="x")
    for name in ("tt_opd", "openclaw_rl"):
        with pytest.raises(ConfigError, match="needs hints, which addition does not have"):
            LanguageConfig(task="addition", recipe=name)


@pytest.mark.parametrize("name", ["on_policy_distillation", "tt_opd", "openclaw_rl"])
def test_teachers_see_bare_prompts(name: str) -> None:
    with pytest.raises(ConfigError, match="templates is 3: the teacher of recipe"):
        LanguageConfig(task="calculator", recipe=name, expert="x", templates=3)


def test_one_answer_to_a_prompt_is_enough_where_a_teacher_tells_what_is_better(expert: str) -> None:
    agent = made("on_policy_distillation", expert, group=1)
    before = [weight.clone() for weight in agent.model.parameters()]
    rounds(agent, 1)
    pairs = zip(before, agent.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_an_expert_with_other_heads_is_another_model(tmp_path: Path) -> None:
    """Its weights have the same shapes."""
    sizes = dataclasses.replace(MODEL.transformer, heads=4)
    learner("addition", "grpo", model=ModelConfig(transformer=sizes)).save(tmp_path / "expert.pt")
    with pytest.raises(ConfigError, match=r"has transformer\.heads 4, this one transformer\.heads"):
        made("on_policy_distillation", str(tmp_path / "expert.pt"))
