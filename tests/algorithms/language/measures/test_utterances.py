"""Critics of whole turns: what they are fitted to, what they are fitted on, what they find."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from algorithms.language import tasks
from algorithms.language.measures import utterances
from algorithms.language.measures.utterances import DISCOUNT, Utterances, ended_after
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.tasks.base import Problem, Reply, TextTask
from mbrl.errors import ConfigError
from mbrl.training import train
from tests.algorithms.language.cases import (
    continued,
    features,
    learner,
    lenient,
    part_of,
    shake,
    starts,
)
from tests.algorithms.language.small import Digits


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", Digits())


def talking(**settings: int) -> tuple[LanguagePolicyGradient, Utterances]:
    agent = learner("digits", "archer", **{"turn_tokens": 3, "prompts": 3, "group": 3} | settings)
    agent.task = lenient(agent.task)
    return agent, part_of(agent, Utterances)


def test_what_critics_of_turns_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterances, "STEPS", 1)
    agent, part = talking()
    found = agent.sample_round()
    shake(part.heads, 4)
    shake(part.slow, 5)
    signals = part.measure(found).data.signals
    for i in range(len(found)):
        row, ((start, stop),) = found.tokens[i].tolist(), starts(found, i)
        q = features(part.heads, row[:stop]).tolist()[:2]
        v = features(part.heads, row[:start]).tolist()[2:]
        for step in range(start - 1, stop - 1):
            assert float(signals["utterance_q"][i, step]) == pytest.approx(min(q), abs=1e-4)
            assert float(signals["utterance_v"][i, step]) == pytest.approx(min(v), abs=1e-4)
    chosen = [(i, k) for i, row in enumerate(part.replay) for k in range(len(row.turns))]
    taken, now = part.turns(chosen)
    assert len(chosen) > len(part.replay)
    wanted_q, wanted_v = part.wanted(taken, now)
    ended = 0
    for n, (i, k) in enumerate(chosen):
        row, (start, stop) = part.replay[i], part.replay[i].spans[k]
        assert starts(taken, n) == [(start, stop)]
        assert taken.tokens[n, :stop].tolist() == row.tokens[:stop]
        # In the same state, after the same words.
        assert now.tokens[n, :start].tolist() == row.tokens[:start]
        ((begin, end),) = starts(now, n)
        assert begin == start
        after = [0.0, 0.0]
        if not row.replies[k].done:
            heard = agent.codec.between(row.replies[k].observation)
            after = features(part.slow, [*row.tokens[:stop], *heard]).tolist()[2:]
        ended += row.replies[k].done
        q = [row.replies[k].reward + DISCOUNT * x for x in after]
        assert wanted_q[n, stop - 2].tolist() == pytest.approx(q, abs=1e-4)
        v = features(part.slow, now.tokens[n, :end].tolist()).tolist()[:2]
        assert wanted_v[n, start - 1].tolist() == pytest.approx(v, abs=1e-4)
    assert 0 < ended < len(chosen)


def test_targets_follow_slowly() -> None:
    agent, part = talking()
    agent.sample_round()
    q = part.heads.head.weight[:2]
    assert not torch.equal(q[0], q[1])  # two critics differ from the beginning
    first = [p.clone() for p in part.slow.parameters()]
    part.step(part.turns(part.draw(4)))
    now = zip(first, part.slow.parameters(), part.heads.parameters(), strict=True)
    for old, slow, fast in now:
        torch.testing.assert_close(slow, old + 0.1 * (fast.detach() - old))


def test_states_come_from_all_rounds_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterances, "STEPS", 0)
    monkeypatch.setattr(utterances, "KEPT", 20)
    agent, part = talking()
    agent.sample_round()
    assert part.acts == 0.0 and len(part.replay) == 9
    agent.sample_round()
    assert part.acts is not None and 0 < part.acts < 1
    for _ in range(3):
        agent.sample_round()
    assert len(part.replay) == 20
    counts = Counter(part.draw(20_000))
    every = sum(len(row.turns) for row in part.replay)
    assert len(counts) == every
    assert max(counts.values()) < 1.5 * 20_000 / every
    kept = ended_after(part.replay[0], 0)
    assert kept.given == 0 and len(kept.behaviour) == kept.spans[0][1] - kept.spans[0][0]


def test_a_policy_waits_for_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterances, "WARM_UP", 2)
    monkeypatch.setattr(utterances, "STEPS", 2)
    agent, part = talking()
    for round_ in range(4):
        nets = (agent.model, part.heads)
        before = [[p.detach().clone() for p in net.parameters()] for net in nets]
        train(agent, round_ + 1, collector=agent)
        moved = [
            any(not torch.equal(a, b) for a, b in zip(old, net.parameters(), strict=True))
            for old, net in zip(before, nets, strict=True)
        ]
        assert moved == [round_ >= 2, True]


@pytest.mark.long
def test_critics_find_the_values_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a task of one turn, where half of the digits are right: V is the policy's success."""
    monkeypatch.setattr(utterances, "STEPS", 60)
    agent, part = talking(prompts=16, group=4, turn_tokens=1)
    agent.task.max_turns = 1  # type: ignore[misc]
    for group in part.optimisers["utterances"].param_groups:
        group["lr"] = 3e-3
    for _ in range(4):
        found = agent.sample_round()
    assert part.success is not None
    first = [int(found.data.mask[i].nonzero()[0]) for i in range(len(found))]
    signals = part.measure(found).data.signals
    v = torch.stack([signals["utterance_v"][i, at] for i, at in enumerate(first)])
    q = torch.stack([signals["utterance_q"][i, at] for i, at in enumerate(first)])
    won = torch.tensor([row.replies[-1].reward for row in part.replay]).mean()
    assert float(v.mean()) == pytest.approx(float(won), abs=0.15)
    right = found.success
    assert float(q[right].mean()) > float(q[~right].mean()) + 0.3


class Even(TextTask):
    """Two turns of a character each: won where both have even codes."""

    name, title = "even", "two even characters"
    splits, levels, trained = False, (1,), (1,)
    max_turns, turn_length, prompt_length = 2, 1, 1

    def draw(self, level: int, rng: random.Random) -> Problem:
        return Problem("s", level)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        if len(turns) == 1:
            return Reply(done=False, observation="+")
        won = all(ord(c) % 2 == 0 for turn in turns for c in turn)
        return Reply(float(won), success=won)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return "b"


@pytest.mark.long
def test_critics_find_the_values_of_a_dynamic_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a policy that stays as it is, whose first and second turns are enumerated."""
    monkeypatch.setitem(tasks.TASKS, "even", Even())
    monkeypatch.setattr(utterances, "STEPS", 100)
    agent = learner("even", "archer", turn_tokens=1, prompts=8, group=8)
    part, codec = part_of(agent, Utterances), agent.codec
    for p in agent.model.parameters():
        p.data.mul_(0.4 if p.ndim == 2 else 1.0)
    part.begin()
    for group in part.optimisers["utterances"].param_groups:
        group["lr"] = 3e-3
    start = codec.opening("s")

    def policy(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            features = agent.model.features(torch.tensor([tokens]))[0, -1]
            return torch.softmax(agent.model.head(features), -1)

    first = policy(start)
    even = torch.tensor(
        [all(ord(c) % 2 == 0 for c in codec.decode([t])) for t in range(len(first))]
    )
    after = [policy([*start, token, *codec.between("+")]) for token in range(len(first))]
    exact = DISCOUNT * even * torch.stack([(p * even).sum() for p in after])
    values, worth = [], []
    for round_ in range(14):
        part.roll_out([agent.task.draw(1, random.Random(0))] * 8)
        if round_ >= 8:
            values.append(features(part.heads, start)[2:].mean())
            known = [
                features(part.heads, [*start, token])[:2].mean() for token in range(len(first))
            ]
            worth.append(torch.stack(known))
    value, q = torch.stack(values).mean(), torch.stack(worth).mean(0)
    assert float(value) == pytest.approx(float((first * exact).sum()), abs=0.04)
    spread = (first * (exact - (first * exact).sum()).square()).sum().sqrt()
    error = (first * (q - exact).square()).sum().sqrt()
    assert float(spread) > 0.15 and float(error) < 0.07


def test_it_refuses_a_horizon() -> None:
    with pytest.raises(ConfigError, match=r"horizon is .2,.: recipe archer draws turns"):
        LanguageConfig(task="guessing", recipe="archer", horizon=(2,))


def test_it_resumes_exactly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(utterances, "WARM_UP", 0)
    monkeypatch.setattr(utterances, "STEPS", 2)
    agent, part = talking()
    again = continued(agent, tmp_path, 2, 1)
    assert [r.plain() for r in part.replay] == [
        r.plain() for r in part_of(again, Utterances).replay
    ]
