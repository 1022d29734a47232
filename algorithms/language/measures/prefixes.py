"""Rounds that go on from what somebody else has written: parts of right answers, corrected steps,
parts of demonstrations."""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from algorithms.language.measures.assembled import (
    Assembled,
    answers,
    check_help,
    corrects,
    drawn,
    own_groups,
    rate,
    right,
    uniform,
)
from algorithms.language.measures.base import LanguageMeasure, require_one_domain
from algorithms.language.sampling.conversation import Conversation, demonstration, earned
from algorithms.language.sampling.prefixes import TEACHER, begun, corrected, places
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, Reply
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

BANK, HARD = 128, 0.5  # problems that PrefixRL tries for its bank, and the most that succeed; ours
BAND = (0.4, 0.8)  # of a trace that a prefix is
PLAIN = 4  # groups to one without a prefix
SALVAGED = 0.25  # of a group, at most, and only where less than half is right; ours
MOST_HINT = 0.8  # of a demonstration that a hint is; ours
INTERVENTION_ROUNDS = 8  # of learning interventions by heart, before rewards; ours
CONTINUATIONS = 4  # by which interventions are judged; the authors' have 32


class SolvedPrefixes(LanguageMeasure):
    """Before the first round the policy tries 128 problems, a group of answers each, and of those
    that half of the answers or less solve one right answer goes into a bank. Three quarters of a
    round's groups, rounded down, then go on from an answer of the bank, of which they have between
    0.4 and 0.8 of the tokens: a group has one problem and one length. No gradient comes from the
    prefix.

    `acts`: the share of these groups with right and wrong ends. PrefixRL: "Reuse your FLOPs:
    Scaling RL on Hard Problems by Conditioning on Very Off-Policy Prefixes"."""

    provides = ()
    fulfils = (Requirement.SOLVED_PREFIXES,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.bank: list[dict[str, Any]] | None = None

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")
        require_one_domain(objective, config)

    def fill(self) -> list[dict[str, Any]]:
        """The bank."""
        groups = own_groups(self.agent, [self.agent.problem(n) for n in range(BANK)])
        hard = [[row for row in rows if right(row)] for rows in groups if 0 < rate(rows) <= HARD]
        return [rows[0].plain() for rows in hard if len(places(rows[0])) > 1]

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        if self.bank is None:
            self.bank = self.fill()
        plain = -(-len(problems) // PLAIN) if self.bank else len(problems)
        for rows in own_groups(agent, problems[:plain]):
            round_.add(rows)
        starts = [self.start() for _ in problems[plain:]]
        groups = answers(agent, starts)
        for rows in groups:
            round_.add(rows, [{"aided": 1.0} for _ in rows])
        self.acts = sum(0 < rate(rows) < 1 for rows in groups) / max(1, len(groups))
        return round_.rollouts()

    def start(self) -> Conversation:
        """A prefix from the bank."""
        assert self.bank
        trace = Conversation.from_plain(self.bank[drawn(self.agent, len(self.bank))])
        said, share = len(places(trace)), BAND[0] + (BAND[1] - BAND[0]) * uniform(self.agent)
        return begun(trace, min(max(1, round(share * said)), said - 1), 0)

    def state_dict(self) -> dict[str, Any]:
        return {"bank": self.bank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bank = state["bank"]


class CorrectedSteps(LanguageMeasure):
    """In groups of which less than half is right, failed answers with something right before their
    first wrong step, a quarter of the group at most (one of a group below four), are replaced: what
    they said up to that step, the step as the task's program corrects it, and an end that the
    policy says from there.
    `signals.teacher`: 1 at the corrected step.

    `acts`: the share of a round's answers that were replaced and earn more. SCOPE: "Recycling
    Failures: Salvaging Exploration in RLVR via Fine-Grained Off-Policy Guidance"."""

    provides = ("signals.teacher",)
    fulfils = (Requirement.CORRECTED_STEPS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, corrects, "a program that corrects wrong steps")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        groups, at, starts = own_groups(agent, problems), list[tuple[int, int]](), []
        for i, rows in enumerate(groups):
            if rate(rows) >= 0.5:
                continue
            tried = [(j, corrected_row(agent, row)) for j, row in enumerate(rows) if not right(row)]
            some = [(j, row) for j, row in tried if row is not None and own_steps(row)]
            some = some[: max(1, int(SALVAGED * len(rows)))]
            at += [(i, j) for j, _ in some]
            starts += [row for _, row in some]
        ends = [rows[0] for rows in answers(agent, starts, 1)]
        better = 0
        for (i, j), row in zip(at, ends, strict=True):
            better += earned(row) > earned(groups[i][j])
            groups[i][j] = row
        for rows in groups:
            round_.add(rows, [{"aided": float(bool(row.origins))} for row in rows])
        self.acts = better / len(round_.rows)
        return round_.rollouts()


class HintedPrefixes(LanguageMeasure):
    """Half of a group (rounded up) is had without help. Where the share p of it is right, the other
    half goes on from the first 0.8 (1 - p) of a demonstration's tokens, all but one at most, and is
    a group for itself; where all is right the whole group is without help. `signals.teacher`: 1 at
    the hint. `signals.hint_weight`: 1 + d for answers without and 1 - d for those with a hint, d
    how much more often these are right, at least 0 (right answers weigh as much, wrong ones two
    less that).

    `acts`: the share of problems with a hint. "ADHint: Adaptive Hints with Difficulty Priors for
    Reinforcement Learning", arXiv 2512.13095."""

    provides = ("signals.teacher", "signals.hint_weight")
    fulfils = (Requirement.HINTED_PREFIXES,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_, size = self.agent, Assembled(self.agent), self.agent.config.group
        first = -(-size // 2)
        groups = own_groups(agent, problems, first)
        shown = [self.hinted(p, rate(rows)) for p, rows in zip(problems, groups, strict=True)]
        bare = agent.collector.open(problems)
        starts = [b if s is None else s for b, s in zip(bare, shown, strict=True)]
        others = answers(agent, starts, size - first) if size > first else [[] for _ in problems]
        for rows, more, hint in zip(groups, others, shown, strict=True):
            if hint is None:
                round_.add([*rows, *more], [{"hint_weight": 1.0} for _ in range(size)])
                continue
            rise = max(0.0, rate(more) - rate(rows)) if more else 0.0
            round_.add(rows, [{"hint_weight": 1.0 + rise} for _ in rows])
            round_.add(more, [{"hint_weight": 1.0 - rise, "aided": 1.0} for _ in more])
        self.acts = sum(hint is not None for hint in shown) / len(problems)
        return round_.rollouts("hint_weight")

    def hinted(self, problem: Problem, known: float) -> Conversation | None:
        """A demonstration's beginning, for a problem of which the share `known` is right."""
        agent = self.agent
        trace = demonstration(agent.codec, agent.task, problem, random.Random(drawn(agent, 2**31)))
        said = len(places(trace))
        count = min(math.ceil(MOST_HINT * (1 - known) * said - 1e-9), said - 1)
        limit = agent.collector.limits().limit(agent.task)
        if count < 1 or max(stop - start for start, stop in trace.spans) > limit:
            return None  # a demonstration that turns have no room for is none
        row = begun(trace, count, 0)
        row.versions = [agent.updates] * len(row.versions)
        row.origins = [(start, stop, TEACHER) for start, stop, _ in row.origins]
        return row


class Interventions(LanguageMeasure):
    """In the first eight rounds what is learned is not answers but interventions, by heart: a
    failed answer up to its first wrong step and that step as the task's program corrects it, with
    nothing after it. Kept are those that do not end the answer and after which one of four ends by
    the policy is right, one for each failed answer. `signals.demonstration`: 1 for them. A round
    without any, and all later ones, are answers to rewards.

    `acts`: kept interventions for each answer of the round. InT: "Self-Proposed Interventions
    Enable Credit Assignment in LLM Reasoning", where the model itself proposes them."""

    provides = ("signals.demonstration",)
    fulfils = (Requirement.INTERVENTIONS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.rounds = 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, corrects, "a program that corrects wrong steps")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        groups = own_groups(self.agent, problems)
        learning, self.rounds = self.rounds < INTERVENTION_ROUNDS, self.rounds + 1
        kept = self.kept([row for rows in groups for row in rows]) if learning else []
        round_ = Assembled(self.agent)
        for rows in groups:
            round_.add(rows, [{"trained": float(not kept)} for _ in rows])
        for row in kept:
            round_.add([row], [{"aided": 1.0, "demonstration": 1.0, "trained": 1.0}])
        self.acts = len(kept) / sum(map(len, groups))
        return round_.rollouts("demonstration", "trained")

    def kept(self, rows: Sequence[Conversation]) -> list[Conversation]:
        """The interventions in what failed among `rows`, which break off after them."""
        tried = [corrected_row(self.agent, row) for row in rows if not right(row)]
        starts = [row for row in tried if row is not None and not row.done]
        groups = answers(self.agent, starts, CONTINUATIONS)
        useful = [s for s, ends in zip(starts, groups, strict=True) if any(map(right, ends))]
        return [broken_off(self.agent, row) for row in useful]

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


def corrected_row(agent: Any, row: Conversation) -> Conversation | None:
    """`row` up to its first wrong step, which is corrected; None without one, or without room."""
    error = agent.task.first_error(row.problem, row.turns)
    if error is None:
        return None
    limit = agent.collector.limits().limit(agent.task)
    return corrected(row, error, agent.codec, agent.task, limit, agent.updates, 0)


def own_steps(row: Conversation) -> int:
    """Tokens before the first that a teacher said."""
    return sum(at < row.origins[0][0] for at in places(row))


def broken_off(agent: Any, row: Conversation) -> Conversation:
    """`row` as a sequence that is over where it stands, without reward."""
    row = row.again(row.seed)
    if len(row.spans) > len(row.turns):
        start, stop = row.spans[-1]
        row.turns.append(agent.codec.decode(row.tokens[start:stop]))
        row.replies.append(Reply(done=False))
    row.replies[-1] = dataclasses.replace(row.replies[-1], reward=0.0)
    row.cut, row.done = True, True
    return row
