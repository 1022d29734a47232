"""A second policy beside the first: what it sees, what it earns, its gradient, hints."""

import copy
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.measures import partners
from algorithms.language.measures.partners import Hinter, Observer, hint_reward
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.tasks import TASKS, text_task
from algorithms.language.tasks.hinting import leaks
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import (
    continued,
    kept_rows,
    learner,
    lenient,
    log_probs,
    part_of,
    scripted,
    shake,
)

Speak = Callable[[Conversation], str]


def second_says(monkeypatch: pytest.MonkeyPatch, agent: Any, speak: Speak) -> list[Conversation]:
    """Have the second policy say what `speak` makes of a conversation."""
    heard: list[Conversation] = []

    def advance(
        model: Any, codec: Any, task: Any, rows: Sequence[Conversation], *rest: Any, **options: Any
    ) -> None:
        assert model is not agent.model
        for row in rows:
            heard.append(row.again(row.seed))
            tokens = codec.turn(speak(row))
            row.extend_turn(tokens)
            row.behaviour += [-1.0] * len(tokens)
            row.model += [-1.0] * len(tokens)
            row.versions += [0] * len(tokens)
            row.finish(task, codec, 1)

    monkeypatch.setattr(partners, "advance", advance)
    return heard


def question(agent: Any, row: Conversation) -> str:
    """What stood before the first turn."""
    return agent.codec.decode(row.tokens[1 : row.tokens.index(2)])


def right(agent: Any, row: Conversation) -> str:
    return agent.task.demonstration(row.problem, [], random.Random(0))


def cory(**settings: Any) -> LanguagePolicyGradient:
    return learner("addition", "cory", **{"levels": (4,), "prompts": 2, "group": 3} | settings)


def test_both_earn_the_sum_and_roles_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = cory()
    monkeypatch.setattr(partners, "EXCHANGE", 2)
    part, learned = part_of(agent, Observer), list[Any]()
    monkeypatch.setattr(part.second, "learn", lambda *values: learned.append(values))

    def odd(row: Conversation) -> str:
        return right(agent, row) if row.seed % 2 else "5"

    first = scripted(agent, odd)
    other = second_says(monkeypatch, agent, odd)
    rows = kept_rows(agent)
    for number in range(4):
        first.clear(), other.clear()
        found = agent.sample_round()
        leads = number < 2
        pioneers, observers = (first, other) if leads else (other, first)
        said = rows if leads else [row for group in learned[-1][0] for row in group]
        for i, (a, b) in enumerate(zip(pioneers, observers, strict=True)):
            assert a.problem == b.problem and question(agent, a) == a.problem.prompt
            assert question(agent, b) == f"{a.problem.prompt}|{said[i].turns[0]}!"
        groups, worths = learned[-1]
        theirs = [row for group in groups for row in group]
        assert [len(group) for group in groups] == [3, 3] and len(rows) == 6
        totals = [
            float(a.replies[0].success) + float(b.replies[0].success)
            for a, b in zip(rows, theirs, strict=True)
        ]
        assert worths == totals == found.data.signals["team"][:, 0].tolist()
        assert found.data.signals["aided"].unique().tolist() == [float(not leads)]
        assert found.data.groups["prompt"][:, 0].tolist() == [0] * 3 + [1] * 3
        apart = sum(t == 1 for t in totals) / 6
        assert part.acts == apart


def test_the_second_policys_gradient_is_that_of_the_objective() -> None:
    """One update on its own conversations, on-policy: -mean A log pi plus the divergence from where
    it began, tokens one by one; its step is Adam's first."""
    agent = cory(turn_tokens=3)
    second = part_of(agent, Observer).second
    shake(second.model, 1)
    model, first = (copy.deepcopy(m).double() for m in (second.model, second.first))
    groups = second.answers(agent.collector.open([agent.problem(i) for i in (0, 1)]), 3)
    worths = [0.0, 2.0, 1.0, 1.0, 1.0, 0.0]
    second.learn(groups, worths)
    terms = []
    for g, group in enumerate(groups):
        own = torch.tensor(worths[3 * g : 3 * g + 3], dtype=torch.float64)
        advantage = (own - own.mean()) / (own.std() + 1e-4)
        for row, a in zip(group, advantage, strict=True):
            (start, stop), tokens = row.spans[0], torch.tensor([row.tokens])
            known = log_probs(first, row.tokens[:start], row.tokens[start:stop])
            logits = model(tokens[:, :-1])[0].log_softmax(-1)
            for k, at in enumerate(range(start, stop)):
                log_p = logits[at - 1, row.tokens[at]]
                d = log_p - known[k]
                ratio = (log_p - log_p.detach()).exp()
                terms.append(-ratio * a + 0.04 * (torch.exp(-d) + d - 1))
    torch.stack(terms).mean().backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    scale = min(1.0, 1.0 / float(norm))  # clipped to 1
    for mine, slow in zip(second.model.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None and slow.grad is not None
        torch.testing.assert_close(mine.grad.double(), scale * slow.grad, rtol=2e-3, atol=2e-5)


def hill(**settings: Any) -> LanguagePolicyGradient:
    return learner("chain", "hill", **{"levels": (4,), "prompts": 3, "group": 4} | settings)


def test_a_hints_reward_as_the_authors_have_it() -> None:
    assert hint_reward(4, 8, 0.0) == pytest.approx(1 - 2 / 256)
    assert hint_reward(4, 8, -0.3) == pytest.approx((1 - 2 / 256) * math.exp(-1))
    assert hint_reward(4, 8, 1.0) == pytest.approx(1 - 2 / 256)
    assert hint_reward(8, 8, 0.0) == hint_reward(0, 8, 0.0) == 0.0
    assert hint_reward(1, 4, 0.0) == pytest.approx(1 - 0.25**4 - 0.75**4)


def test_answers_that_are_given_away_are_seen() -> None:
    assert leaks("4*2=8;11", "4*2=8;3+8=11;11") and leaks("11", "3+8=11;11")
    assert not leaks("4*2=8", "4*2=8;3+8=11;11") and not leaks("111+1", "3+8=11;11")
    assert leaks("x()[]", "()[]") and not leaks("()", "()[]")
    assert leaks("add: 16", "<11;16><16>") and not leaks("11;161", "<11;16><16>")
    assert leaks("so -5", "-5") and not leaks("-56", "-5")


def test_failed_problems_alone_have_hints_and_the_best_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = hill()
    part, learned = part_of(agent, Hinter), list[Any]()
    monkeypatch.setattr(part.second, "learn", lambda *values: learned.append(values))
    plan = {
        "good": (True, False, True, False),
        "fair": (True, True, True, True),
        "bad": (False,) * 4,
    }
    asked_for: dict[str, int] = {}

    def speak(row: Conversation) -> str:
        text = question(agent, row)
        prompt, _, hint = text.partition("#")
        asked_for[text] = asked_for.get(text, -1) + 1
        if not hint:  # the first problem is solved once without
            solved = prompt == agent.problem(0).prompt and asked_for[text] == 0
            return right(agent, row) if solved else "1"
        return right(agent, row) if plan[hint][asked_for[text] % 4] else "1"

    scripted(agent, speak)
    order = iter(["good", "fair", "bad", "", "bad", "bad", "9 leak", "bad"])
    answers_of = {p.prompt: str(p.facts["answer"]) for p in (agent.problem(i) for i in range(3))}
    heard = second_says(
        monkeypatch,
        agent,
        lambda row: next(order).replace("9 leak", f"is {answers_of[row.problem.prompt]}"),
    )
    rows = kept_rows(agent)
    found = agent.sample_round()
    failed = [agent.problem(i) for i in (1, 2)]
    for i, row in enumerate(heard):
        problem = failed[i // 4]
        shown = agent.task.demonstration(problem, [], random.Random(0))
        assert question(agent, row) == f"{problem.prompt}|1|{shown}~"
    trained = found.data.signals["trained"][:, 0].tolist()
    aided = found.data.signals["aided"][:, 0].tolist()
    assert trained == [1.0] * 4 + [0.0] * 4 + [1.0] * 4 + [1.0] * 4
    assert aided == [0.0] * 8 + [1.0] * 4 + [0.0] * 4
    for row in rows[8:12]:  # after the hint, which stays
        assert question(agent, row) == f"{failed[0].prompt}#good"
    groups, worths = learned[0]
    assert [len(g) for g in groups] == [4, 4]
    assert worths[1:] == [0.0, 0.0, -0.2, 0.0, 0.0, -0.2, 0.0] and worths[0] > 0
    assert part.acts == 0.5
    # What right answers rely on: log-probs of sampling are -1 each.
    apart = []
    for row in (rows[8], rows[10]):
        start, stop = row.spans[0]
        bare = agent.codec.opening(row.problem.prompt)
        known = log_probs(agent.model, bare, row.tokens[start:stop])
        apart.append(sum(known) / len(known) + 1)
    expected = hint_reward(2, 4, sum(apart) / 2)
    assert worths[0] == pytest.approx(expected, rel=1e-3)
    agent.take_in(found)
    assert float(agent.of_round["rollout/success"]) == pytest.approx(1 / 12)


def test_hints_as_a_task() -> None:
    task = text_task("hinting-chain")
    for seed in range(30):
        problem = task.problem(4, random.Random(seed))
        start, wrong, shown = problem.prompt[:-1].split("|")
        inner = TASKS["chain"].problem(4, random.Random(seed))
        assert inner.prompt == start and problem.prompt.endswith("~")
        assert TASKS["chain"].reply(inner, [shown]).success
        assert not TASKS["chain"].reply(inner, [wrong]).success
        hint = TASKS["chain"].hint(inner, [])
        assert task.demonstration(problem, [], random.Random(0)) == hint and hint
        assert not leaks(hint, shown) and len(problem.prompt) <= task.prompt_length
        assert task.reply(problem, [hint]).success and not task.reply(problem, [""]).success
    with pytest.raises(ConfigError, match="addition has no hints"):
        text_task("hinting-addition")


@pytest.mark.parametrize("name", ["cory", "hill"])
def test_they_resume_exactly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Hints of a model that can do nothing are refused but for some, so that they differ.
    text = lambda row: "\ufffd" not in row.turns[0] and row.seed % 2 == 0  # noqa: E731
    monkeypatch.setattr(partners, "sayable", text)
    agent = cory(turn_tokens=3) if name == "cory" else hill(turn_tokens=3, prompts=8, group=2)
    agent.task = lenient(agent.task)
    before = [p.clone() for p in agent.measures[0].second.model.parameters()]  # type: ignore[attr-defined]
    again = continued(agent, tmp_path, 6, 2)
    after = again.measures[0].second.model.parameters()  # type: ignore[attr-defined]
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_it_begins_like_the_first(tmp_path: Path) -> None:
    other = learner("addition", "grpo", seed=7)
    other.save(tmp_path / "start.pt")
    agent = LanguagePolicyGradient(
        config=LanguageConfig(task="addition", recipe="cory", model=other.config.model)
    )
    agent.begin_with(tmp_path / "start.pt")
    second = part_of(agent, Observer).second
    for model in (second.model, second.first):
        pairs = zip(other.model.parameters(), model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["cory", "hill"])
def test_tasks_of_several_turns_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="of one turn"):
        LanguageConfig(task="guessing", recipe=name)
