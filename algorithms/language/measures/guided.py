"""Rounds in which some answers are sampled with a text that helps and learned from without it."""

from collections.abc import Sequence
from typing import Any, ClassVar

from algorithms.language.measures.assembled import (
    Assembled,
    answers,
    check_help,
    corrects,
    hints,
    own_groups,
    rate,
    right,
)
from algorithms.language.measures.base import LanguageMeasure, require_one_turn
from algorithms.language.sampling.contexts import opened_with, opening
from algorithms.language.sampling.conversation import Conversation, earned
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem, Reply
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement


def helped(
    agent: Any, pairs: Sequence[tuple[Problem, str]], group: int | None = None
) -> list[list[Conversation]]:
    """Answers to each problem with a text that helps after its prompt."""
    starts = [Conversation(p, opening(agent.codec, p, text)) for p, text in pairs]
    return answers(agent, starts, group)


def bare(agent: Any, rows: Sequence[Conversation]) -> list[Conversation]:
    """The same answers as if nothing had helped: only what stands before them changes."""
    return [opened_with(row, opening(agent.codec, row.problem)) for row in rows]


class ShownDocuments(LanguageMeasure):
    """Half of a group, rounded down, is sampled with the task's hint after the prompt, the other
    half without; advantages are taken over both together, and all are learned from without the
    hint. Log-probs of sampling are those with it, so that a ratio to them is exact.

    `acts`: by how much successes with and without differ, mean over problems with a hint.
    PolicyRollout of "Multimodal Policy Internalization for Conversational Agents", whose document
    of rules is the task's hint here."""

    provides = ()
    fulfils = (Requirement.SHOWN_DOCUMENTS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, hints, "hints")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_, apart = self.agent, Assembled(self.agent), list[float]()
        shown = agent.config.group // 2
        plain = own_groups(agent, problems, agent.config.group - shown)
        texts = [agent.task.hint(problem, []) for problem in problems]
        pairs = list(zip(problems, texts, strict=True))
        aided = helped(agent, pairs, shown) if shown else [[] for _ in problems]
        for rows, more, text in zip(plain, aided, texts, strict=True):
            if text and more:
                apart.append(abs(rate(more) - rate(rows)))
            numbers = [{"aided": 0.0}] * len(rows) + [{"aided": float(bool(text))}] * shown
            round_.add([*rows, *bare(agent, more)], numbers)
        self.acts = sum(apart) / max(1, len(apart))
        return round_.rollouts()


class GuidedAttempts(LanguageMeasure):
    """Problems that no answer of the group solves are tried again with guidance, the task's hint, a
    group each; the new answers are compared among themselves and learned from without the guidance.

    `acts`: the share of the second groups with a right answer. "Agent-RLVR: Training Software
    Engineering Agents via Guidance and Environment Rewards"."""

    provides = ()
    fulfils = (Requirement.GUIDED_ATTEMPTS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, hints, "hints")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        groups = own_groups(agent, problems)
        for rows in groups:
            round_.add(rows)
        failed = [p for p, rows in zip(problems, groups, strict=True) if not any(map(right, rows))]
        pairs = [(p, text) for p in failed if (text := agent.task.hint(p, []))]
        second = helped(agent, pairs)
        for rows in second:
            round_.add(bare(agent, rows), [{"aided": 1.0} for _ in rows])
        self.acts = sum(any(map(right, rows)) for rows in second) / max(1, len(second))
        return round_.rollouts()


class RescuedPrompts(LanguageMeasure):
    """Problems that no answer of the group solves are tried with the part to begin with after the
    prompt, half a group each (the task's hint); those that still nobody solves once more, with a
    wrong answer there, half a group. What is right of either is learned by heart after the bare
    prompt, and is in no group. `signals.demonstration`: 1 for it.

    `acts`: rescued problems for each problem of the round. "Cog-Rethinker: Hierarchical
    Metacognitive Reinforcement Learning for LLM Reasoning"."""

    provides = ("signals.demonstration",)
    fulfils = (Requirement.RESCUED_PROMPTS,)
    changes_sampling = True

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, hints, "hints")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        groups, half = own_groups(agent, problems), max(1, agent.config.group // 2)
        for rows in groups:
            round_.add(rows)
        pairs = zip(problems, groups, strict=True)
        failed = [(p, rows[0].turns[-1]) for p, rows in pairs if not any(map(right, rows))]
        rescued: list[Conversation] = []
        count = 0
        for texts in ([agent.task.hint(p, []) for p, _ in failed], None):
            shown = texts or [readable(wrong) for _, wrong in failed]
            tried = helped(agent, [(p, t) for (p, _), t in zip(failed, shown, strict=True)], half)
            solved = [[row for row in rows if right(row)] for rows in tried]
            rescued += [row for rows in solved for row in rows]
            count += sum(map(bool, solved))
            failed = [pair for pair, rows in zip(failed, solved, strict=True) if not rows]
        for row in bare(agent, rescued):
            round_.add([row], [{"aided": 1.0, "demonstration": 1.0}])
        self.acts = count / len(problems)
        return round_.rollouts("demonstration")


def readable(turn: str) -> str:
    """A turn as a text that a prompt can hold: without what is no character of the alphabet."""
    return turn.replace("\ufffd", "?")


class TextFeedback(LanguageMeasure):
    """Every failed answer to a task of one turn has feedback, what is right at its first wrong step
    (the task's hint there), and a second attempt with the feedback after the prompt. Second
    attempts stand in the round twice: as a group after that prompt, and after the bare prompt,
    where `signals.apart` is 1 and `signals.worth` is what they earned less the mean of the first
    attempts.

    `acts`: the share of second attempts whose worth is not 0. RLTF-SD of the paper on reinforcement
    learning from text feedback; there the second attempt also sees the first."""

    provides: ClassVar[tuple[str, ...]] = ("signals.apart", "signals.worth")
    fulfils = (Requirement.TEXT_FEEDBACK,)
    changes_sampling = True
    predicted = False  # whether the feedback's own tokens are to be learned

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        why = f"gives feedback on whole answers, and {config.task} answers every turn"
        require_one_turn(objective, config, why)
        check_help(objective, config, lambda t: corrects(t) and hints(t), "hints and corrections")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        groups = own_groups(agent, problems)
        worths: list[float] = []
        tried = [(i, row, self.feedback(row)) for i, rows in enumerate(groups) for row in rows]
        tried = [(i, row, text) for i, row, text in tried if text]
        second = helped(agent, [(row.problem, text) for _, row, text in tried], 1)
        for i, rows in enumerate(groups):
            round_.add(rows)
            mean = sum(map(earned, rows)) / len(rows)
            here = [(t[1:], again[0]) for t, again in zip(tried, second, strict=True) if t[0] == i]
            if not here:
                continue
            again = [row for _, row in here]
            worth = [earned(row) - mean for row in again]
            worths += worth
            round_.add(again, [{"aided": 1.0} for _ in again])
            numbers = [{"aided": 1.0, "apart": 1.0, "worth": w} for w in worth]
            round_.add(bare(agent, again), numbers)
            if self.predicted:
                own = [said_feedback(agent, row, text) for (row, text), _ in here]
                round_.add(own, [{"aided": 1.0, "apart": 1.0, "demonstration": 1.0} for _ in own])
        self.acts = sum(w != 0 for w in worths) / max(1, len(worths))
        names = ("demonstration",) if self.predicted else ()
        return round_.rollouts("apart", "worth", *names)

    def feedback(self, row: Conversation) -> str:
        """On an answer; "" for one that is right."""
        task = self.agent.task
        if right(row):
            return ""
        error = task.first_error(row.problem, row.turns)
        if error is None:
            return ""
        text: str = task.hint(row.problem, [row.turns[0][: error.start]])
        return text


class FeedbackTokens(TextFeedback):
    """As `TextFeedback`, and the feedback on every first attempt stands in the round as a text to
    be predicted after it: `signals.demonstration` is 1 there, its worth 0. RLTF-FM."""

    provides = ("signals.apart", "signals.worth", "signals.demonstration")
    fulfils = (Requirement.FEEDBACK_TOKENS,)
    predicted = True


def said_feedback(agent: Any, row: Conversation, text: str) -> Conversation:
    """The feedback as if it were a turn after the answer."""
    tokens = agent.codec.between(text)
    start = len(row.tokens)
    return Conversation(
        row.problem,
        [*row.tokens, *tokens],
        row.seed,
        [(start, start + len(tokens))],
        [text],
        [Reply(done=False)],
        [0.0] * len(tokens),
        [0.0] * len(tokens),
        [agent.updates] * len(tokens),
        cut=True,
        done=True,
        origins=[(start, start + len(tokens), "teacher")],
    )
