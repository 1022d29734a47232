"""Recorded traces in which the policy acts: its own turns where they match, patches where not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from algorithms.language.measures.assembled import Assembled
from algorithms.language.measures.base import LanguageMeasure, require_task
from algorithms.language.measures.judged import as_shown, call_score, demonstrated
from algorithms.language.measures.locate import whole
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, Reply
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

PATCHES = 2  # in one walk through a trace; the authors' default
GAMMA = 0.5  # from step to step; the authors'
FORM, ACTION = 0.1, 0.9  # what a step's score is made of; the authors'
SAME_TOOL, PARSED = 0.5, 0.1  # of ACTION, for less than the trace's action; the authors'


@dataclass
class Walk:
    """One way through a trace: the text so far, of which all is given, and what was said."""

    tokens: list[int]
    turns: list[str]
    replies: list[Reply]
    spans: list[tuple[int, int]]
    patches: int = 0
    going: bool = True


class PatchedTraces(LanguageMeasure):
    """Every problem has one trace, a demonstration. A conversation walks through it: the policy
    takes the turn, and hears what the trace heard. A turn that does `as_shown` stays in the text;
    any other is replaced there by the trace's own turn, twice at most, and a third one ends the
    walk. Every turn that the policy said is a row of its own, after the text before it, which is
    read and not trained on; its reward is its score. `groups.step`: the number of the turn.
    `signals.step_return`: the discounted scores from it on, up to the first that does not match,
    which is worth its own score alone: no credit flows across a patch.

    `acts`: patches for each walk. Success is that of walks without any. "UI-S1: Advancing GUI
    Automation via Semi-online Reinforcement Learning", arXiv 2509.11543, and the authors' code
    (X-PLUG/MobileAgent, UI-S1)."""

    provides = ("signals.step_return", "groups.step")
    fulfils = (Requirement.REPLAYED_TRACES,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            lambda task: task.max_turns > 1,
            f"recipe {objective.name} walks through traces of several turns, and {config.task} "
            "has one turn; a task that has more",
        )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, size = self.agent, self.agent.config.group
        traces = [demonstrated(agent.task, problem) for problem in problems]
        opened = agent.collector.open(problems)
        walks = [[Walk(row.tokens, [], [], []) for _ in range(size)] for row in opened]
        said: list[list[list[tuple[Conversation, float, bool]]]] = [
            [[] for _ in range(size)] for _ in problems
        ]
        for step in range(max(map(len, traces))):
            self.take_step(problems, traces, walks, said, step)
        round_, steps, returns = Assembled(agent), list[int](), list[float]()
        for group in said:
            round_.add([row for walk in group for row, _, _ in walk])
            for walk in group:
                steps += range(len(walk))
                returns += cut_returns([s for _, s, _ in walk], [m for _, _, m in walk])
        every = [walk for group in walks for walk in group]
        self.acts = sum(walk.patches for walk in every) / len(every)
        ends = [walk[-1][0].replies[-1].success for group in said for walk in group]
        alone = [not walk.patches for walk in every]
        self.success = sum(a and b for a, b in zip(ends, alone, strict=True)) / len(every)
        rollouts = round_.rollouts()
        rollouts = with_fields(rollouts, "groups", step=whole(rollouts, steps))
        return with_fields(rollouts, "signals", step_return=whole(rollouts, returns))

    def take_step(
        self,
        problems: Sequence[Problem],
        traces: Sequence[Sequence[tuple[str, Reply]]],
        walks: Sequence[Sequence[Walk]],
        said: Sequence[Sequence[list[tuple[Conversation, float, bool]]]],
        step: int,
    ) -> None:
        """Have every walk that goes on take its turn number `step`."""
        agent = self.agent
        here = [
            (i, j)
            for i, group in enumerate(walks)
            for j, walk in enumerate(group)
            if walk.going and step < len(traces[i])
        ]
        rows = []
        for i, j in here:
            walk = walks[i][j]
            row = Conversation(problems[i], list(walk.tokens), agent.drawn_seed(), given=step)
            row.spans, row.turns = list(walk.spans), list(walk.turns)
            row.replies = list(walk.replies)
            rows.append(row)
        for (i, j), row in zip(here, agent.collector.one_turn(rows), strict=True):
            shown = traces[i][step]
            score, match = judged(agent.task, problems[i], traces[i], row.turns[-1], step)
            row.replies[-1] = Reply(score, row.replies[-1].done, match and shown[1].success)
            row.cut = False
            said[i][j].append((row, score, match))
            self.go_on(walks[i][j], row, shown, match)

    def go_on(self, walk: Walk, row: Conversation, shown: tuple[str, Reply], match: bool) -> None:
        """Let the walk have the turn, its own or the trace's, and what was heard after it."""
        codec, (start, stop) = self.agent.codec, row.spans[-1]
        tokens, text = row.tokens[start:stop], row.turns[-1]
        if not match:
            walk.going = walk.patches < PATCHES
            if not walk.going:
                return
            walk.patches += 1
            tokens, text = codec.turn(shown[0]), shown[0]
        walk.spans.append((start, start + len(tokens)))
        walk.turns.append(text)
        walk.replies.append(shown[1])
        after = [] if shown[1].done else codec.between(shown[1].observation)
        walk.tokens = [*row.tokens[:start], *tokens, *after]


def judged(
    task: Any, problem: Problem, trace: Sequence[tuple[str, Reply]], turn: str, step: int
) -> tuple[float, bool]:
    """The score of `turn` in place of number `step` of the trace, and whether it matches."""
    before = [text for text, _ in trace[:step]]
    reply = task.reply(problem, [*before, turn])
    match = as_shown(task, problem, [*before, turn], [*(r for _, r in trace[:step]), reply], step)
    formed = not reply.signals.get("void", 0.0) and not reply.signals.get("penalty", 0.0)
    action = 1.0 if match else PARSED if formed else 0.0
    if not match and call_score(turn, trace[step][0]) > 0:
        action = SAME_TOOL
    return FORM * formed + ACTION * action, match


def cut_returns(scores: Sequence[float], match: Sequence[bool]) -> list[float]:
    """Of every step its score plus GAMMA times the return after it; the score alone where it does
    not match."""
    returns, later = list[float](), 0.0
    for score, same in zip(reversed(scores), reversed(match), strict=True):
        returns.append(score + GAMMA * later if same else score)
        later = returns[-1] if same else 0.0
    return returns[::-1]
