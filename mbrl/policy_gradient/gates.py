"""Gates: from ratio and advantage to the gain of a step, clipped where the ratio has moved away.

A gain is to be raised; its gradient is the update. Ratios are compared as logarithms and
exponentiated last.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import by_sign, exp, sequence
from mbrl.policy_gradient.option import Option
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Gate(Option):
    """(log-ratios [B, T], current log-probs [B, T], advantages [B, T], trajectories) to gains
    [B, T]."""

    @abstractmethod
    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor: ...


@dataclass(frozen=True)
class LogLikelihood(Gate):
    """A log pi: REINFORCE, whatever the ratio is."""

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        return advantage * log_prob


@dataclass(frozen=True)
class Weighted(Gate):
    """r A, not clipped."""

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        return exp(log_ratio) * advantage


@dataclass(frozen=True)
class Clip(Gate):
    """min(r A, clip(r, 1 - low, 1 + high) A), "Proximal Policy Optimization Algorithms", arXiv
    1707.06347, equation 7.

    `dual`: for A < 0 no less than dual A ("Mastering Complex Control in MOBA Games with Deep
    Reinforcement Learning", arXiv 1912.09729). `cap`: ratios above it count as it for A < 0 too
    (INTELLECT-2, arXiv 2505.07291). `clamp`: log-ratios are cut to plus or minus it first.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    cap: float | None = None
    clamp: float | None = None

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        if self.clamp is not None:
            log_ratio = log_ratio.clamp(-self.clamp, self.clamp)
        if self.cap is not None:
            log_ratio = log_ratio.clamp_max(math.log(self.cap))
        gain = exp(held(log_ratio, advantage, *bounds(self.low, self.high))) * advantage
        if self.dual is not None:
            gain = torch.where(advantage < 0, gain.maximum(self.dual * advantage), gain)
        return gain


@dataclass(frozen=True)
class DetachedClip(Gate):
    """sg(clip(r, 1 - low, 1 + high)) A log pi: every step keeps a gradient. "MiniMax-M1: Scaling
    Test-Time Compute Efficiently with Lightning Attention", arXiv 2506.13585, equation 4. `low`
    None: no lower bound. For A < 0 the bounds are `negative`, if given."""

    low: float | None = None
    high: float = 5.0
    negative: tuple[float | None, float] | None = None

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        low, high = bounds(self.low, self.high)
        kept = log_ratio.detach().clamp(low, high)
        if self.negative is not None:
            low, high = bounds(*self.negative)
            kept = torch.where(advantage < 0, log_ratio.detach().clamp(low, high), kept)
        return exp(kept) * advantage * log_prob


@dataclass(frozen=True)
class GeometricClip(Gate):
    """The geometric mean over the sequence of ratios that are clipped by the sign of A, times A:
    "Geometric-Mean Policy Optimization", arXiv 2507.20673, equation 4. `width`: bounds of the
    log-ratio."""

    width: float = 0.4

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        kept = held(log_ratio, advantage, -self.width, self.width)
        return exp(sequence(t).mean(kept)) * advantage


@dataclass(frozen=True)
class SoftGate(Gate):
    """sigmoid(tau (r - 1)) 4 / tau A, tau by the sign of A: "Soft Adaptive Policy Optimization",
    arXiv 2511.20347. Its slope at r = 1 is A, and it never is 0."""

    positive: float = 1.0
    negative: float = 1.05

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        tau = by_sign(advantage, self.positive, self.negative)
        return torch.sigmoid(tau * (exp(log_ratio) - 1)) * 4 / tau * advantage


@dataclass(frozen=True)
class SmoothWeight(Gate):
    """sg(phi(W)) A log pi with phi(W) = e^lambda W^k e^(-lambda W), W the ratio (in VESPO the
    product over the sequence), k and lambda by the sign of A; phi(1) = 1."""

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        log_w = log_ratio.detach()
        up, down = (
            k * log_w + rate * (1 - exp(log_w)) for k, rate in (self.positive, self.negative)
        )
        return exp(torch.where(advantage > 0, up, down)) * advantage * log_prob


def held(log_ratio: Tensor, advantage: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The log-ratio, held between the logarithms `low` and `high` on the side where r A would gain
    beyond them: from above for A >= 0, from below for A < 0, so that r A is the smaller one."""
    return torch.where(advantage >= 0, log_ratio.clamp(max=high), log_ratio.clamp(min=low))


def bounds(low: float | None, high: float) -> tuple[float, float]:
    """The logarithms of 1 - `low` (None: no bound) and of 1 + `high`."""
    return (-math.inf if low is None or low >= 1 else math.log1p(-low)), math.log1p(high)
