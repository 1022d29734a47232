"""What the task's program says of turns: its further signals, steps, and what one who can do it
would have done."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.language.measures.answers import number, pieces
from algorithms.language.measures.base import LanguageMeasure, has_signal, require_task
from algorithms.language.measures.locate import at_ends, firsts, of_turns, prompts, whole
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, Reply, TextTask
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.measures.matching import hard_match
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields


class TaskSignals(LanguageMeasure):
    """Numbers in [0, 1] that replies carry. `format_reward`, `length_reward` and `penalty` are of
    the whole conversation, the mean over its turns (so that `penalty` is the share of turns with a
    tool error); `void` and `coverage`, what a profiler says of its program, are of the turn."""

    provides = (
        "signals.format_reward",
        "signals.length_reward",
        "signals.void",
        "signals.penalty",
        "signals.coverage",
    )
    fulfils = (
        Requirement.COVERAGE_PROFILE,
        Requirement.VOID_TURNS,
        Requirement.TOOL_PENALTIES,
    )

    @classmethod
    def names(cls, objective: Recipe) -> list[str]:
        return [p.removeprefix("signals.") for p in cls.provides if p in objective.needs]

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        for name in cls.names(objective):
            require_task(
                config,
                has_signal(name),
                f"recipe {objective.name} reads signals.{name}, which replies of {config.task} do "
                "not have; a task that has it",
            )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        values = {}
        for name in self.names(self.agent.recipe):
            rows = [[float(reply.signals[name]) for reply in row] for row in rollouts.replies]
            if name in ("void", "coverage"):
                values[name] = of_turns(rollouts, rows)
            else:
                values[name] = whole(rollouts, [sum(row) / len(row) for row in rows])
        return with_fields(rollouts, "signals", **values)


class ReasoningConsistency(LanguageMeasure):
    """`signals.consistency` of the whole conversation: 1 if the answer, a number, is what the
    reasoning before it comes to: the number at the end of the last piece of the last turn but the
    answer, "8" in "3+5=8;8" and in "<3+5=8><8>". 0 for an answer alone. The program stands for the
    judge of "R1-Reward", arXiv 2505.02835."""

    provides = ("signals.consistency",)
    fulfils = (Requirement.CONSISTENCY_JUDGE,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        agree = [float(consistent(turns[-1])) for turns in rollouts.turns]
        return with_fields(rollouts, "signals", consistency=whole(rollouts, agree))


class ProcessReward(LanguageMeasure):
    """`signals.process_reward` in [0, 1], at the last step of every turn: the share of its written
    steps that are right (0 if there is none) where the task tells steps apart; elsewhere 1 for a
    turn that does `as_shown`, else 0."""

    provides = ("signals.process_reward",)
    fulfils = (Requirement.TURN_JUDGE,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        if tells_steps(self.agent.task):
            rows = []
            for problem, turns in zip(rollouts.problems, rollouts.turns, strict=True):
                written = [steps(self, problem, turns, k) for k in range(len(turns))]
                rows.append([sum(s.right for s in w) / max(1, len(w)) for w in written])
        else:
            rows = good_turns(self.agent.task, rollouts)
        return with_fields(rollouts, "signals", process_reward=at_ends(rollouts, rows))


class MatchScore(LanguageMeasure):
    """`signals.match_score` in [0, 1], at the last step of every turn: its `call_score` with the
    call of a demonstration of the problem that the best assignment gives it, 0 for turns that are
    left over or no call. A call is a turn that was answered with an observation. "MatchTIR:
    Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching", without
    penalty."""

    provides = ("signals.match_score",)
    fulfils = (Requirement.CALL_MATCHES,)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        task, rows = self.agent.task, []
        known = {
            prompt: [
                turn for turn, reply in demonstrated(task, rollouts.problems[i]) if not reply.done
            ]
            for prompt, i in firsts(rollouts).items()
        }
        for prompt, turns, replies in zip(
            prompts(rollouts), rollouts.turns, rollouts.replies, strict=True
        ):
            shown = known[prompt]
            calls = [k for k, reply in enumerate(replies) if not reply.done]
            scores = np.array([[call_score(turns[k], call) for call in shown] for k in calls])
            won = hard_match(scores.reshape(len(calls), len(shown)))
            row = [0.0] * len(turns)
            for k, score in zip(calls, won, strict=True):
                row[k] = float(score)
            rows.append(row)
        return with_fields(rollouts, "signals", match_score=at_ends(rollouts, rows))


def tells_steps(task: TextTask) -> bool:
    return type(task).steps is not TextTask.steps


def steps(part: LanguageMeasure, problem: Problem, turns: Sequence[str], k: int) -> Any:
    """The steps written in turn `k`."""
    return part.agent.task.steps(problem, turns[: k + 1])


def consistent(turn: str) -> bool:
    """Whether the answer of `turn` is what its reasoning comes to."""
    parts = pieces(turn)
    if len(parts) < 2 or (answer := number(parts[-1])) is None:
        return False
    return number(parts[-2].rpartition("=")[2]) == answer


def good_turns(task: TextTask, rollouts: Rollouts) -> list[list[float]]:
    """Of every turn whether it does `as_shown`."""
    return [
        [float(as_shown(task, problem, turns, replies, k)) for k in range(len(turns))]
        for problem, turns, replies in zip(
            rollouts.problems, rollouts.turns, rollouts.replies, strict=True
        )
    ]


def as_shown(
    task: TextTask, problem: Problem, turns: Sequence[str], replies: Sequence[Reply], k: int
) -> bool:
    """Whether turn `k` solved the problem, says what a demonstration says there, or leads to the
    same state. Of several good ways it knows the demonstration's alone."""
    own, before = replies[k], turns[:k]
    shown = task.demonstration(problem, before, random.Random(0))
    if own.success or turns[k] == shown:
        return True
    reply = task.reply(problem, [*before, shown])
    return (own.done, own.success, own.state) == (reply.done, reply.success, reply.state)


def demonstrated(task: TextTask, problem: Problem) -> list[tuple[str, Reply]]:
    """The turns of one who can do it, from the beginning, and their replies."""
    shown: list[tuple[str, Reply]] = []
    while not shown or not shown[-1][1].done:
        before = [turn for turn, _ in shown]
        turn = task.demonstration(problem, before, random.Random(0))
        shown.append((turn, task.reply(problem, [*before, turn])))
    return shown


def call_score(call: str, reference: str) -> float:
    """1 for the same text; 1/2 for a call "name(...)" of the same name, else 0."""
    if call == reference:
        return 1.0
    name, bracket, _ = call.partition("(")
    return 0.5 if bracket and name == reference.partition("(")[0] else 0.0
