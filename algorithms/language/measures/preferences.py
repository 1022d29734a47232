"""Judgements that a policy makes of its own answers, and pairs of them."""

from collections.abc import Sequence
from typing import Any

import torch

from algorithms.language.measures.assembled import (
    Assembled,
    answers,
    check_help,
    drawn,
    own_groups,
    right,
    uniform,
)
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.measures.guided import readable
from algorithms.language.sampling.conversation import Conversation
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import JointTask, parts_of, text_task
from algorithms.language.tasks.base import Problem, TextTask
from algorithms.language.tasks.joint import APART, alone
from algorithms.language.tasks.judged import JudgedTask, again, final, inside, one, two
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics

SINGLE = 0.3  # probability that one answer alone is judged, where right and wrong ones are there


class JudgedAnswers(LanguageMeasure):
    """Beside the policy's answers a round has judgements that are made of them, as many groups of
    either kind as half of the problems at most. To every problem one: is this answer right, where
    all are or none is; where both are there, the same with probability 0.3, else which of two is.
    And to every problem with a wrong answer: what is right, after a wrong one, in whole for the
    first half of the problems, its last part alone for the others. A last part that is right by
    itself, after steps in another form, is not shown as wrong. They are of the part "judged-" of a
    joint task, and earn 1 where they are right.

    `acts`: the share of judgements with right and wrong answers. SPARK, by the authors' code."""

    provides = ()
    fulfils = (Requirement.JUDGED_ANSWERS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.rates: dict[str, float] = {}

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        if part_made_of(text_task(config.task), JudgedTask) is None:
            raise ConfigError(
                f"recipe {objective.name} judges its own answers; give a task with its judgements, "
                "such as addition+judged-addition"
            )

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        part = part_made_of(agent.task, JudgedTask)
        assert part is not None
        asked = [bare(agent.task, problem) for problem in problems]
        groups = own_groups(agent, asked)
        for rows in groups:
            round_.add(rows)
        most = max(1, len(problems) // 2)
        items = self.some([self.judging(rows) for rows in groups], most)
        half = len(groups) / 2
        items += self.some([self.reflecting(g, i < half) for i, g in enumerate(groups)], most)
        own = [placed(agent.task, item, part) for item in items]
        tried = answers(agent, agent.collector.open(own)) if own else []
        for rows in tried:
            round_.add(rows, [{"aided": 1.0} for _ in rows])
        self.note(items, tried)
        return round_.rollouts()

    def some(self, items: Sequence[Problem | None], most: int) -> list[Problem]:
        """At most so many of those that are there, drawn evenly."""
        there = [item for item in items if item is not None]
        while len(there) > most:
            there.pop(drawn(self.agent, len(there)))
        return there

    def judging(self, rows: Sequence[Conversation]) -> Problem | None:
        """A question about answers to one problem, of which some say something."""
        problem = alone(rows[0].problem)
        good = [a for row in rows if right(row) and (a := answer(row))]
        bad = self.wrong(rows)
        solved = sum(map(right, rows))
        if solved == len(rows):
            first = answer(rows[0])
            return one(problem, first, True) if first else None
        if solved == 0:
            return one(problem, self.pick(bad), False) if bad else None
        if uniform(self.agent) < SINGLE:
            side = drawn(self.agent, 2) == 1
            some = good if side else bad
            return one(problem, self.pick(some), side) if some else None
        if not good or not bad:
            return None
        return two(problem, self.pick(good), self.pick(bad), drawn(self.agent, 2) == 1)

    def reflecting(self, rows: Sequence[Conversation], whole: bool) -> Problem | None:
        """A problem once more, after a wrong answer to it."""
        texts = self.wrong(rows)
        if whole:
            texts = [readable(row.turns[-1]) for row in rows if not right(row)]
        return again(alone(rows[0].problem), self.pick(texts)) if texts else None

    def wrong(self, rows: Sequence[Conversation]) -> list[str]:
        """The last parts of wrong answers that say something and are wrong by themselves, too."""
        problem, part = alone(rows[0].problem), self.agent.task.part(rows[0].problem)
        texts = [answer(row) for row in rows if not right(row)]
        return [text for text in texts if text and not part.reply(problem, [text]).success]

    def pick(self, texts: Sequence[str]) -> str:
        return texts[drawn(self.agent, len(texts))]

    def note(self, items: Sequence[Problem], tried: Sequence[Sequence[Conversation]]) -> None:
        """What the round's judgements were like."""
        judged = [
            (item, [right(row) for row in rows])
            for item, rows in zip(items, tried, strict=True)
            if item.facts["kind"] != "again"
        ]
        self.acts = sum(0 < sum(r) < len(r) for _, r in judged) / max(1, len(judged))
        labels = [item.facts["label"] == "y" for item, _ in judged if item.facts["kind"] == "one"]
        every = [value for _, values in judged for value in values]
        self.rates = {
            "judging/accuracy": sum(every) / max(1, len(every)),
            "judging/right": sum(labels) / max(1, len(labels)),
        }

    def learn(self, rollouts: Rollouts, targets: dict[str, torch.Tensor]) -> Metrics:
        return {name: torch.tensor(value) for name, value in self.rates.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"rates": dict(self.rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rates = dict(state["rates"])


def part_made_of(task: TextTask, kind: type[TextTask]) -> int | None:
    """The place of the part of a joint task that is of this kind and made of another part."""
    names = [part.name for part in parts_of(task)]
    for k, part in enumerate(parts_of(task)):
        known: Any = part
        if len(names) > 1 and isinstance(part, kind) and known.once.name in names:
            return k
    return None


def bare(task: TextTask, problem: Problem) -> Problem:
    """The problem inside one that is about it, of the part that it is of; others as they are."""
    part: Any = task.part(problem) if isinstance(task, JointTask) else task
    if "inner" not in problem.facts:
        return problem
    names = [p.name for p in parts_of(task)]
    return placed(task, inside(alone(problem)), names.index(part.once.name))


def placed(task: TextTask, problem: Problem, part: int) -> Problem:
    """A problem of that part as one of the joint task."""
    known = vars(problem) | {"level": APART * part + problem.level}
    return Problem(**(known | {"task": parts_of(task)[part].name}))


def answer(row: Conversation) -> str:
    return readable(final(row.turns[-1]))


class PreferencePairs(LanguageMeasure):
    """A round is pairs of a right and a wrong answer to one problem, each a group of two, drawn
    anew as long as a problem has both; what is in no pair is not learned from. Pairs that the
    borders of minibatches would cut are left out. `signals.chosen`: 1 for right answers.
    `signals.shift`: delta, the running mean over rounds of 0.1 (log pi - log pi_reference) of whole
    answers in pairs.

    `acts`: pairs for each problem. MPO of InternVL3.5."""

    provides = ("signals.chosen", "signals.shift")
    fulfils = (Requirement.PREFERENCE_PAIRS,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.mean, self.count = 0.0, 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        pairs, rest = list[tuple[Conversation, Conversation]](), list[Conversation]()
        for rows in own_groups(agent, problems):
            good, bad = ([row for row in rows if right(row) == side] for side in (True, False))
            count = min(len(good), len(bad))
            pairs += zip(good[:count], bad[:count], strict=True)
            rest += [*good[count:], *bad[count:]]
        self.acts = len(pairs) / len(problems)
        minibatches = min(agent.config.minibatches, max(1, 2 * len(pairs)))
        kept = len(pairs) - len(pairs) % minibatches
        for pair in pairs[:kept]:
            round_.add(pair, [{"chosen": float(right(row)), "trained": 1.0} for row in pair])
        for row in [*rest, *(row for pair in pairs[kept:] for row in pair)]:
            round_.add([row])
        if not kept:  # one sequence, of which nothing is learned
            round_.numbers[0]["trained"] = 1.0
        return round_.rollouts("chosen", "trained")

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        here = (t.signals["trained"] > 0.5) & t.mask
        moved = t.log_probs["old"] - t.log_probs["reference"]
        pairs = here.any(1) & (t.groups["prompt"][:, 0].bincount()[t.groups["prompt"][:, 0]] > 1)
        if bool(pairs.any()):
            whole = 0.1 * torch.where(here, moved, torch.zeros_like(moved)).sum(1)[pairs]
            self.count += 1
            self.mean += (float(whole.mean()) - self.mean) / self.count
        return with_fields(rollouts, "signals", shift=torch.full_like(t.reward, self.mean))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.count = state["mean"], state["count"]
