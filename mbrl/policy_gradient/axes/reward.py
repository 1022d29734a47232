"""Rewards: what is paid at every step, from what was measured."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, Finite, NonNegative, Positive
from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes.option import Option, shown
from mbrl.policy_gradient.groups import by_sign, first_steps, group, segment, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Reward(Option):
    """trajectories to rewards [B, T]."""

    @abstractmethod
    def __call__(self, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class TaskReward(Reward):
    """`reward` as it is."""

    text: ClassVar[str] = "the task's reward"

    def __call__(self, t: Trajectories) -> Tensor:
        return t.reward


@dataclass(frozen=True)
class StepSignal(Reward):
    """One of several rewards, or a reward that another part measured: `signals` by name."""

    text: ClassVar[str] = "{name}"

    name: str

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, t: Trajectories) -> Tensor:
        return t.signals[self.name]


@dataclass(frozen=True)
class SequenceSignal(Reward):
    """A number of the whole sequence (at each of its steps in `signals`), paid at its last step."""

    text: ClassVar[str] = "{name} of the sequence, at its last step"

    name: str

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, t: Trajectories) -> Tensor:
        return at_last(t.signals[self.name], t)


@dataclass(frozen=True)
class Mixture(Reward):
    """A weighted sum of rewards."""

    parts: tuple[tuple[Reward, float], ...]

    def needs(self) -> tuple[str, ...]:
        return tuple(need for part, _ in self.parts for need in part.needs())

    def __call__(self, t: Trajectories) -> Tensor:
        return torch.stack([weight * part(t) for part, weight in self.parts]).sum(0)

    def formula(self) -> str:
        return " + ".join(f"{shown(weight)} ({part.formula()})" for part, weight in self.parts)


@dataclass(frozen=True)
class ByOutcome(Reward):
    """`right` at the last step of a sequence that earned more than 0, `wrong` at that of others."""

    text: ClassVar[str] = (
        "{right} if the sequence earned more than 0 else {wrong}, at its last step"
    )

    right: Finite = 1.0
    wrong: Finite = 0.0
    verdict: ClassVar[bool] = True

    def __call__(self, t: Trajectories) -> Tensor:
        return at_last(by_sign(outcome(t), self.right, self.wrong), t)


@dataclass(frozen=True)
class IfPassed(Reward):
    """`inner` for sequences that earned at least `least`, nothing for others."""

    text: ClassVar[str] = "({inner}) if the sequence earned at least {least} else 0"

    inner: Reward
    least: NonNegative = 1.0
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return self.inner.needs()

    def __call__(self, t: Trajectories) -> Tensor:
        passed = outcome(t) >= self.least
        value = self.inner(t)
        return torch.where(passed, value, torch.zeros_like(value))


@dataclass(frozen=True)
class FlawPenalty(Reward):
    """1 for a right answer, -1 for a wrong one, and `penalty` less for a right one by flawed
    reasoning (`signals.flawed` above 1/2): "FAPO", arXiv 2510.22543."""

    text: ClassVar[str] = (
        "1 if right else -1, less {penalty} if right by flawed reasoning, at the last step"
    )

    penalty: Finite = 1.0
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("signals.flawed",)

    def __call__(self, t: Trajectories) -> Tensor:
        earned = outcome(t)
        flawed = (earned > 0) & (t.signals["flawed"] > 0.5)
        value = by_sign(earned, 1.0, -1.0) - self.penalty * flawed.to(earned.dtype)
        return at_last(value, t)


@dataclass(frozen=True)
class KLPenalised(Reward):
    """`reward` less `weight` (log old - log reference) at every step."""

    text: ClassVar[str] = "the task's reward - {weight} (log pi_old - log pi_reference)"

    weight: Finite = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", "log_probs.reference")

    def __call__(self, t: Trajectories) -> Tensor:
        return t.reward - self.weight * (t.log_probs["old"] - t.log_probs["reference"])


@dataclass(frozen=True)
class SoftOverlong(Reward):
    """`inner`, and at a sequence's last step a penalty that grows linearly over its last `buffer`
    steps before `longest`, from 0 to -`weight` at `longest` and beyond: "DAPO: An Open-Source LLM
    Reinforcement Learning System at Scale", arXiv 2503.14476, equation 13."""

    text: ClassVar[str] = (
        "{inner} - {weight} clip((length - ({longest} - {buffer})) / {buffer}, 0, 1) at the "
        "last step"
    )

    longest: Count
    buffer: Count
    inner: Reward = TaskReward()
    weight: Finite = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.buffer <= self.longest:
            raise ConfigError(
                f"buffer is {self.buffer}, it must be from 1 to longest, {self.longest} steps"
            )

    def needs(self) -> tuple[str, ...]:
        return self.inner.needs()

    def __call__(self, t: Trajectories) -> Tensor:
        length = sequence(t).size().to(t.reward.dtype)
        over = ((length - (self.longest - self.buffer)) / self.buffer).clamp(0, 1)
        return self.inner(t) + at_last(-self.weight * over, t)


@dataclass(frozen=True)
class Consistency(Reward):
    """outcome (1 + `weight` consistency) + `form` format, of the sequence's `signals.consistency`
    and `signals.format_reward`: "R1-Reward", arXiv 2505.02835."""

    text: ClassVar[str] = (
        "outcome (1 + {weight} consistency) + {form} format_reward, at the last step"
    )

    weight: Finite = 0.5
    form: Finite = 0.5

    def needs(self) -> tuple[str, ...]:
        return ("signals.consistency", "signals.format_reward")

    def __call__(self, t: Trajectories) -> Tensor:
        right = outcome(t) * (1 + self.weight * t.signals["consistency"])
        return at_last(right + self.form * t.signals["format_reward"], t)


@dataclass(frozen=True)
class RareEvents(Reward):
    """1 for right and -1 for wrong answers; `rare` times that for a right answer to a hard prompt
    (`signals.hard` above 1/2) and for a wrong answer to an easy one."""

    text: ClassVar[str] = (
        "1 if right else -1, times {rare} if right on a hard prompt or wrong on an easy one, at"
        " the last step"
    )

    rare: NonNegative = 2.0
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("signals.hard",)

    def __call__(self, t: Trajectories) -> Tensor:
        sign = by_sign(outcome(t), 1.0, -1.0)
        seldom = (sign > 0) == (t.signals["hard"] > 0.5)
        return at_last(torch.where(seldom, self.rare * sign, sign), t)


@dataclass(frozen=True)
class Affine(Reward):
    """`scale` times the whole reward of the sequence plus `shift`, at its last step: with 2 and -1
    right and wrong are 1 and -1."""

    text: ClassVar[str] = "{scale} outcome + ({shift}), at the last step"

    scale: Positive = 2.0
    shift: Finite = -1.0
    verdict: ClassVar[bool] = True

    def __call__(self, t: Trajectories) -> Tensor:
        return at_last(self.scale * outcome(t) + self.shift, t)


def outcome(t: Trajectories) -> Tensor:
    """[B, T]: the whole reward of the sequence, at each of its steps."""
    return sequence(t).sum(t.reward)


def at_last(value: Tensor, t: Trajectories) -> Tensor:
    """[B, T]: `value` at the last step of every sequence, 0 elsewhere."""
    at = torch.arange(t.mask.shape[1], device=t.mask.device).expand_as(t.mask)
    last = sequence(t).max(at.to(value.dtype))
    return torch.where(t.mask & (at == last), value, torch.zeros_like(value))


@dataclass(frozen=True)
class TurnGains(Reward):
    """Paid at the first step of every turn: what it added to `signals.<name>` (for instance to the
    probability of the right answer), and the outcome for the last turn."""

    text: ClassVar[str] = "{name} of the {segment}, or the outcome for the last {segment}"

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
    """`inner` summed over each turn, less the mean and over the deviation (of a sample, with
    `correction` 0 over n) of the turns in a group, paid at the turn's first step. With `nonzero`
    turns that earned nothing are left out of the statistics and stay 0. With `steps` every step has
    its share of the turn's sum, is counted, and is paid."""

    inner: Reward
    key: tuple[str, ...] = ("prompt",)
    segment: str = "turn"
    eps: Positive = 1e-6
    nonzero: bool = False
    correction: CountOrZero = 1
    steps: bool = False

    def needs(self) -> tuple[str, ...]:
        named = (
            f"segments.{name}" if name == self.segment else f"groups.{name}" for name in self.key
        )
        return (*self.inner.needs(), f"segments.{self.segment}", *named)

    def __call__(self, t: Trajectories) -> Tensor:
        parts = segment(t, self.segment)
        total = parts.sum(self.inner(t))
        units = first_steps(parts)
        if self.steps:
            total, units = total / parts.size().to(total.dtype), t.mask
        if self.nonzero:
            units = units & (total != 0)
        turns = group(t, self.key, units)
        z = (total - turns.mean(total)) / (turns.std(total, self.correction) + self.eps)
        return torch.where(units, z, torch.zeros_like(z))

    def formula(self) -> str:
        counted = " that earned something" if self.nonzero else ""
        what, over = self.inner.formula(), f"{self.segment}s"
        if self.steps:
            what, over = f"{what} of the {self.segment} / its length", "steps"
        divided = "" if self.correction == 1 else f" over n - {self.correction}"
        return (
            f"z-score of ({what}) over the {over} that share {shown(self.key)}{counted}, deviation"
            f"{divided} + {shown(self.eps)}"
        )


@dataclass(frozen=True)
class ProgressBonus(Reward):
    """Every turn's reward, from turn `first` on, plus `weight` times its gain over the turn before
    (none for turn 0), paid at the turn's first step. "Training Language Models to Self-Correct via
    Reinforcement Learning", arXiv 2409.12917."""

    text: ClassVar[str] = (
        "reward of the {segment} + {weight} (that less the reward of the {segment} before), "
        "from number {first} on"
    )

    weight: Finite = 10.0
    first: CountOrZero = 0
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
