"""Tiny learners, conversations from given texts, and what a model makes of tokens, worked out
slowly."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algorithms.language.learner import ModelConfig
from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts, grouped, to_rollouts
from algorithms.language.tasks import Problem, Reply, TextTask

MODEL = ModelConfig(transformer=TransformerConfig(width=16, layers=1, heads=2, hidden=16))


def learner(task: str, recipe: str, seed: int = 0, **settings: Any) -> LanguagePolicyGradient:
    config = LanguageConfig(
        task=task, recipe=recipe, **{"model": MODEL, "prompts": 2, "group": 3} | settings
    )
    agent = LanguagePolicyGradient(None, config, seed=seed)
    with torch.no_grad():  # far from uniform, so that numbers differ
        for weight in agent.model.parameters():
            if weight.ndim == 2:
                weight.mul_(20)
    for anchor in agent.anchors.values():
        anchor.load_state_dict(agent.model.state_dict())
    for part in agent.measures:
        part.begin()
    return agent


def part_of(agent: LanguagePolicyGradient, kind: type) -> Any:
    return next(part for part in agent.measures if type(part) is kind)


def told(agent: LanguagePolicyGradient, chats: Sequence[tuple[Problem, Sequence[str]]]) -> Rollouts:
    """Conversations in which just that was said. Equal problems are one prompt."""
    rows, prompts = [], []
    for problem, turns in chats:
        row = Conversation(problem, agent.codec.opening(problem.prompt))
        for i, turn in enumerate(turns):
            tokens = agent.codec.turn(turn)
            row.extend_turn(tokens)
            row.behaviour += [0.0] * len(tokens)
            row.model += [0.0] * len(tokens)
            row.versions += [0] * len(tokens)
            row.finish(agent.task, agent.codec, agent.task.max_turns)
            assert row.done == (i + 1 == len(turns)), (turns, i)
        rows.append(row)
        prompts.append([p for p, _ in chats].index(problem))
    return agent.with_old(grouped(to_rollouts(rows, agent.codec.pad, torch.empty(0)), prompts))


def at_turns(found: Rollouts, value: Tensor) -> list[list[list[float]]]:
    """Of every conversation and turn, what stands at the turn's own steps."""
    turn, mask = found.data.segments["turn"], found.data.mask
    return [
        [value[i, mask[i] & (turn[i] == k)].tolist() for k in range(len(found.turns[i]))]
        for i in range(len(found))
    ]


def whole(found: Rollouts, value: Tensor) -> list[float]:
    """The number of every conversation, which stands at each of its steps."""
    rows = [sorted(set(value[i, found.data.mask[i]].tolist())) for i in range(len(found))]
    assert all(len(row) == 1 for row in rows)
    return [row[0] for row in rows]


def ends(found: Rollouts, value: Tensor) -> list[list[float]]:
    """The numbers of every conversation's turns, which stand at their last steps."""
    turns = at_turns(found, value)
    assert all(not any(turn[:-1]) for row in turns for turn in row)
    assert not value[~found.data.mask].any()
    return [[turn[-1] for turn in row] for row in turns]


def starts(found: Rollouts, row: int) -> list[tuple[int, int]]:
    """Where turns stand in the tokens, by the mask's own runs."""
    own = [False, *found.data.mask[row].tolist(), False]
    up = [i for i in range(1, len(own)) if own[i] and not own[i - 1]]
    down = [i for i in range(1, len(own)) if own[i - 1] and not own[i]]
    return list(zip(up, down, strict=True))


def log_probs(model: Any, context: Sequence[int], said: Sequence[int]) -> list[float]:
    """One forward pass for each token."""
    tokens, found = list(context), []
    for token in said:
        with torch.no_grad():
            logits = model(torch.tensor([tokens]))[0, -1]
        found.append(float(logits.double().log_softmax(-1)[token]))
        tokens.append(token)
    return found


def lenient(task: TextTask) -> TextTask:
    """The task, but ended problems are solved or not by the characters of the last turn, so that a
    model that can do nothing earns something."""

    class Lenient(type(task)):  # type: ignore[misc]
        def reply(self, problem: Problem, turns: Sequence[str]) -> Reply:
            reply = super().reply(problem, turns)
            right = reply.done and sum(map(ord, turns[-1])) % 2 == 1
            return dataclasses.replace(reply, reward=float(right), success=right)

    return Lenient()


def features(heads: Any, tokens: Sequence[int]) -> Tensor:
    """Numbers of learned heads after the last of `tokens`, read alone."""
    with torch.no_grad():
        return heads.head(heads.trunk.features(torch.tensor([list(tokens)]))[0, -1])


def shake(module: torch.nn.Module, seed: int) -> None:
    """Move all weights at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)


def rounds(agent: LanguagePolicyGradient, count: int) -> None:
    """Collect and update; all weights stay finite."""
    for _ in range(count):
        for _ in range(agent.collect()):
            agent.update(agent.next_batch())
    for module in agent.modules.values():
        assert all(torch.isfinite(p).all() for p in module.parameters())


def continued(
    agent: LanguagePolicyGradient,
    path: Path,
    before: int,
    after: int,
    run: Callable[[LanguagePolicyGradient, int], None] = rounds,
) -> LanguagePolicyGradient:
    """The agent as it is loaded again after `before` rounds. Both then have `after` more, and end
    with the same weights, counts and states of parts."""
    run(agent, before)
    agent.save(path / "agent.pt")
    again = LanguagePolicyGradient.load(path / "agent.pt")
    again.task = agent.task
    for one in (agent, again):
        run(one, after)
    for name, module in agent.modules.items():
        other = again.modules[name].state_dict()
        assert all(torch.equal(v, other[k]) for k, v in module.state_dict().items()), name
    assert [p.state_dict() for p in agent.measures] == [p.state_dict() for p in again.measures]
    assert agent.tokens == again.tokens
    return again


def scripted(
    agent: LanguagePolicyGradient, speak: Callable[[Conversation], str]
) -> list[Conversation]:
    """Have every conversation that the agent's collector takes to its end say what `speak` makes of
    it, turn by turn (the rest of a turn that was begun), each token with log-prob -1. Returns the
    list in which the conversations that were taken on are kept, as they were before."""
    known: list[Conversation] = []

    def advance(rows: Sequence[Conversation], limits: Any, **options: Any) -> None:
        most = limits.rounds(agent.task)
        for row in rows:
            known.append(row.again(row.seed))
            while not row.done:
                tokens = agent.codec.turn(speak(row))
                row.extend_turn(tokens)
                for values in (row.behaviour, row.model):
                    values += [-1.0] * len(tokens)
                row.versions += [agent.updates] * len(tokens)
                agent.tokens["sampled"] += len(tokens)
                row.finish(agent.task, agent.codec, most)

    agent.collector.advance = advance  # type: ignore[method-assign]
    return known


def kept_rows(agent: LanguagePolicyGradient) -> list[Conversation]:
    """The list that the conversations of the next rounds are kept in when they become tensors."""
    known: list[Conversation] = []
    usual = agent.collector.to_rollouts

    def to_rollouts_(rows: Sequence[Conversation], owner: Sequence[int]) -> Rollouts:
        known[:] = rows
        return usual(rows, owner)

    agent.collector.to_rollouts = to_rollouts_  # type: ignore[method-assign]
    return known
