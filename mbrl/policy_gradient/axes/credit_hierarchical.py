"""Credit on three levels: what to do inside a subgoal, which subgoal, and when to change it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Probability
from mbrl.policy_gradient.axes.credit import Credit
from mbrl.policy_gradient.groups import BATCH, Group, first_steps, group, segment
from mbrl.policy_gradient.scans import between, following
from mbrl.types import Trajectories


@dataclass(frozen=True)
class HierarchicalGAE(Credit):
    """Turns (`segments.turn`) make up options (`segments.option`), one for each subgoal.

    Action steps get generalised advantages inside the option, `signals.value` per turn, which ends
    in the next option's `signals.value_high`. Subgoal steps (`signals.subgoal` above 1/2) of an
    option's first turn get those over options, an option's rewards discounted to its first turn.
    Switch steps (`signals.switch` above 1/2) get the return to the option's end less
    `signals.value_switch`. Values are read at the first step of the turn (of the option), and each
    kind is normalised over the turns that have it. The result is an advantage: a term with it takes
    `Zero` and `One`. "HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment
    for Large Language Model Agents".
    """

    text: ClassVar[str] = (
        "actions: GAE({gamma}, {turn_lambda}) over turns inside an option; subgoals: "
        "GAE({gamma}, {option_lambda}) over options; switches: return with discount {gamma} to "
        "the option's end - V_switch"
    )

    gamma: Probability = 1.0
    turn_lambda: Probability = 1.0
    option_lambda: Probability = 0.95
    bootstrap_truncated: bool = True
    normalise: bool = True

    def needs(self) -> tuple[str, ...]:
        names = ("value", "value_high", "value_switch", "subgoal", "switch")
        return (*(f"signals.{name}" for name in names), "segments.turn", "segments.option")

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        turns, options = segment(t, "turn"), segment(t, "option")
        starts, heads = first_steps(turns), first_steps(options)
        subgoal, switch = t.signals["subgoal"] > 0.5, t.signals["switch"] > 0.5
        low = turns.sum(torch.where(starts, self.low(reward, t), torch.zeros_like(reward)))
        high = options.sum(torch.where(heads, self.high(reward, t), torch.zeros_like(reward)))
        leave = turns.sum(torch.where(starts, self.leave(reward, t), torch.zeros_like(reward)))
        opening = turns.sum(heads.to(reward.dtype)) > 0
        total = torch.zeros_like(reward)
        for value, steps in (
            (low, ~subgoal & ~switch),
            (high, subgoal & opening),
            (leave, switch),
        ):
            steps = steps & t.mask
            if self.normalise:
                has = group(t, BATCH, first_steps(Group(turns.ids, steps)))
                value = (value - has.mean(value)) / (has.std(value, correction=0) + 1e-8)
            total = total + torch.where(steps, value, torch.zeros_like(value))
        return total

    def low(self, reward: Tensor, t: Trajectories) -> Tensor:
        turns = segment(t, "turn")
        starts, value = first_steps(turns), t.signals["value"]
        heads = first_steps(segment(t, "option"))
        goes_on = alive(turns, t)
        last, new = self.after(starts, heads)
        after = torch.where(
            new, following(t.signals["value_high"], heads), following(value, starts)
        )
        after = torch.where(last, self.truncate(value, turns, t), after)
        delta = turns.sum(reward) + self.gamma * goes_on * after - value
        inside = (~last & ~new).to(reward.dtype)
        return between(delta, self.gamma * self.turn_lambda * goes_on * inside, starts)

    def high(self, reward: Tensor, t: Trajectories) -> Tensor:
        options = segment(t, "option")
        heads, value = first_steps(options), t.signals["value_high"]
        gained, left = self.rest(reward, t)
        goes_on, discount = alive(options, t), self.gamma**left
        target = gained + discount * goes_on * self.beyond(t)
        more = following(torch.ones_like(reward), heads)
        return between(target - value, discount * self.option_lambda * goes_on * more, heads)

    def leave(self, reward: Tensor, t: Trajectories) -> Tensor:
        options = segment(t, "option")
        heads = first_steps(options)
        gained, left = self.rest(reward, t)
        final = alive(options, t) * self.beyond(t)
        final = options.sum(torch.where(heads, final, torch.zeros_like(final)))
        return gained + self.gamma**left * final - t.signals["value_switch"]

    def rest(self, reward: Tensor, t: Trajectories) -> tuple[Tensor, Tensor]:
        """At the first step of every turn: discounted rewards, and turns, to the option's end."""
        turns = segment(t, "turn")
        starts, heads = first_steps(turns), first_steps(segment(t, "option"))
        last, new = self.after(starts, heads)
        inside = (~last & ~new).to(reward.dtype)
        gained = between(turns.sum(reward), self.gamma * inside, starts)
        return gained, between(torch.ones_like(reward), inside, starts)

    def beyond(self, t: Trajectories) -> Tensor:
        """At an option's first step: the value of the next option, or of a truncated end."""
        options, value = segment(t, "option"), t.signals["value_high"]
        heads = first_steps(options)
        more = following(torch.ones_like(value), heads) > 0
        return torch.where(more, following(value, heads), self.truncate(value, options, t))

    def after(self, starts: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Whether no turn comes after, and whether the next one opens an option."""
        ones = torch.ones(starts.shape, dtype=torch.get_default_dtype(), device=starts.device)
        last = following(ones, starts) == 0
        return last, following(heads.to(ones.dtype), starts) > 0

    def truncate(self, value: Tensor, parts: Group, t: Trajectories) -> Tensor:
        """What stands for the value after a last turn: its own one if it was truncated."""
        truncated = parts.sum(t.truncated.to(value.dtype)) > 0
        return torch.where(truncated & self.bootstrap_truncated, value, torch.zeros_like(value))

    def formula(self) -> str:
        cut = "V" if self.bootstrap_truncated else "0"
        z = "; each kind z-scored over its turns" if self.normalise else ""
        return f"{super().formula()}; after a cut {cut}{z}"


def alive(parts: Group, t: Trajectories) -> Tensor:
    """0 for parts in which the episode ended."""
    ended = parts.sum(t.terminated.to(torch.get_default_dtype())) > 0
    return (~ended).to(t.reward.dtype)
