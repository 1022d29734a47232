"""Policies that learn from each other's answers: "Sharing is Caring: Efficient LM Post-Training
with Collective RL Experience Sharing" (SAPO), arXiv 2509.08721. Nodes share texts alone: each
encodes what others said with its own tokens, has its own task say what it earns, and learns from it
as if it had said it itself."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.language import schedule
from algorithms.language.measures.locate import whole
from algorithms.language.policy_gradient import LanguagePolicyGradient
from algorithms.language.sampling.async_collector import weights_of
from algorithms.language.sampling.collectors import ConversationCollector
from algorithms.language.sampling.conversation import Conversation, GenerationLimits
from algorithms.language.sampling.equal_groups import differ
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics, train

# A group: its `problem`, the turns of each of its `answers`, and which of them were `cut`.
Shared = dict[str, Any]


def shared(rows: Sequence[Conversation], end: int) -> Shared:
    """What others are told of a group: texts, which of them ran out of tokens before their `end`,
    and what a task needs to grade them."""
    return {
        "problem": rows[0].plain()["problem"],
        "answers": [list(row.turns) for row in rows],
        "cut": [[row.tokens[stop - 1] != end for _, stop in row.spans] for row in rows],
    }


def retold(agent: Any, group: Shared) -> list[Conversation] | None:
    """A group of others in the agent's own tokens with its own task's rewards; None if one of the
    texts cannot be encoded. A turn that was cut has no end. Nothing is known of its log-probs."""
    problem, rows = Problem(**group["problem"]), []
    most = GenerationLimits(agent.config.sampling).rounds(agent.task)
    for turns, cut in zip(group["answers"], group["cut"], strict=True):
        try:
            row = Conversation(problem, list(agent.codec.opening(problem.prompt)))
            for text, short in zip(turns, cut, strict=True):
                tokens = agent.codec.turn(text)
                if short and len(tokens) > 1:  # a turn of no text needs a token
                    tokens = tokens[:-1]
                row.extend_turn(tokens)
                row.finish(agent.task, agent.codec, most)
        except ConfigError:
            return None
        count = sum(stop - start for start, stop in row.spans)
        row.behaviour, row.model, row.versions = [0.0] * count, [0.0] * count, [0] * count
        rows.append(row)
    return rows


class SharingCollector(ConversationCollector):
    """Rounds of own groups, which `sample` gets, and of `external` ones of others, which `receive`
    gets; with fewer than that, of all there are."""

    def __init__(self, agent: Any, external: int) -> None:
        super().__init__(agent)
        self.generator = agent.collector.generator
        self.external = external
        self.own: list[Conversation] = []
        self.others: list[list[Conversation]] = []

    def sample(self) -> list[Shared]:
        """The round's own groups, as others are told of them."""
        a, c = self.agent, self.agent.config
        problems = a.problems(a.new_numbers(c.prompts - self.external))
        rows = self.copies(self.open(problems), [c.group] * len(problems))
        self.own, _ = self.finish(rows, [])
        groups = [self.own[i : i + c.group] for i in range(0, len(self.own), c.group)]
        return [shared(rows, a.codec.end) for rows in groups]

    def receive(self, groups: Sequence[Shared], rng: random.Random) -> None:
        """Draw the round's external groups evenly from those of `groups` that can be encoded and
        whose rewards, given anew, differ."""
        known = [rows for group in groups if (rows := retold(self.agent, group)) is not None]
        able = [rows for rows in known if differ(rows)]
        self.others = rng.sample(able, min(self.external, len(able)))

    def collect(self) -> Rollouts:
        group = self.agent.config.group
        owner = [i // group for i in range(len(self.own))]
        if not self.external:
            return self.to_rollouts(self.own, owner)
        first = len(self.own) // group
        rows = [*self.own, *(row for rows in self.others for row in rows)]
        owner += [first + i for i, rows in enumerate(self.others) for _ in rows]
        rollouts = self.to_rollouts(rows, owner)
        theirs = torch.tensor([float(i >= len(self.own)) for i in range(len(rows))])
        everywhere = whole(rollouts, theirs)
        # As if the agent had said it: with the log-probs of its own policy.
        return with_fields(rollouts, "signals", teacher=everywhere, aided=everywhere)


class SwarmNode:
    """One policy of a swarm, in this process or as an actor of Ray. Of a round's `prompts` groups
    `external` are of other nodes. Raises `ConfigError` for settings with which rounds are no whole
    conversations about the next problems."""

    def __init__(self, agent: LanguagePolicyGradient, number: int, external: int) -> None:
        c = agent.config
        schedule.check_plain(c, "nodes that share", "leave them at their defaults")
        if not 0 <= external < c.prompts or c.staleness:
            raise ConfigError(
                f"external is {external}, prompts {c.prompts} and staleness {c.staleness}; of a "
                "round's prompts at least one group is the node's own, so external is from 0 to "
                "prompts - 1, and staleness 0"
            )
        if external and c.sampling.top_p < 1.0:
            raise ConfigError(
                f"sampling.top_p is {c.sampling.top_p} and external {external}; answers of others "
                "may have tokens that such sampling leaves out, so top_p is 1"
            )
        self.agent, self.number = agent, number
        self.collector = SharingCollector(agent, external)
        agent.collector = self.collector

    def sample(self) -> list[Shared]:
        """Own groups of the round that comes."""
        return self.collector.sample()

    def learn(self, others: Sequence[Shared]) -> Metrics:
        """The round's updates, with groups of `others`; what the last one measured."""
        agent: Any = self.agent
        rng = random.Random(f"{agent.seed} {self.number} {agent.step}")
        self.collector.receive(others, rng)
        latest: Metrics = {}

        def observe(event: str, agent: Any, metrics: Metrics) -> None:
            latest.update(metrics)

        train(agent, agent.step + 1, [observe], agent)
        return latest

    def weights(self) -> dict[str, np.ndarray]:
        """The model's weights, for another process."""
        return weights_of(self.agent)

    def save(self, path: Path) -> None:
        """The agent, between two rounds; a node of the loaded agent goes on exactly."""
        agent: Any = self.agent
        agent.save(path)


def swarm_round(nodes: Sequence[SwarmNode]) -> list[Metrics]:
    """One round of all nodes: each samples, then each learns from its own groups and from some of
    the others'. What each measured. Raises `ConfigError` for nodes of different tasks."""
    tasks = {node.agent.config.task for node in nodes}
    if len(tasks) > 1:
        raise ConfigError(f"nodes share answers to one task, and these have {sorted(tasks)}")
    said = [node.sample() for node in nodes]
    return [
        node.learn([group for j, groups in enumerate(said) if j != i for group in groups])
        for i, node in enumerate(nodes)
    ]
