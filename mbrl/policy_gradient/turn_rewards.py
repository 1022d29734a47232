"""Rewards of turns: from what every turn gained, or gained over the turn before."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.credit import previous
from mbrl.policy_gradient.groups import first_steps, group, segment, sequence
from mbrl.policy_gradient.rewards import Reward, outcome
from mbrl.types import Trajectories


@dataclass(frozen=True)
class TurnGains(Reward):
    """Paid at the first step of every turn: what it added to `signals.<name>` (for instance to the
    probability of the right answer), and the outcome for the last turn."""

    name: str = "information_gain"
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}", f"segments.{self.segment}")

    def __call__(self, t: Trajectories) -> Tensor:
        parts, ids = segment(t, self.segment), t.segments[self.segment]
        gain = parts.sum(t.signals[self.name])
        last = ids == sequence(t).max(ids.to(gain.dtype))
        value = torch.where(last, outcome(t), gain)
        return torch.where(first_steps(parts), value, torch.zeros_like(value))


@dataclass(frozen=True)
class Standardised(Reward):
    """`inner` summed over each turn, less the mean and over the sample deviation of the turns in a
    group, paid at the turn's first step. With `nonzero` turns that earned nothing are left out of
    the statistics and stay 0."""

    inner: Reward
    key: tuple[str, ...] = ("prompt",)
    segment: str = "turn"
    eps: float = 1e-6
    nonzero: bool = False

    def needs(self) -> tuple[str, ...]:
        named = (
            f"segments.{name}" if name == self.segment else f"groups.{name}" for name in self.key
        )
        return (*self.inner.needs(), f"segments.{self.segment}", *named)

    def __call__(self, t: Trajectories) -> Tensor:
        parts = segment(t, self.segment)
        total = parts.sum(self.inner(t))
        units = first_steps(parts)
        if self.nonzero:
            units = units & (total != 0)
        turns = group(t, self.key, units)
        z = (total - turns.mean(total)) / (turns.std(total) + self.eps)
        return torch.where(units, z, torch.zeros_like(z))


@dataclass(frozen=True)
class ProgressBonus(Reward):
    """Every turn's reward, from turn `first` on, plus `weight` times its gain over the turn before
    (none for turn 0), paid at the turn's first step. "Training Language Models to Self-Correct via
    Reinforcement Learning", arXiv 2409.12917."""

    weight: float = 10.0
    first: int = 0
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def __call__(self, t: Trajectories) -> Tensor:
        parts, ids = segment(t, self.segment), t.segments[self.segment]
        earned = parts.sum(t.reward)
        # Turns are counted by their number: a turn without steps of its own earned nothing.
        by_turn = earned.new_zeros(earned.shape).scatter_add(
            1, ids, torch.where(t.mask, t.reward, torch.zeros_like(t.reward))
        )
        before = by_turn.gather(1, (ids - 1).clamp_min(0))
        gain = torch.where(ids > 0, earned - before, torch.zeros_like(earned))
        value = torch.where(ids >= self.first, earned + self.weight * gain, torch.zeros_like(gain))
        return torch.where(first_steps(parts), value, torch.zeros_like(value))


@dataclass(frozen=True)
class PotentialGain(Reward):
    """What every turn added to its `potential`, paid at its first step; before the first turn it is
    0."""

    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("signals.accuracy", "signals.confidence", f"segments.{self.segment}")

    def __call__(self, t: Trajectories) -> Tensor:
        starts = first_steps(segment(t, self.segment))
        here = potential(t.signals["accuracy"], t.signals["confidence"])
        before = previous(here, starts)
        return torch.where(starts, here - before, torch.zeros_like(here))


def potential(accuracy: Tensor, confidence: Tensor) -> Tensor:
    """1.5 a c + 0.5 a - c: 1 for a sure right answer, -1 for a sure wrong one. "Step Potential
    Advantage Estimation", arXiv 2601.03823."""
    return 1.5 * accuracy * confidence + 0.5 * accuracy - confidence
