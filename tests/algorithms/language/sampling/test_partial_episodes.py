"""Other kinds of rounds: wordings, horizons, partial histories, pruning, practised turns."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language import schedule, tasks
from algorithms.language.models.vocabulary import Characters
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.partial_episodes import (
    PivotCollector,
    PruningCollector,
    ResumedCollector,
    earned_since,
)
from algorithms.language.tasks.base import Problem, Reply
from mbrl.errors import ConfigError
from mbrl.training import train
from tests.algorithms.language.small import MODEL, Digits

KINDS: dict[str, dict[str, Any]] = {
    "templates": {"templates": 8, "scheduler": "vade", "pool": 8},
    "horizon": {"horizon": (1, 3), "horizon_every": 2},
    "starts": {"starts_share": 0.7, "starts_kept": 3},
    "steps": {"starts_share": 0.7, "starts_kept": 3, "starts_steps": 1},
    "pruned": {"prune_at": 2, "prune_to": 0.5},
    "pivots": {"pivots": 4},
}


class Even(Digits):
    """Two turns, in each an even digit below 5. Who shows how it is done says 0."""

    name = "even"
    max_turns = 2

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        right, over = turns[-1] in ("0", "2", "4"), len(turns) == 2
        state = "even" if right else "odd"
        return Reply(float(right and over), over, right and over, "" if over else "go", state)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return "0"


@pytest.fixture(autouse=True)
def _digits(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (Digits(), Even()):
        monkeypatch.setitem(tasks.TASKS, task.name, task)


def learner(warm: Path, **changes: Any) -> LanguagePolicyGradient:
    values = {"task": "digits", "model": MODEL, "prompts": 4, "group": 4, "learning_rate": 3e-3}
    agent = LanguagePolicyGradient(config=LanguageConfig(**(values | changes)))
    agent.begin_with(warm)
    return agent


def weights(agent: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in agent.model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_they_train_and_continue_bit_for_bit(kind: str, warm: Path, tmp_path: Path) -> None:
    whole, broken = learner(warm, **KINDS[kind]), learner(warm, **KINDS[kind])
    first = weights(whole)
    train(whole, 5, collector=whole)
    train(broken, 3, collector=broken)
    broken.save(tmp_path / "agent.pt")
    again = LanguagePolicyGradient.load(tmp_path / "agent.pt")
    train(again, 5, collector=again)
    assert all(torch.isfinite(w).all() for w in weights(whole))
    assert all(map(torch.equal, weights(whole), weights(again)))
    assert not all(map(torch.equal, weights(whole), first))
    assert whole.tokens == again.tokens


def test_wordings_stand_in_the_tokens_alone(warm: Path) -> None:
    agent, codec = learner(warm, templates=8, prompts=16), Characters()
    agent.collect()
    assert agent.data is not None
    found = agent.data.rollouts
    seen: dict[int, set[str]] = {}
    for i, problem in enumerate(found.problems):
        assert problem.prompt == "0-4"
        start = int(found.data.mask[i].nonzero()[0]) + 1
        text = codec.decode(found.tokens[i, 1 : start - 1].tolist())
        seen.setdefault(int(found.data.groups["prompt"][i, 0]), set()).add(text)
    wordings = {text.format("0-4") for text in schedule.TEMPLATES}
    assert all(len(texts) == 1 for texts in seen.values())
    assert len(set.union(*seen.values())) > 3 and set.union(*seen.values()) <= wordings


def test_a_prompt_that_is_asked_for_again_has_its_wording(warm: Path) -> None:
    agent = learner(
        warm, templates=8, prompts=8, pool=4, scheduler="xrpo_scheduler",
        scheduler_settings=("base=2", "step=4"),
    )  # fmt: skip
    found = agent.collector.collect()
    seen: dict[int, set[str]] = {}
    for i in range(len(found)):
        start = int(found.data.mask[i].nonzero()[0]) + 1
        prompt = int(found.data.groups["prompt"][i, 0])
        seen.setdefault(prompt, set()).add(str(found.tokens[i, :start].tolist()))
    assert len(seen) == 4 and all(len(texts) == 1 for texts in seen.values())


def test_the_horizon_grows(warm: Path) -> None:
    agent, longest = learner(warm, **KINDS["horizon"]), []
    for _ in range(4):
        agent.collect()
        assert agent.data is not None
        longest.append(max(len(turns) for turns in agent.data.rollouts.turns))
        agent.step += 1
    assert longest[:2] == [1, 1] and max(longest[2:]) == 3


def test_what_stands_before_a_start_is_not_trained_on(warm: Path) -> None:
    agent = learner(warm, **KINDS["starts"])
    started = 0
    for _ in range(6):
        agent.collect()
        assert agent.data is not None and isinstance(agent.collector, ResumedCollector)
        found = agent.data.rollouts
        t = found.data
        now = agent.measured(agent.model, found)[0]
        torch.testing.assert_close(now[t.mask], t.log_probs["behaviour"][t.mask])
        for i, turns in enumerate(found.turns):
            own = t.segments["turn"][i][t.mask[i]].unique().tolist()
            assert own == list(range(own[0], len(turns)))
            group = t.groups["prompt"][:, 0] == t.groups["prompt"][i, 0]
            if own[0] > 0:
                started += 1
                stop = int(t.mask[i].nonzero()[0]) + 1
                assert (found.tokens[group, :stop] == found.tokens[i, :stop]).all()
        assert len(agent.collector.buffer) <= 3
        assert all(Conversation.from_plain(s).given for s in agent.collector.buffer.starts.values())
    assert started > 8
    with pytest.raises(ConfigError, match="epo measures whole conversations; starts_share"):
        learner(warm, recipe="epo", task="guessing", **KINDS["starts"])


def test_some_go_on_and_some_are_dropped(warm: Path) -> None:
    """Turns are two tokens, so those that are not done go on to another turn."""
    agent, plain = learner(warm, **KINDS["pruned"]), learner(warm)
    for one in (agent, plain):
        one.collect()
    assert (
        agent.data is not None
        and plain.data is not None
        and isinstance(agent.collector, PruningCollector)
    )
    assert agent.tokens["sampled"] < plain.tokens["sampled"]
    left, whole = agent.data.rollouts, plain.data.rollouts
    rows = list(zip(whole.problems, whole.turns, strict=True))
    for row in zip(left.problems, left.turns, strict=True):
        rows.remove(row)  # the same texts, fewer
    assert all(len(turns) > 1 for _, turns in rows) and rows
    short = [sum(len(turns) == 1 for turns in found.turns) for found in (left, whole)]
    assert short[0] == short[1] > 0
    assert float(agent.collector.pruner.counts.sum()) > 0


def test_turns_of_demonstrations_are_practised(warm: Path) -> None:
    """What a turn does counts, not what it says."""
    agent = learner(warm, task="even", pivots=3, group=8)
    agent.collect()
    assert agent.data is not None and isinstance(agent.collector, PivotCollector)
    found, starts = agent.data.rollouts, agent.collector.starts
    assert {start["given"] for start in starts} == {0, 1}
    assert agent.collector.order.size == len(starts)
    right = set[str]()
    for i, turns in enumerate(found.turns):
        own = found.data.segments["turn"][i][found.data.mask[i]].unique().tolist()
        assert own == [len(turns) - 1] and turns[:-1] == ("0",) * len(turns[:-1])
        assert float(found.data.reward[i].sum()) == float(turns[-1] in ("0", "2", "4"))
        right |= {turns[-1]} & {"2", "4"}
    assert right


def test_no_turn_to_practise(warm: Path) -> None:
    agent = learner(warm, recipe="rloo", pivots=1, group=1)
    with pytest.raises(ConfigError, match="give more pivots, a larger group"):
        agent.collect()


def test_one_turn_more_from_every_start(warm: Path) -> None:
    agent = learner(warm, starts_share=0.6, starts_steps=1, levels=(9,))
    collector, given = agent.collector, set()
    assert isinstance(collector, ResumedCollector)
    for _ in range(12):
        found = agent.sample_round()
        turns = [len(row) for row in found.turns]
        given |= {n - 1 for n in turns}
        for i in range(len(found)):
            assert found.data.segments["turn"][i, found.data.mask[i]].unique().tolist() == [
                turns[i] - 1
            ]
            # It earns what this turn earns.
            assert float(found.data.reward[i].sum()) == found.replies[i][-1].reward
    assert given == {0, 1, 2}
    for values in collector.buffer.starts.values():
        start = Conversation.from_plain(values)
        assert start.given == len(start.turns) == len(start.replies) > 0
        assert not start.done and not start.replies[-1].done
        heard = agent.codec.between(start.replies[-1].observation)
        assert start.tokens == [*start.tokens[: start.spans[-1][1]], *heard]
    assert collector.acts is not None and 0 <= collector.acts <= 1
    with pytest.raises(ConfigError, match="starts_steps is 0 or 1"):
        LanguageConfig(task="digits", starts_share=0.5, starts_steps=2)
    with pytest.raises(ConfigError, match="1 is for starts_share above 0"):
        LanguageConfig(task="digits", starts_steps=1)


def test_turns_that_were_given_earn_nothing_more() -> None:
    replies = [Reply(0.5, False), Reply(0.25, False), Reply(0.125, True)]
    row = Conversation(Problem("x", 1), [], replies=replies, given=2)
    assert earned_since(row) == 0.125
