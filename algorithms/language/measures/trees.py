"""Rounds in which conversations branch at any token, and sets of them that go on from one turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.locate import whole
from algorithms.language.sampling.conversation import Conversation, padded
from algorithms.language.sampling.prefixes import cut
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

ROOT_CHANCE = 0.5  # that a conversation of ROSE begins anew; the authors' script
CANDIDATES = 20  # likeliest tokens whose meanings ROSE compares; the authors' script
SET = 4  # conversations of a polychromic set; another's code
WINDOW = 5  # turns after the common state that a set's worth counts for; another's code


@dataclass
class Twig:
    """A conversation that went on from the token at `start` of number `parent` of its tree (-1:
    from the prompt on), and at each token's place how far meanings diverge there (0 where the model
    had no choice)."""

    row: Conversation
    parent: int = -1
    start: int = 0
    divergence: list[float] = field(default_factory=list)


class DivergentTrees(LanguageMeasure):
    """The conversations of a group are held one after the other. The first begins with the prompt,
    each later one with probability 1/2 too; else it says another token where meanings diverge most
    in all that the group has said so far, and goes on from there. The divergence before a token is
    the entropy of its distribution times minus the sum over i != j of p_i p_j cos(e_i, e_j), over
    the 20 likeliest tokens with their embeddings e. `groups.node`: one id for the steps that the
    same conversations share.

    ROSE, as in the authors' code (github.com/ZiqiZhao1/ROSE-rl), whose entropy is over the 20
    likeliest tokens too. Costs a pass over every conversation."""

    provides = ("groups.node",)
    fulfils = (Requirement.DIVERGENCE_BRANCHES,)
    changes_sampling = True

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent = self.agent
        trees: list[list[Twig]] = [[] for _ in problems]
        for _ in range(agent.config.group):
            new = [self.next(problem, tree) for problem, tree in zip(problems, trees, strict=True)]
            agent.collector.advance([twig.row for twig in new], agent.collector.limits())
            for twig, values in zip(new, self.divergences(new), strict=True):
                twig.divergence = values
            for twig, tree in zip(new, trees, strict=True):
                tree.append(twig)
        rows = [twig.row for tree in trees for twig in tree]
        owner = [i for i, tree in enumerate(trees) for _ in tree]
        rollouts = agent.collector.to_rollouts(rows, owner)
        result: Rollouts = with_fields(rollouts, "groups", node=nodes(trees, rollouts.data.mask))
        return result

    def next(self, problem: Problem, tree: Sequence[Twig]) -> Twig:
        """What the tree's next conversation begins as."""
        seed, anew = self.agent.drawn_seed(), self.drawn() < ROOT_CHANCE
        if not tree or anew:
            return Twig(Conversation(problem, self.agent.codec.opening(problem.prompt), seed))
        values = [(d, -i, -at) for i, twig in enumerate(tree) for at, d in places(twig)]
        _, i, at = max(values)  # of equal ones the first
        return Twig(cut(tree[-i].row, -at, seed), -i, -at)

    def drawn(self) -> float:
        agent = self.agent
        return float(torch.rand((), generator=agent.generator, device=agent.device))

    @torch.no_grad()
    def divergences(self, twigs: Sequence[Twig]) -> list[list[float]]:
        """Before every token of the conversations."""
        agent, values = self.agent, list[list[float]]()
        for i in range(0, len(twigs), agent.config.rows_at_once):
            rows = [twig.row for twig in twigs[i : i + agent.config.rows_at_once]]
            tokens = padded([row.tokens for row in rows], agent.codec.pad, agent.device)
            logits = agent.model(tokens[:, :-1])
            value = divergence(logits / agent.config.sampling.temperature, agent.model.embeddings())
            values += [
                [0.0, *value[j, : len(row.tokens) - 1].tolist()] for j, row in enumerate(rows)
            ]
        return values


def divergence(logits: Tensor, embeddings: Tensor) -> Tensor:
    """[...] of the laws of `logits` [..., V]: entropy times minus the sum over pairs of different
    tokens among the 20 likeliest of p_i p_j cos(e_i, e_j), e the `embeddings` [V, D]."""
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    p, ids = log_p.exp().topk(min(CANDIDATES, logits.shape[-1]), -1)
    units = torch.nn.functional.normalize(embeddings, dim=-1)[ids]
    mean = (p[..., None] * units).sum(-2)
    return entropy * (p.square().sum(-1) - mean.square().sum(-1))


def places(twig: Twig) -> list[tuple[int, float]]:
    """The places of tokens that the model said, with their divergences."""
    return [(at, twig.divergence[at]) for span in twig.row.spans for at in range(*span)]


def nodes(trees: Sequence[Sequence[Twig]], mask: Tensor) -> Tensor:
    """[B, T]: one id wherever the same conversations of a tree share steps."""
    ids: dict[tuple[int, ...], int] = {}
    node = torch.zeros(mask.shape, dtype=torch.int64)
    first = 0
    for tree in trees:
        for step in range(mask.shape[1]):
            sharing: dict[int, list[int]] = {}
            for i, twig in enumerate(tree):
                if len(twig.row.tokens) > step + 1:
                    sharing.setdefault(origin(tree, i, step + 1), []).append(first + i)
            for rows in sharing.values():
                node[rows, step] = ids.setdefault(tuple(rows), len(ids))
        first += len(tree)
    return node.to(mask.device)


def origin(tree: Sequence[Twig], i: int, at: int) -> int:
    """Which conversation of the tree first said the token at this place of number i."""
    while at < tree[i].start:
        i = tree[i].parent
    return i


class Sets(LanguageMeasure):
    """Of every group one conversation is held to its end; one of its turns is drawn evenly among
    those before which nothing was earned, and the others of the group go on from the state before
    it. So all of the group, the first too, are ends of what was said up to there, which only the
    first has in its mask. `groups.set`: about four of them each, as evenly as it goes, at least two
    sets. `signals.vine_window`: 1 in the first five turns after the common state, else 0.

    "Polychromic Objectives for Reinforcement Learning", with numbers of another's code: 4 of 8
    vines, a window of 5; there are two states of a rollout, here one, and every vine is in one set
    instead of several that are drawn."""

    provides = ("groups.set", "signals.vine_window")
    fulfils = (Requirement.SEQUENCE_SETS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if config.group < 4:
            raise ConfigError(
                f"group is {config.group}: recipe {objective.name} compares sets of several "
                "conversations; give at least 4"
            )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, group = self.agent, self.agent.config.group
        openings = [agent.codec.opening(problem.prompt) for problem in problems]
        trunks = [
            Conversation(problem, tokens, agent.drawn_seed())
            for problem, tokens in zip(problems, openings, strict=True)
        ]
        agent.collector.advance(trunks, agent.collector.limits())
        turns = [self.turn(trunk) for trunk in trunks]
        vines = [
            [trunk.up_to(turn).again(agent.drawn_seed()) for _ in range(group - 1)]
            for trunk, turn in zip(trunks, turns, strict=True)
        ]
        agent.collector.advance([row for rows in vines for row in rows], agent.collector.limits())
        everyone = [[trunk, *rows] for trunk, rows in zip(trunks, vines, strict=True)]
        rows = [row for own in everyone for row in own]
        owner = [i for i in range(len(problems)) for _ in range(group)]
        rollouts = agent.collector.to_rollouts(rows, owner)
        count = max(2, round(group / SET))
        sets = [i * count + j * count // group for i in range(len(problems)) for j in range(group)]
        rollouts = with_fields(rollouts, "groups", set=whole(rollouts, sets))
        since = rollouts.data.segments["turn"] - whole(rollouts, [turns[i] for i in owner])
        window = ((since >= 0) & (since < WINDOW)).to(rollouts.data.reward)
        result: Rollouts = with_fields(rollouts, "signals", vine_window=window)
        return result

    def turn(self, trunk: Conversation) -> int:
        """One of the turns before which nothing was earned."""
        agent, able = self.agent, [0]
        for k, reply in enumerate(trunk.replies[:-1]):
            if reply.reward:
                break
            able.append(k + 1)
        drawn = torch.randint(len(able), (), generator=agent.generator, device=agent.device)
        return able[int(drawn)]
