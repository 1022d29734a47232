"""Which subgoal a turn is for, and a critic with a head for each level of the choice."""

from typing import Any

import torch
from torch import Tensor

from algorithms.language.measures.base import require_task
from algorithms.language.measures.heads import Learned, over_turns, read, turn_starts
from algorithms.language.measures.locate import lines, spans
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import TextTask
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.axes.credit_hierarchical import HierarchicalGAE
from mbrl.policy_gradient.groups import first_steps, segment
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import with_fields
from mbrl.training import Metrics


class Subgoals(Learned):
    """`signals.switch` and `signals.subgoal`: 1 at the steps that say whether the subgoal changes,
    and at those that name it, by what the task reads in a turn; `segments.option`: turns of one
    subgoal. `signals.value`, alike at all steps of a turn, is what the state is worth once its
    subgoal is said (read before the first other step; of a turn without one, before its first
    step), `signals.value_high` and `signals.value_switch` what it is worth before anything is said:
    to the end, and to the end of the option. Three linear heads on a copy of the model, fitted to
    the targets of the recipe's credit: every turn's, every option's first turn's, every turn's.

    "HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment for Large Language
    Model Agents", as in the authors' code."""

    label, count = "subgoals", 3
    provides = (
        "signals.value",
        "signals.value_high",
        "signals.value_switch",
        "signals.subgoal",
        "signals.switch",
        "segments.option",
    )
    fulfils = (Requirement.THREE_HEADED_CRITIC, Requirement.SUBGOAL_TOKENS)

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_task(
            config,
            plans,
            f"recipe {objective.name} reads which subgoal a turn is for, which turns of "
            f"{config.task} do not say; a task whose turns do",
        )

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t, now = rollouts.data, read(self.heads, rollouts, self.agent.config)[:, :-1]
        switch, subgoal, option = self.plans(rollouts)
        rollouts = with_fields(rollouts, "segments", option=option)
        rollouts = with_fields(rollouts, "signals", switch=switch, subgoal=subgoal)
        starts, acts = turn_starts(t), action_starts(rollouts)
        return with_fields(
            rollouts,
            "signals",
            value=over_turns(now[..., 0], acts, t),
            value_high=over_turns(now[..., 1], starts, t),
            value_switch=over_turns(now[..., 2], starts, t),
        )

    def plans(self, rollouts: Rollouts) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T] each: 1 at switch steps, 1 at subgoal steps, ids of options."""
        switch = torch.zeros(rollouts.data.mask.shape, dtype=torch.float64)
        subgoal, option = torch.zeros_like(switch), torch.zeros_like(switch, dtype=torch.int64)
        decode = self.agent.codec.decode
        for i, (places, tokens) in enumerate(zip(spans(rollouts), lines(rollouts), strict=True)):
            current = -1
            for k, (start, stop) in enumerate(places):
                plan = self.agent.task.plan(rollouts.turns[i][: k + 1])
                current += plan.new
                option[i, start - 1 :] = max(current, 0)
                before = 0
                for at in range(start, stop):
                    after = len(decode(tokens[start : at + 1]))
                    switch[i, at - 1] = before < plan.switch[1] and after > plan.switch[0]
                    subgoal[i, at - 1] = before < plan.subgoal[1] and after > plan.subgoal[0]
                    before = after
        like = rollouts.data.reward
        return switch.to(like), subgoal.to(like), option.to(like.device)

    def targets(self, rollouts: Rollouts) -> dict[str, Tensor]:
        t = rollouts.data
        credit, reward = next(
            (term.credit, term.reward(t))
            for term in self.agent.recipe.terms
            if isinstance(term.credit, HierarchicalGAE)
        )
        starts, heads = turn_starts(t), first_steps(segment(t, "option"))
        turns, options, switches = (
            torch.where(where, of(reward, t) + t.signals[name], torch.zeros_like(reward))
            for of, name, where in (
                (credit.low, "value", starts),
                (credit.high, "value_high", heads),
                (credit.leave, "value_switch", starts),
            )
        )
        return {"turns": over_turns(turns, starts, t), "options": options, "switches": switches}

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        t = rollouts.data
        where = (action_starts(rollouts), first_steps(segment(t, "option")), turn_starts(t))
        wanted = (targets["turns"], targets["options"], targets["switches"])

        def squared(values: Tensor, rows: Tensor) -> Tensor:
            total = values.new_zeros(())
            for i, (steps, target) in enumerate(zip(where, wanted, strict=True)):
                error = torch.where(steps[rows], values[:, :-1, i] - target[rows], 0.0)
                total = total + error.square().sum() / steps.sum().clamp_min(1)
            return total

        return self.fitted(rollouts, squared)


def action_starts(rollouts: Rollouts) -> Tensor:
    """[B, T] bool: of every turn the first step that is neither switch nor subgoal; its first step
    if there is none."""
    t = rollouts.data
    planned = (t.signals["switch"] > 0.5) | (t.signals["subgoal"] > 0.5)
    starts, others = turn_starts(t), t.mask & ~planned
    count = others.cumsum(1).to(t.reward.dtype)
    before = over_turns(count - others.to(count), starts, t)
    first = others & (count - before == 1)
    some = segment(t, "turn").sum(first.to(count)) > 0
    return torch.where(some, first, starts) & t.mask


def plans(task: TextTask) -> bool:
    return type(task).plan is not TextTask.plan
