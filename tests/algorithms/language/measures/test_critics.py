"""Critics against known values, slow loops and targets worked out by hand."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from algorithms.language import tasks
from algorithms.language.learner import ModelConfig
from algorithms.language.measures.critics import Critic
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts, grouped, to_rollouts
from algorithms.language.tasks.base import Problem, Reply, TextTask
from mbrl.policy_gradient.axes.credit import GAE
from tests.algorithms.language.cases import (
    MODEL,
    features,
    learner,
    lenient,
    part_of,
    rounds,
    shake,
    starts,
)
from tests.algorithms.language.small import Digits


class Coins(TextTask):
    """Whatever is said, a fair or a biased coin pays: the prompt tells which. The problem's own
    number is its chance, so that a prompt has many outcomes."""

    name = "coins"
    splits = False
    title = "coins"
    levels = (1,)
    trained = (1,)
    turn_length = 1
    prompt_length = 1
    chances: ClassVar[dict[str, float]] = {"a": 0.9, "b": 0.5, "c": 0.1}

    def draw(self, level: int, rng: random.Random) -> Problem:
        return Problem(rng.choice("abc"), level, {"number": rng.random()})

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
        won = problem.facts["number"] < self.chances[problem.prompt]
        return Reply(float(won), True, won)

    def demonstration(self, problem: Problem, turns: Sequence[str], rng: random.Random) -> str:
        return "1"


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (Coins(), Digits()):
        monkeypatch.setitem(tasks.TASKS, task.name, task)


def turns_of(recipe: str, **settings: Any) -> tuple[LanguagePolicyGradient, Rollouts]:
    """A learner, and conversations that were won, lost, cut off in a turn
    and stopped between turns."""
    settings = {"turn_tokens": 3, "prompts": 3, "group": 3} | settings
    agent = learner("digits", recipe, **settings)
    problem, rows = Problem("0-4", 4, {"secret": 3}, state="new"), []
    for said in (["3"], ["1", "3"], ["0", "11", "2"], ["4", "111", "no"], ["2", "1"]):
        row = Conversation(problem, agent.codec.opening(problem.prompt))
        for text in said:
            cut = len(text) > 1 and not text.isdigit()
            tokens = agent.codec.turn(text)[: len(text) if cut else None]
            row.extend_turn(tokens)
            row.behaviour += [-1.0] * len(tokens)
            row.model += [-1.0] * len(tokens)
            row.versions += [0] * len(tokens)
            row.finish(agent.task, agent.codec, agent.task.max_turns)
        if not row.done:  # stopped: what was heard last is not in its tokens
            row.tokens = row.tokens[: row.spans[-1][1]]
        rows.append(row)
    found = grouped(to_rollouts(rows, agent.codec.pad, torch.empty(0)), [0] * len(rows))
    agent.task = lenient(agent.task)
    return agent, agent.with_old(found)


def test_the_critic_finds_the_known_value() -> None:
    config = LanguageConfig(
        task="coins", recipe="a2c", model=MODEL, prompts=96, group=1, minibatches=1, turn_tokens=1,
        part_rate=1e-2, learning_rate=1e-9,
    )  # fmt: skip
    agent = LanguagePolicyGradient(None, config)
    for _ in range(40):
        for _ in range(agent.collect()):
            metrics = agent.update(agent.next_batch())
    assert "critic/loss" in metrics
    heads = part_of(agent, Critic).heads
    for prompt, chance in Coins.chances.items():
        value = float(features(heads, agent.codec.opening(prompt))[0])
        assert value == pytest.approx(chance, abs=0.15)


def test_the_critic_begins_at_0_with_the_first_weights() -> None:
    agent, found = turns_of("ppo")
    part = part_of(agent, Critic)
    for x, y in zip(part.heads.trunk.parameters(), agent.model.parameters(), strict=True):
        assert torch.equal(x, y) and x is not y
    assert not part.measure(found).data.signals["value"].any()


def after(agent: Any, heads: Any, found: Rollouts, i: int) -> float:
    """The value after the whole conversation `i`, slowly."""
    if found.replies[i][-1].done:
        return 0.0
    said = found.tokens[i, : starts(found, i)[-1][1]].tolist()
    shown = agent.codec.encode(found.replies[i][-1].observation)
    return float(features(heads, [*said, *shown, agent.codec.answer]))


def test_values_are_of_what_was_said_before() -> None:
    agent, found = turns_of("ppo", rows_at_once=4)
    part = part_of(agent, Critic)
    shake(part.heads, 1)
    signals = part.measure(found).data.signals
    mask = found.data.mask
    assert not all(replies[-1].done for replies in found.replies)
    for i in range(len(found)):
        at = mask[i].nonzero().flatten().tolist()
        now = [float(features(part.heads, found.tokens[i, : s + 1].tolist())) for s in at]
        assert signals["value"][i, at].tolist() == pytest.approx(now, abs=1e-4)
        then = [*now[1:], after(agent, part.heads, found, i)]
        assert signals["next_value"][i, at].tolist() == pytest.approx(then, abs=1e-4)
    assert not signals["value"][~mask].any() and not signals["next_value"][~mask].any()


@pytest.mark.parametrize("recipe", ["ppo", "a2c"])
def test_advantages_and_targets_equal_a_slow_loop(recipe: str) -> None:
    agent, found = turns_of(recipe)
    part = part_of(agent, Critic)
    shake(part.heads, 2)
    found = part.measure(found)
    credit = agent.recipe.terms[0].credit
    assert isinstance(credit, GAE) and credit.gamma == 1
    targets, t = part.targets(found)["value"], found.data
    advantage = credit(t.reward, t)
    for i in range(len(found)):
        carried, later = 0.0, after(agent, part.heads, found, i)
        for step in reversed(t.mask[i].nonzero().flatten().tolist()):
            value = float(t.signals["value"][i, step])
            goes_on = 0.0 if t.terminated[i, step] else 1.0
            delta = float(t.reward[i, step]) + goes_on * later - value
            carried = delta + credit.lam * carried
            assert float(advantage[i, step]) == pytest.approx(carried, abs=1e-4)
            assert float(targets[i, step]) == pytest.approx(carried + value, abs=1e-4)
            later = value


def test_a_step_of_the_critic_is_one_on_squared_errors_in_any_parts() -> None:
    gradients = []
    for size in (256, 4):
        agent, found = turns_of("ppo", rows_at_once=size)
        part = part_of(agent, Critic)
        shake(part.heads, 3)
        found = part.measure(found)
        metrics = part.learn(found, part.targets(found))
        gradients.append([p.grad for p in part.heads.parameters() if p.grad is not None])
        mask, value = found.data.mask, found.data.signals["value"]
        wanted = (value - part.targets(found)["value"])[mask].square().mean()
        assert float(metrics["critic/loss"]) == pytest.approx(float(wanted), rel=1e-4)
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-6)


def test_models_from_a_folder_have_critics(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tests.algorithms.language.models.test_huggingface import tokenizer

    words = tokenizer(False)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=0,
        bos_token_id=None,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    settings = LanguageConfig(
        task="digits", recipe="ppo", model=ModelConfig(path=str(tmp_path)), prompts=2, group=2,
        turn_tokens=3, minibatches=1,
    )  # fmt: skip
    agent = LanguagePolicyGradient(None, settings)
    agent.task = lenient(agent.task)
    before = part_of(agent, Critic).heads.head.bias.clone()
    rounds(agent, 2)
    assert not torch.equal(before, part_of(agent, Critic).heads.head.bias)
