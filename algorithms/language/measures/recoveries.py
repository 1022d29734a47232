"""Rounds that make something of errors: new contexts to recover from, or conversations that never
made them."""

from collections.abc import Sequence
from typing import Any

import torch

from algorithms.language.measures.assembled import (
    Assembled,
    answers,
    check_help,
    diagnoses,
    own_groups,
    rate,
    right,
)
from algorithms.language.measures.base import LanguageMeasure, has_signal
from algorithms.language.sampling.conversation import Conversation, earned
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, TextTask
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

ROUNDS_KEPT = 4  # rounds of error contexts that wait at most; ours


class ErrorContexts(LanguageMeasure):
    """Of every problem one failed conversation is cut after its first erroneous turn, whose
    observation the task's diagnosis replaces: a context to recover from. When half as many wait as
    a round has problems, so many of the newest are gone on from, a group each, beside the round's
    own groups; what is older than four rounds' worth is dropped. The context is read, not trained
    on.

    `acts`: contexts for each problem of the round. "Robust Tool Use via Fission-GRPO: Learning to
    Recover from Execution Errors", arXiv 2601.15625, where a model that was trained for it makes
    the diagnoses, and the groups have updates of their own."""

    provides = ()
    fulfils = (Requirement.ERROR_CONTEXTS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.waiting: list[dict[str, Any]] = []  # oldest first

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, diagnoses, "diagnoses of errors")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        groups = own_groups(agent, problems)
        for rows in groups:
            round_.add(rows)
        new = [context for rows in groups if (context := self.context(rows)) is not None]
        size = max(1, len(problems) // 2)
        self.waiting = [*self.waiting, *(row.plain() for row in new)][-ROUNDS_KEPT * size :]
        if len(self.waiting) >= size:
            latest = [self.waiting.pop() for _ in range(size)]
            for rows in answers(agent, [Conversation.from_plain(values) for values in latest]):
                round_.add(rows, [{"aided": 1.0} for _ in rows])
        self.acts = len(new) / len(problems)
        return round_.rollouts()

    def context(self, rows: Sequence[Conversation]) -> Conversation | None:
        """What the first failed one of `rows` that made an error is to recover from."""
        agent = self.agent
        for row in rows:
            if right(row):
                continue
            for k in range(len(row.turns) - 1):
                shown = agent.task.diagnosis(row.problem, row.turns[: k + 1])
                if shown:
                    start = row.up_to(k + 1)
                    start.tokens = [*row.tokens[: row.spans[k][1]], *agent.codec.between(shown)]
                    return start
        return None

    def begin_stage(self) -> None:
        self.waiting = []

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = list(state["waiting"])


class PurifiedTurns(LanguageMeasure):
    """In every conversation turns that failed (void, or answered with an error) and that a turn
    which did not fail comes after are taken out with their answers, and the task answers the rest
    anew; where the end is then another one, the conversation stays as it was. Log-probs of
    sampling stay those under the context that a turn was sampled in; the old ones are of the new
    text.

    `acts`: the share of purified conversations. "CLEANER: Self-Purified Trajectories Boost Agentic
    Reinforcement Learning". A turn here is a call alone, so that its two granularities, the call or
    also the reasoning before it, are one."""

    provides = ()
    fulfils = (Requirement.PURIFIED_TURNS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, has_signal("void"), "signals of failed turns")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_, changed, moved = self.agent, Assembled(self.agent), 0, 0.0
        for rows in own_groups(agent, problems):
            new = [purified(row, agent.task, agent.codec) for row in rows]
            changed += sum(a is not b for a, b in zip(rows, new, strict=True))
            moved += rate(rows) - rate(new)
            round_.add(new)
        assert moved == 0  # a purified conversation ends as it did
        self.acts = changed / len(round_.rows)
        return round_.rollouts()


def failed(row: Conversation, k: int) -> bool:
    """Whether turn `k` was void or answered with an error."""
    signals = row.replies[k].signals
    return signals.get("void", 0.0) > 0 or signals.get("penalty", 0.0) > 0


def purified(row: Conversation, task: TextTask, codec: Any) -> Conversation:
    """`row`, nothing of which was given, without the failed turns that it recovered from; itself
    where there are none, or where the end would be another one."""
    fine = [not failed(row, k) for k in range(len(row.turns))]
    last = max((k for k, ok in enumerate(fine) if ok), default=-1)
    stay = [k for k in range(len(row.turns)) if fine[k] or k > last]
    if len(stay) == len(row.turns):
        return row
    new = Conversation(row.problem, row.tokens[: row.spans[0][0]], row.seed)
    begins = torch.tensor([0, *(stop - start for start, stop in row.spans)]).cumsum(0).tolist()
    for k in stay:
        start, stop = row.spans[k]
        said = slice(begins[k], begins[k + 1])
        new.extend_turn(row.tokens[start:stop])
        new.behaviour += row.behaviour[said]
        new.model += row.model[said]
        new.versions += row.versions[said]
        new.kept += row.kept[said]
        new.finish(task, codec, task.max_turns)
        if new.done and k != stay[-1]:
            return row
    alike = (right(new), earned(new), new.replies[-1].done) == (
        right(row),
        earned(row),
        row.replies[-1].done,
    )
    return new if alike else row
