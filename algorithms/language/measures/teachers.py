"""Teachers at the policy's own steps: an expert, an averaged copy that is told more, the policy
itself after a hint; and how deep conversations are that they teach in."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.language.learner import put, state_at
from algorithms.language.measures.assembled import Assembled, answers, check_help, hints
from algorithms.language.measures.base import LanguageMeasure, require_task
from algorithms.language.sampling.contexts import distributions, log_probs, opening
from algorithms.language.sampling.conversation import GenerationLimits, advance
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.networks import polyak_update, target_copy
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.distillation import forward_kl, reverse_kl
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics

KEEP = 0.999  # of the averaged teacher's weights at every update
CLEAR = 1e-3  # divergence from which a teacher says anything
DEPTH_EVERY, DEPTH_STEP = 5, 1  # rounds of a depth, and turns by which it grows


def expert_model(agent: Any) -> Any:
    """The model in the checkpoint that the setting `expert` names, as a constant. Raises
    `ConfigError` if it is another model than the agent's."""
    taught = copy.deepcopy(agent.model)
    put(taught, state_at(agent.config.expert, agent.config.model)["modules"]["model"])
    return target_copy(taught)


def check_expert(objective: Recipe, config: Any) -> None:
    """Raises `ConfigError` without the setting `expert`."""
    if config.expert is None:
        raise ConfigError(
            f"recipe {objective.name} needs an expert; give `expert`, the checkpoint of a "
            "learner with a model of the same shape, such as one of `imitation`"
        )


def check_prompts(objective: Recipe, config: Any) -> None:
    """Raises `ConfigError` for other words around prompts than a teacher sees."""
    if config.templates > 1:
        raise ConfigError(
            f"templates is {config.templates}: the teacher of recipe {objective.name} sees prompts "
            "without words around them; set it to 1"
        )


def beside(
    agent: Any, teacher: Any, rollouts: Rollouts, openings: Sequence[Sequence[int]]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The log-probs [B, T, V] of `teacher` after `openings`, and both divergences [B, T] of the
    policy, after the bare ones, from it; 0 outside the mask."""
    c, bare = agent.config, [opening(agent.codec, p) for p in rollouts.problems]
    log_q, log_p = (
        distributions(model, rollouts, agent.codec, texts, c.sampling.temperature, c.rows_at_once)
        for model, texts in ((teacher, openings), (agent.model, bare))
    )
    return log_q, {"reverse_kl": reverse_kl(log_p, log_q), "forward_kl": forward_kl(log_p, log_q)}


def clear(divergence: Tensor, where: Tensor) -> float:
    """The mean divergence `where` there is one, 0 where the teacher says nothing."""
    mean = float(divergence[where].mean()) if bool(where.any()) else 0.0
    return mean if mean > CLEAR else 0.0


class ExpertDistribution(LanguageMeasure):
    """`signals.reverse_kl` and `signals.forward_kl` of every step: divergences from the expert that
    the setting `expert` names. In an update they are the current policy's, with gradients. Costs
    two passes over the round and holds the distributions.

    `acts`: the mean reverse divergence, 0 below 0.001."""

    provides = ("signals.reverse_kl", "signals.forward_kl")
    fulfils = (Requirement.EXPERT_DISTRIBUTION,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, lambda task: True, "")
        check_prompts(objective, config)
        check_expert(objective, config)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.model = expert_model(agent)
        self.modules = {"expert": self.model}
        self.teacher: Tensor | None = None

    def measure(self, rollouts: Rollouts) -> Rollouts:
        texts = [opening(self.agent.codec, p) for p in rollouts.problems]
        self.teacher, signals = beside(self.agent, self.model, rollouts, texts)
        self.acts = clear(signals["reverse_kl"], rollouts.data.mask)
        return with_fields(rollouts, "signals", **signals)

    def targets(self, rollouts: Rollouts) -> dict[str, Tensor]:
        assert self.teacher is not None
        return {"teacher": self.teacher}


class InformedTeacher(LanguageMeasure):
    """`signals.reverse_kl` and `signals.forward_kl`: divergences from an average of the policy's
    weights over its updates (of which 0.999 stays each time), which is told the task's hint after
    the prompt. `signals.near`: 1 in the first half of the tokens that a turn may have, else 0.

    `acts`: the mean reverse divergence at these, 0 below 0.001. TT-OPD of "Healthcare AI GYM",
    whose teacher is told the outcome. Costs two passes over the round."""

    provides = ("signals.reverse_kl", "signals.forward_kl", "signals.near")
    fulfils = (Requirement.INFORMED_TEACHER,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, hints, "hints")
        check_prompts(objective, config)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.model = target_copy(agent.model)
        self.modules = {"averaged": self.model}
        self.teacher: Tensor | None = None

    def begin(self) -> None:
        self.model.load_state_dict(self.agent.model.state_dict())

    def measure(self, rollouts: Rollouts) -> Rollouts:
        agent, t = self.agent, rollouts.data
        notes = [agent.task.hint(problem, []) for problem in rollouts.problems]
        pairs = zip(rollouts.problems, notes, strict=True)
        texts = [opening(agent.codec, problem, note) for problem, note in pairs]
        self.teacher, signals = beside(agent, self.model, rollouts, texts)
        first = max(1, agent.collector.limits().limit(agent.task) // 2)
        near = (places_in_turns(rollouts) < first) & t.mask
        self.acts = clear(signals["reverse_kl"], near)
        return with_fields(rollouts, "signals", near=near.to(t.reward), **signals)

    def targets(self, rollouts: Rollouts) -> dict[str, Tensor]:
        assert self.teacher is not None
        return {"teacher": self.teacher}

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        polyak_update(self.model, self.agent.model, 1 - KEEP)
        return {}


def places_in_turns(rollouts: Rollouts) -> Tensor:
    """[B, T]: how many steps of the mask come before this one in its turn."""
    t = rollouts.data
    count = t.mask.cumsum(1) - t.mask.long()
    turn = t.segments["turn"]
    before = torch.where(t.mask, count, t.mask.shape[1])
    first = torch.full_like(before, t.mask.shape[1]).scatter_reduce(1, turn, before, "amin")
    return count - first.gather(1, turn)


class HindsightTeacher(LanguageMeasure):
    """`log_probs.teacher`: those that the policy itself, before the round's updates, gives the
    steps of a failed conversation when the task's hint stands after the prompt; of others the old
    ones.

    `acts`: the mean absolute difference of both at failed conversations. OpenClaw-RL, arXiv
    2603.10165, where a judge writes the hint when it has seen what a turn led to."""

    provides = ("log_probs.teacher",)
    fulfils = (Requirement.HINDSIGHT_TEACHER,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_help(objective, config, hints, "hints")
        check_prompts(objective, config)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        agent, c = self.agent, self.agent.config
        texts = [
            "" if row[-1].success else agent.task.hint(problem, [])
            for problem, row in zip(rollouts.problems, rollouts.replies, strict=True)
        ]
        openings = [
            opening(agent.codec, problem, text)
            for problem, text in zip(rollouts.problems, texts, strict=True)
        ]
        old, mask = rollouts.data.log_probs["old"], rollouts.data.mask
        told_more = torch.tensor([bool(text) for text in texts], device=mask.device)[:, None]
        after = log_probs(
            agent.model, rollouts, agent.codec, openings, c.sampling.temperature, c.rows_at_once
        )
        teacher = torch.where(told_more, after, old)
        here = mask & told_more
        moved = (teacher - old)[here].abs()
        self.acts = float(moved.mean()) if bool(here.any()) else 0.0
        return with_fields(rollouts, "log_probs", teacher=teacher)


class GrowingDepth(LanguageMeasure):
    """Conversations break off after k turns, k one in the first five rounds and one more every five
    rounds, up to the task's.

    `acts`: the share that broke off. TCOD, forward: "Exploring Temporal Curriculum in On-Policy
    Distillation for Multi-turn Autonomous Agents"."""

    provides = ()
    fulfils = (Requirement.GROWING_DEPTH,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.rounds = 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_turns(objective, config)

    def depth(self) -> int:
        """Turns of this round; the next call is of the next round."""
        self.rounds += 1
        grown = 1 + (self.rounds - 1) // DEPTH_EVERY * DEPTH_STEP
        return min(grown, int(self.agent.task.max_turns))

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        size, usual = agent.config.group, agent.collector.limits()
        limits = GenerationLimits(usual.sampling, usual.turn_tokens, self.depth())
        rows = agent.collector.copies(agent.collector.open(problems), [size] * len(problems))
        agent.collector.advance(rows, limits)
        for i in range(0, len(rows), size):
            round_.add(rows[i : i + size])
        self.acts = sum(not row.replies[-1].done for row in rows) / len(rows)
        return round_.rollouts()

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class TeacherFirst(GrowingDepth):
    """The expert has one conversation about every problem; a group goes on from it where k turns of
    it are left, or begins with the prompt where it has no more than k, k as in `GrowingDepth`. The
    expert's turns are read, not trained on, and count as sampled tokens.

    `acts`: the share of problems that the expert begins. TCOD, backward."""

    provides = ()
    fulfils = (Requirement.TEACHER_FIRST,)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        check_turns(objective, config)
        check_expert(objective, config)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_, depth = self.agent, Assembled(self.agent), self.depth()
        (expert,) = (part.model for part in agent.measures if isinstance(part, ExpertDistribution))
        starts = agent.collector.open(problems)
        shown = agent.collector.copies(starts, [1] * len(starts))
        advance(expert, agent.codec, agent.task, shown, agent.collector.limits())
        agent.tokens["sampled"] += sum(len(row.behaviour) for row in shown)
        begun = [len(row.turns) - depth for row in shown]
        starts = [
            row.up_to(count) if count > 0 else start
            for start, row, count in zip(starts, shown, begun, strict=True)
        ]
        for rows, count in zip(answers(agent, starts), begun, strict=True):
            round_.add(rows, [{"aided": float(count > 0)} for _ in rows])
        self.acts = sum(count > 0 for count in begun) / len(begun)
        return round_.rollouts()


def check_turns(objective: Recipe, config: Any) -> None:
    """Raises `ConfigError` for a task of one turn."""
    require_task(
        config,
        lambda task: task.max_turns > 1,
        f"recipe {objective.name} is for conversations of several turns, and {config.task} has one;"
        " a task that has more",
    )
