"""Rounds in which conversations branch: some are held from the prompt on, others go on from where
one of them stood."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.sampling.conversation import Conversation, GenerationLimits, padded
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.tokens import log_probs_and_entropy
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

ROOTS = 0.5  # of a group are held from the prompt on; the authors' scripts: 6 to 8 of 16
CHANCE, WEIGHT = 0.5, 0.2  # of a branch after an observation; the authors' scripts
SENSITIVITY = 1.0  # of AEPO's budget to the gap of entropies; ours
PENALTY = 0.25  # of AEPO for every branch in a row before; ours


@dataclass
class Branch:
    """A conversation about problem `owner`, and from which token on it is in which node: those
    that it shares with others have their steps in common. `streak`: at how many observations in a
    row, up to the last one, it has branched."""

    row: Conversation
    owner: int
    nodes: list[tuple[int, int]]
    streak: int = 0


class ToolBranches(LanguageMeasure):
    """Half of a group (rounded up) is held from the prompt on. After every observation each of its
    conversations branches in two with the probability 0.5 + 0.2 (H - H_0), held in [0, 1], while
    the group is not full: H is the entropy of the next token's distribution over the log of the
    number of tokens, H_0 that of the conversation's first token. What is lacking in the end is held
    from the prompt on. `groups.node`: one id for the steps that the same conversations share.

    ARPO, arXiv 2507.19849, whose entropies are means over the first tokens after an observation.
    Costs a pass over every conversation up to every observation."""

    provides: ClassVar[tuple[str, ...]] = ("groups.node",)
    fulfils: ClassVar[tuple[Requirement, ...]] = (Requirement.TOOL_BRANCHES,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if text_task(config.task).max_turns < 2:
            raise ConfigError(
                f"recipe {objective.name} branches after observations, and {config.task} has none; "
                "take a task of several turns"
            )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        self.named = 0
        roots = math.ceil(ROOTS * self.agent.config.group)
        return self.grown(problems, [roots] * len(problems), [])

    def probability(self, leaf: Branch, rise: float) -> float:
        """Of a branch where the entropy is `rise` above that of the first token."""
        return CHANCE + WEIGHT * rise

    def grown(
        self, problems: Sequence[Problem], roots: Sequence[int], held: Sequence[Branch]
    ) -> Rollouts:
        """That many `roots` of every problem with their branches, beside the conversations that
        are `held` already."""
        agent = self.agent
        leaves = [self.begun(problems, i) for i, n in enumerate(roots) for _ in range(n)]
        calm = {id(leaf): h for leaf, h in zip(leaves, self.entropies(leaves), strict=True)}
        for turn in range(1, agent.task.max_turns + 1):
            alive = [leaf for leaf in leaves if not leaf.row.done]
            self.speak(alive, turn)
            alive = [leaf for leaf in alive if not leaf.row.done]
            if not alive:
                break
            uniform = torch.rand(
                len(alive), generator=agent.generator, device=agent.device
            ).tolist()
            count = Counter(leaf.owner for leaf in [*held, *leaves])
            for leaf, drawn, h in zip(alive, uniform, self.entropies(alive), strict=True):
                likely = self.probability(leaf, h - calm[id(leaf)])
                leaf.streak = leaf.streak + 1 if drawn < likely else 0
                if leaf.streak and count[leaf.owner] < agent.config.group:
                    leaves.append(self.split(leaf))
                    calm[id(leaves[-1])] = calm[id(leaf)]
                    count[leaf.owner] += 1
        count = Counter(leaf.owner for leaf in [*held, *leaves])
        lacking = [i for i in range(len(problems)) for _ in range(agent.config.group - count[i])]
        more = [self.begun(problems, i) for i in lacking]
        self.speak(more, agent.task.max_turns)
        everyone = [*held, *leaves, *more]
        return self.to_rollouts(sorted(everyone, key=lambda leaf: leaf.owner))

    def name(self) -> int:
        """A node's id."""
        self.named += 1
        return self.named - 1

    def begun(self, problems: Sequence[Problem], owner: int) -> Branch:
        tokens = self.agent.codec.opening(problems[owner].prompt)
        row = Conversation(problems[owner], tokens, self.agent.drawn_seed())
        return Branch(row, owner, [(1, self.name())])

    def split(self, leaf: Branch) -> Branch:
        """Another end of `leaf`, which has new nodes from here on, each its own."""
        at, other = len(leaf.row.tokens), leaf.row.again(self.agent.drawn_seed())
        before = list(leaf.nodes)
        leaf.nodes = [*before, (at, self.name())]
        return Branch(other, leaf.owner, [*before, (at, self.name())], leaf.streak)

    def speak(self, leaves: Sequence[Branch], turns: int) -> None:
        """Take all on until they have `turns` turns."""
        agent, rows = self.agent, [leaf.row for leaf in leaves]
        agent.collector.advance(
            rows, GenerationLimits(agent.config.sampling, agent.turn_tokens, turns)
        )
        for row in rows:
            if not row.replies[-1].done:  # it has only come to the end of these turns
                row.done = False
                row.tokens += agent.codec.between(row.replies[-1].observation)

    @torch.no_grad()
    def entropies(self, leaves: Sequence[Branch]) -> list[float]:
        """In [0, 1]: of the next token's distribution, over that of a uniform one."""
        agent, entropies = self.agent, []
        size, temperature = agent.config.rows_at_once, agent.config.sampling.temperature
        for i in range(0, len(leaves), size):
            texts = [leaf.row.tokens for leaf in leaves[i : i + size]]
            tokens = padded(texts, agent.codec.pad, agent.device)
            last = torch.tensor([len(text) - 1 for text in texts], device=agent.device)
            logits = agent.model(tokens)[torch.arange(len(texts), device=agent.device), last]
            entropy = log_probs_and_entropy(logits, logits.argmax(-1), temperature)[1]
            entropies += (entropy / math.log(logits.shape[-1])).tolist()
        return entropies

    def to_rollouts(self, leaves: Sequence[Branch]) -> Rollouts:
        rows = [leaf.row for leaf in leaves]
        talked = self.agent.collector.to_rollouts(rows, [leaf.owner for leaf in leaves])
        node: Tensor = torch.zeros_like(talked.data.segments["turn"])
        for i, leaf in enumerate(leaves):
            for start, name in leaf.nodes:
                node[i, start - 1 :] = name
        result: Rollouts = with_fields(talked, "groups", node=node)
        return result


class BalancedBranches(ToolBranches):
    """As `ToolBranches`, but how many of a group of k are held from the prompt on is seen first:
    one conversation is held to its end, and of H_0, the entropy of its first token's distribution,
    and the mean H of those after its observations (H_0, if there are none) comes m = k s(H_0 - H),
    rounded, s the logistic function; the one counts towards m and does not branch, at least one
    more is held from the prompt on. The probability of a branch is that of `ToolBranches` less a
    quarter of it for every observation in a row, up to this one, at which the conversation had
    branched.

    AEPO, arXiv 2510.14545, whose formulas these are; the sensitivity 1, the linear penalty's
    quarter, and that the first conversation is one of the group are ours."""

    provides = ()
    fulfils = (Requirement.ENTROPY_BRANCHES,)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        self.named = 0
        agent = self.agent
        ahead = [self.begun(problems, i) for i in range(len(problems))]
        first, later = self.entropies(ahead), [list[float]() for _ in ahead]
        for turn in range(1, agent.task.max_turns + 1):
            alive = [leaf for leaf in ahead if not leaf.row.done]
            self.speak(alive, turn)
            alive = [leaf for leaf in alive if not leaf.row.done]
            for leaf, h in zip(alive, self.entropies(alive), strict=True):
                later[leaf.owner].append(h)
        group = agent.config.group
        roots = [budget(group, h, own) - 1 for h, own in zip(first, later, strict=True)]
        return self.grown(problems, roots, ahead)

    def probability(self, leaf: Branch, rise: float) -> float:
        return super().probability(leaf, rise) * max(0.0, 1 - PENALTY * leaf.streak)


def budget(group: int, first: float, later: Sequence[float]) -> int:
    """Of `group` conversations, how many are held from the prompt on: from 2 to all."""
    gap = first - sum(later) / len(later) if later else 0.0
    share = 1 / (1 + math.exp(-SENSITIVITY * gap))
    return min(group, max(2, round(group * share)))
