"""Rejection: weights without gradients for steps that another policy (or engine) sampled."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import NonNegative, Positive, Probability
from mbrl.policy_gradient.axes.option import Option, ascending, one_of, shown
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.groups import BATCH, exp, first_steps, group, segment, sequence
from mbrl.types import Trajectories

LEVELS = ("token", "sequence", "geometric")


@dataclass(frozen=True)
class Rejection(Option):
    """(current log-probs [B, T], advantages [B, T], trajectories) to weights [B, T]."""

    @abstractmethod
    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class RatioRejection(Rejection):
    """Between the policy `numerator` (None: the current one) and `denominator`, at a `level`: of
    every step, or the product or the geometric mean over the sequence."""

    level: str = "token"
    numerator: str | None = "old"
    denominator: str = "behaviour"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.level, LEVELS, "level")

    def needs(self) -> tuple[str, ...]:
        names = (self.numerator, self.denominator)
        return tuple(f"log_probs.{name}" for name in names if name)

    def log_ratio(self, log_prob: Tensor, t: Trajectories) -> Tensor:
        above = log_prob.detach() if self.numerator is None else t.log_probs[self.numerator]
        log_ratio = log_difference(above, t.log_probs[self.denominator], t.mask)
        if self.level == "token":
            return log_ratio
        rows = sequence(t)
        return rows.sum(log_ratio) if self.level == "sequence" else rows.mean(log_ratio)

    def weight(self) -> str:
        """The ratio in words."""
        above = "sg(pi)" if self.numerator is None else f"pi_{self.numerator}"
        over = {"token": "", "sequence": "product of ", "geometric": "geometric mean of "}
        return f"{over[self.level]}{above} / pi_{self.denominator}"


@dataclass(frozen=True)
class TruncatedRatio(RatioRejection):
    """min(ratio, cap): truncated importance sampling. `normalised`: over their mean, of steps at
    level "token" and of sequences else, so that a batch weighs 1 on average."""

    cap: Positive = 2.0
    normalised: bool = False

    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        weight = exp(self.log_ratio(log_prob, t).clamp_max(math.log(self.cap)))
        if not self.normalised:
            return weight
        units = t.mask if self.level == "token" else first_steps(sequence(t))
        return weight / group(t, BATCH, units).mean(weight).clamp_min(1e-8)

    def formula(self) -> str:
        mean = ", over its mean" if self.normalised else ""
        return f"min({self.weight()}, {shown(self.cap)}){mean}"


@dataclass(frozen=True)
class MaskedRatio(RatioRejection):
    """The ratio where it lies in [low, high], else 0: masked importance sampling."""

    low: NonNegative = 0.0
    high: NonNegative = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.low, self.high)

    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        ratio = exp(self.log_ratio(log_prob, t))
        return torch.where((ratio >= self.low) & (ratio <= self.high), ratio, 0.0)

    def formula(self) -> str:
        return f"{self.weight()} if in [{shown(self.low)}, {shown(self.high)}] else 0"


@dataclass(frozen=True)
class RatioBand(RatioRejection):
    """1 where the ratio lies in [low, high], else 0. With level "geometric" a rejection of
    sequences."""

    low: NonNegative = 0.999
    high: NonNegative = 1.001

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.low, self.high)

    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        ratio = exp(self.log_ratio(log_prob, t))
        return ((ratio >= self.low) & (ratio <= self.high)).to(ratio.dtype)

    def formula(self) -> str:
        return f"1 if {self.weight()} in [{shown(self.low)}, {shown(self.high)}] else 0"


@dataclass(frozen=True)
class RatioVeto(RatioRejection):
    """0 for a sequence with any step whose ratio is below `least`."""

    least: Positive = 1e-4

    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        lowest = sequence(t).min(self.log_ratio(log_prob, t))
        return (lowest >= math.log(self.least)).to(log_prob.dtype)

    def formula(self) -> str:
        return f"0 if {self.weight()} < {shown(self.least)} at any step of the sequence else 1"


@dataclass(frozen=True)
class OffPolicySequenceMask(Rejection):
    """0 for a sequence with A < 0 whose log-probs fell by more than `delta` a step since `old`:
    DeepSeek-V3.2."""

    text: ClassVar[str] = "0 if A < 0 and mean (log pi_old - log pi) > {delta} else 1"

    delta: NonNegative = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old",)

    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        fell = sequence(t).mean(log_difference(t.log_probs["old"], log_prob.detach(), t.mask))
        return (~((advantage < 0) & (fell > self.delta))).to(log_prob.dtype)


@dataclass(frozen=True)
class LaterSegments(Rejection):
    """What the updates of all later segments of the sequence have changed since the data were
    drawn: from the last one on, the product so far times the geometric mean of the segment's ratios
    `numerator` over `denominator`, each held in [1 - `range`, 1 + `range`]. "SeeUPO: Sequence-Level
    Agentic-RL with Convergence Guarantees", arXiv 2602.06554, as in the authors' code."""

    text: ClassVar[str] = (
        "m = clip(m s) over later {segment}s, the last one first, s = clip(geometric mean of "
        "pi_{numerator} / pi_{denominator}), clips to 1 -+ {range}"
    )

    segment: str = "turn"
    numerator: str = "proximal"
    denominator: str = "old"
    range: Probability = 0.2

    def needs(self) -> tuple[str, ...]:
        names = (f"log_probs.{self.numerator}", f"log_probs.{self.denominator}")
        return (*names, f"segments.{self.segment}")

    def __call__(self, log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
        moved = log_difference(t.log_probs[self.numerator], t.log_probs[self.denominator], t.mask)
        ratio = self.held(exp(segment(t, self.segment).mean(moved)))
        number = torch.where(t.mask, t.segments[self.segment], -1)
        product, weight = torch.ones_like(moved[:, :1]), torch.ones_like(moved)
        # A compiled graph cannot ask which numbers there are.
        compiling = torch.compiler.is_compiling()
        known = range(number.shape[1]) if compiling else sorted(set(number[t.mask].tolist()))
        for k in reversed(known):
            here = number == k
            weight = torch.where(here, product, weight)
            own = torch.where(here, ratio, 0.0).amax(1, keepdim=True)
            there = here.any(1, keepdim=True)
            product = torch.where(there, self.held(product * own), product)
        return weight

    def held(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(1 - self.range, 1 + self.range)
