"""A second policy that learns beside the first: one that answers after it, one that hints."""

import copy
import math
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.language.learner import log_probs_and_entropy_at, trainable
from algorithms.language.measures.assembled import Assembled, answers, check_help, own_groups, right
from algorithms.language.measures.base import LanguageMeasure, require_task
from algorithms.language.measures.guided import helped, readable
from algorithms.language.measures.locate import scored
from algorithms.language.models.passes import passes, together
from algorithms.language.sampling.contexts import opening
from algorithms.language.sampling.conversation import Conversation, advance, earned
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem, TextTask
from algorithms.language.tasks.hinting import asked, leaks
from algorithms.language.tasks.judged import again, final
from mbrl.networks import adam, target_copy
from mbrl.policy_gradient import Recipe, estimate, loss
from mbrl.policy_gradient.axes.gate import Clip
from mbrl.policy_gradient.axes.regulariser import KL
from mbrl.policy_gradient.axes.reward import SequenceSignal
from mbrl.policy_gradient.recipe import Term
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields

EXCHANGE = 5  # rounds after which the two policies of CORY change roles; ours
HINTS = 4  # for a problem that the whole group failed, by HiLL's authors
RELIANCE = 0.3  # temperature of the weight of hints that right answers rely on, by its authors
REFUSED = -0.2  # reward of a hint that says nothing, or the answer


class SecondPolicy:
    """A copy of the agent's model as it begins, which is trained on its own conversations, one
    update a round with the policy that had them, by the agent's learning rate."""

    def __init__(self, agent: Any, recipe: Recipe) -> None:
        self.agent, self.recipe = agent, recipe
        self.model = copy.deepcopy(agent.model)
        self.optimiser = adam(trainable(self.model), agent.config.learning_rate)
        self.modules = {"second": self.model}
        self.first = None
        if "log_probs.reference" in recipe.needs:
            self.first = target_copy(self.model)
            self.modules["second_reference"] = self.first

    def begin(self) -> None:
        for module in self.modules.values():
            module.load_state_dict(self.agent.model.state_dict())

    def answers(self, starts: Sequence[Conversation], group: int) -> list[list[Conversation]]:
        """`group` ends of each of `starts`."""
        agent = self.agent
        if not starts:
            return []
        rows = agent.collector.copies(starts, [group] * len(starts))
        limits = agent.collector.limits()
        advance(self.model, agent.codec, agent.task, rows, limits, version=agent.updates)
        agent.tokens["sampled"] += sum(len(row.behaviour) for row in rows)
        return [rows[i : i + group] for i in range(0, len(rows), group)]

    def learn(self, groups: Sequence[Sequence[Conversation]], worths: Sequence[float]) -> None:
        """One update on what it said, worth these numbers, in the order of the groups' rows."""
        rows = [row for group in groups for row in group]
        if not rows:
            return
        owner = [i for i, group in enumerate(groups) for _ in group]
        rollouts = self.agent.collector.to_rollouts(rows, owner)
        like = rollouts.data.reward
        worth = torch.tensor(worths, dtype=like.dtype, device=like.device)
        log_prob = self.log_probs(self.model, rollouts)
        known = {"old": log_prob.detach()}
        if self.first is not None:
            with torch.no_grad():
                known["reference"] = self.log_probs(self.first, rollouts)
        rollouts = with_fields(with_fields(rollouts, "signals", team=worth), "log_probs", **known)
        value, _ = loss(self.recipe, log_prob, rollouts.data, estimate(self.recipe, rollouts.data))
        self.optimiser.zero_grad()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trainable(self.model), self.agent.config.clip_norm)
        if bool(torch.isfinite(norm)):
            self.optimiser.step()

    def log_probs(self, model: Any, rollouts: Rollouts) -> Tensor:
        """[B, T] of the tokens that were said."""
        c, mask = self.agent.config, rollouts.data.mask
        todo = passes(mask, c.rows_at_once)
        pieces = [
            log_probs_and_entropy_at(
                model, rollouts.tokens, mask, c.sampling.temperature, rollouts.kept, one
            )
            for one in todo
        ]
        return together(pieces, todo, mask.shape[1])[..., 0]


class Observer(LanguageMeasure):
    """Two policies that begin alike. The pioneer answers the problems of a round, a group each; the
    observer answers once more after every one of these, which stands after the prompt. Both learn
    from the sum of what the two answers of a pair earned, compared among the pairs about one
    problem. Every five rounds the policies change roles: what they are asked, not their weights.

    `acts`: the share of pairs of which just one answer is right. While the policy observes, none of
    its answers counts as its own success. CORY, "Coevolving with the Other You", arXiv
    2410.06101."""

    provides = ("signals.team",)
    fulfils = (Requirement.OBSERVER,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        objective = Recipe(
            "second",
            "The other policy's objective",
            terms=(Term(reward=SequenceSignal("team")),),
            regularisers=(KL(),),
        )
        self.second = SecondPolicy(agent, objective)
        self.modules = self.second.modules
        self.optimisers = {"second": self.second.optimiser}
        self.rounds = 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, one_turn, "answers of one turn")

    def begin(self) -> None:
        self.second.begin()

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        leads = self.rounds // EXCHANGE % 2 == 0
        self.rounds += 1
        starts, size = agent.collector.open(problems), agent.config.group
        first = answers(agent, starts, size) if leads else self.second.answers(starts, size)
        shown = [after(agent, row) for rows in first for row in rows]
        later = answers(agent, shown, 1) if not leads else self.second.answers(shown, 1)
        pairs = [row for rows in later for row in rows]
        second = [pairs[i : i + size] for i in range(0, len(pairs), size)]
        worths = [
            [earned(a) + earned(b) for a, b in zip(x, y, strict=True)]
            for x, y in zip(first, second, strict=True)
        ]
        own, other = (first, second) if leads else (second, first)
        for rows, worth in zip(own, worths, strict=True):
            round_.add(rows, [{"team": w, "aided": float(not leads)} for w in worth])
        self.second.learn(other, [w for worth in worths for w in worth])
        apart = [
            right(a) != right(b)
            for x, y in zip(first, second, strict=True)
            for a, b in zip(x, y, strict=True)
        ]
        self.acts = sum(apart) / len(apart)
        return round_.rollouts("team")

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


def one_turn(task: TextTask) -> bool:
    return task.max_turns == 1


def after(agent: Any, row: Conversation) -> Conversation:
    """The problem once more, after the end of an answer to it."""
    shown = again(row.problem, readable(final(row.turns[-1])))
    return Conversation(row.problem, agent.codec.opening(shown.prompt))


class Hinter(LanguageMeasure):
    """To every problem that the whole group failed a second policy, which begins like the first and
    sees a wrong answer and a demonstration, writes four hints. One that is empty, cut off or says
    the answer earns it -0.2; for every other the first policy answers as a group, p of it right,
    and the hint earns (1 - p^G - (1 - p)^G) e^(min(d, 0) / 0.3), 0 where p is 0 or 1: d is the mean
    over right answers of log pi without the hint less log pi with it, each a mean over tokens. The
    answers with the best hint, if it earned more than 0, are learned from, after the hint, in place
    of those without.

    `acts`: the share of failed problems to which a hint brought right and wrong answers. HiLL,
    "Learning to Hint for Reinforcement Learning", by the authors' code."""

    provides = ()
    fulfils = (Requirement.HINTER,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        objective = Recipe(
            "second",
            "The hinter's objective",
            terms=(Term(reward=SequenceSignal("team")),),
            gate=Clip(high=0.28),
        )
        self.second = SecondPolicy(agent, objective)
        self.modules = self.second.modules
        self.optimisers = {"second": self.second.optimiser}

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        task = text_task(config.task)
        require_task(
            config,
            one_turn,
            f"recipe {objective.name} hints at answers of one turn, and {task.name} has "
            f"{task.max_turns}; a task of one turn",
        )
        check_help(objective, config, lambda t: True, "")

    def begin(self) -> None:
        self.second.begin()

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        groups = own_groups(agent, problems)
        failed = [i for i, rows in enumerate(groups) if not any(map(right, rows))]
        shown = [agent.task.demonstration(problems[i], [], random.Random(0)) for i in failed]
        starts = []
        for i, text in zip(failed, shown, strict=True):
            question = asked(problems[i], readable(groups[i][0].turns[-1]), text)
            starts.append(Conversation(problems[i], agent.codec.opening(question.prompt)))
        hints = self.second.answers(starts, HINTS)
        best, worths = self.tried(hints, shown)
        self.second.learn(hints, worths)
        chosen = dict(zip(failed, best, strict=True))
        for i, rows in enumerate(groups):
            instead = chosen.get(i)
            round_.add(rows, [{"trained": float(instead is None)} for _ in rows])
            if instead is not None:
                round_.add(instead, [{"aided": 1.0, "trained": 1.0} for _ in instead])
        self.acts = sum(rows is not None for rows in best) / max(1, len(best))
        return round_.rollouts("trained")

    def tried(
        self, hints: Sequence[Sequence[Conversation]], shown: Sequence[str]
    ) -> tuple[list[list[Conversation] | None], list[float]]:
        """For every problem the answers with the best hint, None where none earned more than 0, and
        what all hints earned."""
        usable = [
            (row, text)
            for rows, text in zip(hints, shown, strict=True)
            for row in rows
            if sayable(row) and not leaks(row.turns[0], text)
        ]
        helped_ = helped(self.agent, [(row.problem, row.turns[0]) for row, _ in usable])
        by_row = {id(row): rows for (row, _), rows in zip(usable, helped_, strict=True)}
        earned_ = {key: self.reward(rows) for key, rows in by_row.items()}
        best: list[list[Conversation] | None] = []
        for rows in hints:
            known = [id(row) for row in rows if earned_.get(id(row), 0.0) > 0]
            best.append(by_row[max(known, key=earned_.__getitem__)] if known else None)
        return best, [earned_.get(id(row), REFUSED) for rows in hints for row in rows]

    def reward(self, rows: Sequence[Conversation]) -> float:
        """What a hint earns by the answers after it."""
        good = [row for row in rows if right(row)]
        agent, c = self.agent, self.agent.config
        if len(good) in (0, len(rows)):
            return 0.0
        pairs = [
            (opening(agent.codec, row.problem), row.tokens[slice(*row.spans[0])]) for row in good
        ]
        bare = scored(agent.model, pairs, c.sampling.temperature, agent.codec.pad, c.rows_at_once)
        apart = [
            float(without.mean()) - sum(row.behaviour) / len(row.behaviour)
            for without, row in zip(bare, good, strict=True)
        ]
        return hint_reward(len(good), len(rows), sum(apart) / len(apart))


def hint_reward(good: int, count: int, reliance: float) -> float:
    """Of a hint after which `good` of `count` answers are right, whose log-probs per token are by
    `reliance` higher without it."""
    p = good / count
    if p in (0.0, 1.0):
        return 0.0
    return (1 - p**count - (1 - p) ** count) * math.exp(min(reliance, 0.0) / RELIANCE)


def sayable(row: Conversation) -> bool:
    """Whether a hint is a text that a prompt can hold, and over."""
    return not row.cut and bool(row.turns[0]) and "\ufffd" not in row.turns[0]
