"""Turns that are updated from the last, and single tokens, against slow ways to find them."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.models.passes import passes
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.async_collector import worker_config
from algorithms.language.sampling.tokens import Sampling
from mbrl.errors import ConfigError
from tests.algorithms.language.cases import continued, learner, lenient, log_probs, rounds


def backwards(**settings: Any) -> LanguagePolicyGradient:
    agent = learner("guessing", "seeupo", levels=(8,), turn_tokens=2, **settings)
    agent.task = lenient(agent.task)
    return agent


def test_turns_come_from_the_last_to_the_first() -> None:
    agent = backwards(epochs=2, minibatches=2, group=4)
    left = agent.collect()
    assert agent.data is not None
    turns = {int(k) for stage in [agent.data, *agent.trainer.stages] for k in seen(stage)}
    order = []
    for number in range(left):
        batch = agent.next_batch()
        (turn,) = seen(batch)
        order.append(turn)
        assert len(batch.rollouts) <= 4
        agent.update(batch)
        assert agent.left == left - number - 1
    assert order == sorted(order, reverse=True) and set(order) == turns
    assert [order.count(k) for k in sorted(turns)] == [4] * len(turns)
    with pytest.raises(ConfigError, match="there is no round"):
        agent.next_batch()


def seen(batch: Any) -> set[int]:
    """The turns that have weight; every conversation has one of them."""
    t, weight = batch.rollouts.data, batch.estimate.weight
    assert (weight > 0).any(1).all()
    return set(t.segments["turn"][weight > 0].tolist())


def test_a_stage_sees_what_the_later_turns_have_changed() -> None:
    agent = backwards(minibatches=1, group=3, learning_rate=0.05, warm_up=0)
    old = {name: value.clone() for name, value in agent.model.state_dict().items()}
    agent.collect()
    moved = 0.0
    while agent.left:
        batch = agent.next_batch()
        found, t = batch.rollouts, batch.rollouts.data
        (turn,) = seen(batch)
        log_prob = agent.current(found, passes(found.data.mask, 256))[0]
        wanted = torch.zeros(())
        count = sum(len(set(t.segments["turn"][i][t.mask[i]].tolist())) for i in range(len(found)))
        for i in range(len(found)):
            now = slow(agent, found.tokens[i].tolist(), t.mask[i])
            kept = {name: value.clone() for name, value in agent.model.state_dict().items()}
            agent.model.load_state_dict(old)
            before = slow(agent, found.tokens[i].tolist(), t.mask[i])
            agent.model.load_state_dict(kept)
            for step, value in now.items():
                assert float(t.log_probs["proximal"][i, step]) == pytest.approx(value, abs=1e-4)
            own = [s for s in now if int(t.segments["turn"][i, s]) == turn]
            turns = {s: int(t.segments["turn"][i, s]) for s in now}
            change = 1.0
            for k in sorted({k for k in turns.values() if k > turn}, reverse=True):
                gaps = [now[s] - before[s] for s in now if turns[s] == k]
                change *= min(max(math.exp(sum(gaps) / len(gaps)), 0.8), 1.2)
                change = min(max(change, 0.8), 1.2)
            moved = max(moved, abs(change - 1))
            ratio = torch.exp(torch.stack([log_prob[i, s] - before[s] for s in own]).mean())
            a = float(batch.estimate.advantage[i, own[0]])
            gain = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a) * change
            wanted = wanted - gain / count
        metrics = agent.update(batch)
        assert float(metrics["policy/loss"]) == pytest.approx(float(wanted.detach()), abs=1e-4)
    assert moved > 0.05  # the later turns had been updated


def slow(agent: LanguagePolicyGradient, tokens: list[int], mask: torch.Tensor) -> dict[int, float]:
    """Of every step of the mask its log-prob by a pass of its own."""
    steps = mask.nonzero().flatten().tolist()
    return {s: log_probs(agent.model, tokens[: s + 1], [tokens[s + 1]])[0] for s in steps}


def test_nobody_counts_the_updates_beforehand() -> None:
    with pytest.raises(ConfigError, match="staleness is 2: recipe seeupo has as many updates"):
        LanguageConfig(task="guessing", recipe="seeupo", staleness=2)
    assert worker_config(backwards(), None, 1).task == "guessing"  # workers with staleness 0 can


@pytest.mark.parametrize("task", ["addition", "calculator"])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_single_tokens_stand_after_what_was_shown(task: str, top_p: float) -> None:
    agent = learner(task, "otr", group=4, prompts=1, sampling=Sampling(top_p=top_p))
    found = agent.sample_round()
    t = found.data
    assert t.mask.sum(1).tolist() == [1] * len(found)
    assert agent.tokens["sampled"] == len(found)
    for start in range(0, len(found), 4):  # a token of a demonstration each
        rows = range(start, start + 4)
        at = [int(t.mask[i].nonzero()) for i in rows]
        assert len(set(at)) == 1
        contexts = {tuple(found.tokens[i, : at[0] + 1].tolist()) for i in rows}
        assert len(contexts) == 1
        shown = demonstrated(agent, found, start, list(contexts.pop()))
        with torch.no_grad():
            every = agent.model(found.tokens[start : start + 1, : at[0] + 1])[0, -1].log_softmax(-1)
        for i in rows:
            said = int(found.tokens[i, at[0] + 1])
            assert float(t.reward[i, at[0]]) == float(said == shown)
            inside, mass = [], 0.0
            for k in every.argsort(descending=True).tolist():
                inside.append(k)
                mass += math.exp(every[k])
                if mass >= top_p - 1e-9:
                    break
            total = math.log(sum(math.exp(every[k]) for k in inside))
            assert float(t.log_probs["old"][i, at[0]]) == pytest.approx(
                float(every[said]) - total, abs=1e-3
            )
            assert said in inside


def demonstrated(agent: Any, found: Any, row: int, context: list[int]) -> int:
    """The token that one who can do it says after the context: from the codec and the task."""
    problem, turns = found.problems[row], list(found.turns[row][:-1])
    tokens = list(agent.codec.opening(problem.prompt))
    for k, turn in enumerate(turns):
        tokens += agent.codec.turn(turn)
        tokens += agent.codec.between(agent.task.reply(problem, turns[: k + 1]).observation)
    tokens += agent.codec.turn(agent.task.demonstration(problem, turns, random.Random(0)))
    assert tokens[: len(context)] == context
    return int(tokens[len(context)])


def test_the_loss_of_single_tokens() -> None:
    """-(1/K) sum R log pi, R 1 for what was shown and -0.1 else, over the tokens shown."""
    agent = learner("addition", "otr", group=5, minibatches=1)
    agent.collect()
    batch = agent.next_batch()
    t, wanted = batch.rollouts.data, 0.0
    for i in range(len(batch.rollouts)):
        (at,) = t.mask[i].nonzero().flatten().tolist()
        tokens = batch.rollouts.tokens[i].tolist()
        reward = 1.0 if float(t.reward[i, at]) == 1 else -0.1
        wanted -= reward * log_probs(agent.model, tokens[: at + 1], [tokens[at + 1]])[0]
    metrics = agent.update(batch)
    assert float(metrics["policy/loss"]) == pytest.approx(wanted / len(batch.rollouts), rel=1e-3)


def test_single_tokens_teach_the_demonstrations() -> None:
    agent = learner(
        "addition", "otr", group=16, prompts=2, pool=2, levels=(1,), learning_rate=2e-2, warm_up=0
    )
    for weight in agent.model.parameters():
        if weight.ndim == 2:
            weight.data.div_(20)

    rounds(agent, 30)
    assert float(agent.of_round["rollout/success"]) > 0.3


@pytest.mark.parametrize("recipe", ["seeupo", "otr"])
def test_they_resume_exactly(recipe: str, tmp_path: Path) -> None:
    agent = backwards() if recipe == "seeupo" else learner("addition", "otr")
    continued(agent, tmp_path, 2, 1)
