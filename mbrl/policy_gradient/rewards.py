"""Rewards: what is paid at every step, from what was measured."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.policy_gradient.groups import by_sign, sequence
from mbrl.policy_gradient.option import Option
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Reward(Option):
    """trajectories to rewards [B, T]."""

    @abstractmethod
    def __call__(self, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Given(Reward):
    """`reward` as it is."""

    def __call__(self, t: Trajectories) -> Tensor:
        return t.reward


@dataclass(frozen=True)
class Signal(Reward):
    """One of several rewards, or a reward that another part measured: `signals` by name."""

    name: str

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, t: Trajectories) -> Tensor:
        return t.signals[self.name]


@dataclass(frozen=True)
class Whole(Reward):
    """A number of the whole sequence (at each of its steps in `signals`), paid at its last step."""

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


@dataclass(frozen=True)
class ByOutcome(Reward):
    """`right` at the last step of a sequence that earned more than 0, `wrong` at that of others."""

    right: float = 1.0
    wrong: float = 0.0
    verdict: ClassVar[bool] = True

    def __call__(self, t: Trajectories) -> Tensor:
        return at_last(by_sign(outcome(t), self.right, self.wrong), t)


@dataclass(frozen=True)
class Gated(Reward):
    """`inner` for sequences that earned at least `least`, nothing for others."""

    inner: Reward
    least: float = 1.0
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return self.inner.needs()

    def __call__(self, t: Trajectories) -> Tensor:
        passed = outcome(t) >= self.least
        value = self.inner(t)
        return torch.where(passed, value, torch.zeros_like(value))


@dataclass(frozen=True)
class Flawed(Reward):
    """1 for a right answer, -1 for a wrong one, and `penalty` less for a right one by flawed
    reasoning (`signals.flawed` above 1/2): "FAPO", arXiv 2510.22543."""

    penalty: float = 1.0
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

    weight: float = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", "log_probs.reference")

    def __call__(self, t: Trajectories) -> Tensor:
        return t.reward - self.weight * (t.log_probs["old"] - t.log_probs["reference"])


@dataclass(frozen=True)
class SoftOverlong(Reward):
    """`inner`, and at a sequence's last step a penalty that grows linearly over its last `buffer`
    steps before `longest`, from 0 to -`weight` at `longest` and beyond: "DAPO: An Open-Source LLM
    Reinforcement Learning System at Scale", arXiv 2503.14476, equation 13."""

    longest: int
    buffer: int
    inner: Reward = Given()
    weight: float = 1.0

    def __post_init__(self) -> None:
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

    weight: float = 0.5
    form: float = 0.5

    def needs(self) -> tuple[str, ...]:
        return ("signals.consistency", "signals.format_reward")

    def __call__(self, t: Trajectories) -> Tensor:
        right = outcome(t) * (1 + self.weight * t.signals["consistency"])
        return at_last(right + self.form * t.signals["format_reward"], t)


@dataclass(frozen=True)
class RareEvents(Reward):
    """1 for right and -1 for wrong answers; `rare` times that for a right answer to a hard prompt
    (`signals.hard` above 1/2) and for a wrong answer to an easy one."""

    rare: float = 2.0
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

    scale: float = 2.0
    shift: float = -1.0
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
