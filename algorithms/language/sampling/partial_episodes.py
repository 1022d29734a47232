"""Rounds that do not begin with prompts or do not all go to their end: partial histories (ExIt),
turns of demonstrations (PivotRL), and pruning of what is half written (ARRoL)."""

import dataclasses
import random
from typing import Any

import torch
from torch import Tensor

from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.collectors import (
    ConversationCollector,
    MixedCollector,
    ScheduledCollector,
)
from algorithms.language.sampling.conversation import (
    Conversation,
    demonstration,
    earned,
)
from algorithms.language.sampling.equal_groups import UnequalCollector
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Reply
from mbrl.errors import ConfigError
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.schedulers.partial_episodes import ExIt, pivots
from mbrl.policy_gradient.schedulers.pruning import ARRoL
from mbrl.policy_gradient.schedulers.uniform import Epochs


class ResumedCollector(ConversationCollector):
    """With probability `starts_share` a group goes on from a buffered conversation that was cut
    after a turn, else it is about the next problem. Of every group one conversation, cut after a
    turn, both drawn evenly, goes into the buffer with the variance of the group's rewards.

    What stands before the start is not trained on. With `starts_steps` 1 every conversation, also
    of a new problem, is one turn more and no longer, which earns what that turn earns; what goes
    into the buffer is then the conversation after it.

    `acts`: the share of the groups from the buffer whose conversations earned different rewards.
    "Bootstrapping Task Spaces for Self-Improvement", arXiv 2509.04575, without its divergence
    prompts and novelty bonus."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.buffer = ExIt(agent.config.starts_kept, agent.config.starts_share)

    def collect(self) -> Rollouts:
        a, group = self.agent, self.agent.config.group
        drawn = [self.buffer.draw(self.generator) for _ in range(a.config.prompts)]
        new = a.problems(a.new_numbers(drawn.count(None)))
        fresh = iter(self.open(new))
        starts = [next(fresh) if d is None else Conversation.from_plain(d[1]) for d in drawn]
        rows = self.copies(starts, [group] * len(starts))
        owner = [i for i in range(len(starts)) for _ in range(group)]
        single = a.config.starts_steps == 1
        if single:
            self.one_turn(rows)
        else:
            rows, owner = self.finish(rows, owner)
        mixed = []
        for i, known in enumerate(drawn):
            mine = rows[i * group : (i + 1) * group]
            returns = torch.tensor([earned_since(row) if single else earned(row) for row in mine])
            if known is not None:
                self.buffer.update(known[0], returns)
                mixed.append(float(returns.max() > returns.min()))
            self.remember(mine, returns)
        self.acts = sum(mixed) / max(1, len(mixed))
        return self.to_rollouts(rows, owner)

    def remember(self, rows: list[Conversation], returns: Tensor) -> None:
        if self.agent.config.starts_steps == 1:
            going = [row for row in rows if not row.replies[-1].done]
            if going:
                row = going[int(torch.randint(len(going), (), generator=self.generator))]
                self.buffer.add(after_all(row, self.agent.codec).plain(), returns)
            return
        longer = [row for row in rows if len(row.turns) > row.given + 1]
        if not longer:
            return
        row = longer[int(torch.randint(len(longer), (), generator=self.generator))]
        turns = torch.randint(row.given + 1, len(row.turns), (), generator=self.generator)
        self.buffer.add(row.up_to(int(turns)).plain(), returns)

    def begin_stage(self) -> None:
        for key in list(self.buffer.starts):
            self.buffer.drop(key)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.buffer.load_state_dict(state["buffer"])


def earned_since(row: Conversation) -> float:
    """The reward of the turns that were not given."""
    return sum(reply.reward for reply in row.replies[row.given :])


def after_all(row: Conversation, codec: Codec) -> Conversation:
    """A conversation that begins after all turns of `row`, which the task has not ended, with what
    it said to the last one."""
    tokens = row.tokens[: row.spans[-1][1]]
    return Conversation(
        row.problem,
        [*tokens, *codec.between(row.replies[-1].observation)],
        spans=row.spans,
        turns=row.turns,
        replies=row.replies,
        given=len(row.turns),
    )


class PivotCollector(ConversationCollector):
    """Groups of one turn, from turns of demonstrations at which the first policy's samples vary.
    A turn earns 1 if it does what the demonstrated one did: the reply brings the same state (the
    same observation, where the task names no states) or the same end, whatever was written; or if
    it solves the problem.

    Before the first round `group` samples are drawn at every turn of `pivots` demonstrations; those
    to practise then come in shuffled passes. "PivotRL: High Accuracy Agentic Post-Training at Low
    Compute Cost"."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.starts: list[dict[str, Any]] = []  # hardest first
        self.goals: list[list[Any]] = []
        self.order = Epochs(0)

    def profile(self) -> None:
        """Raises `ConfigError` if no turn's samples vary."""
        a, starts, goals = self.agent, list[Conversation](), list[list[Any]]()
        for number in range(a.config.pivots):
            rng = random.Random(f"{a.seed} shown {number}")
            shown = demonstration(a.codec, a.task, a.problem(number), rng)
            starts += [shown.up_to(k) for k in range(len(shown.turns))]
            goals += [brings(reply) for reply in shown.replies]
        rows, _ = self.turns(starts, goals, list(range(len(starts))))
        rewards = torch.tensor([earned_last(row) for row in rows]).view(len(starts), -1)
        chosen = pivots(rewards).tolist()
        if not chosen:
            raise ConfigError(
                f"at no turn of {a.config.pivots} demonstrations the policy's {a.config.group} "
                "samples vary; give more pivots, a larger group, or a policy that knows more"
            )
        self.starts = [starts[i].plain() for i in chosen]
        self.goals = [goals[i] for i in chosen]
        self.order = Epochs(len(chosen))

    def turns(
        self, starts: list[Conversation], goals: list[list[Any]], chosen: list[int]
    ) -> tuple[list[Conversation], list[int]]:
        """A group of one turn from each of the `chosen` starts, and the place of its start."""
        group = self.agent.config.group
        rows = self.copies([starts[i] for i in chosen], [group] * len(chosen))
        owner = [place for place in range(len(chosen)) for _ in range(group)]
        self.one_turn(rows)
        for row, place in zip(rows, owner, strict=True):
            reply = row.replies[-1]
            right = reply.success or brings(reply) == goals[chosen[place]]
            row.replies[-1] = dataclasses.replace(reply, reward=float(right), success=right)
        return rows, owner

    def collect(self) -> Rollouts:
        if not self.starts:
            self.profile()
        chosen = self.order.take(self.agent.config.prompts, self.generator).tolist()
        starts = [Conversation.from_plain(values) for values in self.starts]
        return self.to_rollouts(*self.turns(starts, self.goals, chosen))

    def state_dict(self) -> dict[str, Any]:
        own = {"starts": self.starts, "goals": self.goals, "order": self.order.state_dict()}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.starts, self.goals = list(state["starts"]), list(state["goals"])
        self.order = Epochs(len(self.starts))
        self.order.load_state_dict(state["order"])


def brings(reply: Reply) -> list[Any]:
    """What two turns that do the same have in common."""
    return [reply.done, reply.success, reply.state or reply.observation]


def earned_last(row: Conversation) -> float:
    return row.replies[-1].reward


class PruningCollector(ConversationCollector):
    """After `prune_at` tokens of each conversation, of those of a group that go on only a share
    `prune_to` does (rounded up): those whose predicted successes come nearest to one half. The
    others are dropped, as if they had not begun; conversations that were over by then stay.

    Predictions are learned online from those that went on, of the tokens' log-probs: the mean (its
    opposite estimates the entropy), the least and the last, the turns that are over, and what they
    earned. "Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR"."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.pruner = ARRoL(5)

    def finish(
        self, rows: list[Conversation], owner: list[int]
    ) -> tuple[list[Conversation], list[int]]:
        limits, c = self.limits(), self.agent.config
        self.advance(rows, limits, budget=c.prune_at)
        going, dropped = list[int](), set[int]()
        for group in sorted(set(owner)):
            mine = [i for i, o in enumerate(owner) if o == group and not rows[i].done]
            if not mine:
                continue
            count = -int(-c.prune_to * len(mine) // 1)
            stay = self.pruner.survivors(halfway([rows[i] for i in mine]), count).tolist()
            going += [i for i, on in zip(mine, stay, strict=True) if on]
            dropped |= {i for i, on in zip(mine, stay, strict=True) if not on}
        if going:
            features = halfway([rows[i] for i in going])
            self.advance([rows[i] for i in going], limits)
            right = torch.tensor([float(rows[i].replies[-1].success) for i in going])
            self.pruner.update(features, right)
        left = [i for i in range(len(rows)) if i not in dropped]
        return [rows[i] for i in left], [owner[i] for i in left]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"pruner": self.pruner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.pruner.load_state_dict(state["pruner"])


def halfway(rows: list[Conversation]) -> Tensor:
    """[R, 5]: what the success of conversations that go on is predicted from."""
    said = [torch.tensor(row.model, dtype=torch.float64) for row in rows]
    return torch.stack(
        [
            torch.stack([s.mean(), s.min(), s[-1], s.new_tensor(len(row.turns)), s.new_tensor(e)])
            for s, row, e in zip(said, rows, map(earned, rows), strict=True)
        ]
    )


def make_collector(agent: Any) -> ConversationCollector:
    """The kind of round that the agent's recipe or its settings name."""
    c = agent.config
    if Requirement.EARLIER_DATA in agent.recipe.requirements:
        return MixedCollector(agent)
    if c.scheduler != "uniform":
        return ScheduledCollector(agent)
    if c.pivots:
        return PivotCollector(agent)
    if c.starts_share:
        return ResumedCollector(agent)
    if c.drop_equal:
        return UnequalCollector(agent)
    return PruningCollector(agent) if c.prune_at else ConversationCollector(agent)
