"""Gates: from ratio and advantage to the gain of a step, clipped where the ratio has moved away.

A gain is to be raised; its gradient is the update. Ratios are compared as logarithms and
exponentiated last.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from mbrl.config import Finite, NonNegative, Positive, Probability, Range
from mbrl.policy_gradient.axes.option import Option, one_of, shown
from mbrl.policy_gradient.axes.ratio import GeometricRatio
from mbrl.policy_gradient.groups import BATCH, by_sign, exp, first_steps, group, sequence
from mbrl.types import Trajectories

UpperBound = Annotated[float, Range(float, "[0, inf]")]  # inf: none


WHOLE = GeometricRatio()  # made once: checks of settings do not compile


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

    text: ClassVar[str] = "A log pi"

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        return advantage * log_prob


@dataclass(frozen=True)
class Weighted(Gate):
    """r A, not clipped."""

    text: ClassVar[str] = "rho A"

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

    low: NonNegative = 0.2
    high: UpperBound = 0.2
    dual: Positive | None = None
    cap: Positive | None = None
    clamp: Positive | None = None

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

    def formula(self) -> str:
        rho, low, high = "rho", shown(self.low), shown(self.high)
        if self.clamp is not None:
            rho = f"e^clip(log rho, -{shown(self.clamp)}, {shown(self.clamp)})"
        if self.cap is not None:
            rho = f"min({rho}, {shown(self.cap)})"
        gain = f"min({rho} A, clip({rho}, 1 - {low}, 1 + {high}) A)"
        return gain if self.dual is None else f"{gain}, at least {shown(self.dual)} A if A < 0"


@dataclass(frozen=True)
class DetachedClip(Gate):
    """sg(clip(r, 1 - low, 1 + high)) A log pi: every step keeps a gradient. "MiniMax-M1: Scaling
    Test-Time Compute Efficiently with Lightning Attention", arXiv 2506.13585, equation 4. `low`
    None: no lower bound. For A < 0 the bounds are `negative`, if given."""

    low: NonNegative | None = None
    high: UpperBound = 5.0
    negative: tuple[Finite | None, Finite] | None = None

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        low, high = bounds(self.low, self.high)
        kept = log_ratio.detach().clamp(low, high)
        if self.negative is not None:
            low, high = bounds(*self.negative)
            kept = torch.where(advantage < 0, log_ratio.detach().clamp(low, high), kept)
        return exp(kept) * advantage * log_prob

    def formula(self) -> str:
        gain = f"sg(clip(rho, {ends(self.low, self.high)})) A log pi"
        if self.negative is None:
            return gain
        return f"{gain}, for A < 0 in ({ends(*self.negative)})"


@dataclass(frozen=True)
class GeometricClip(Gate):
    """The geometric mean over the sequence of ratios that are clipped by the sign of A, times A:
    "Geometric-Mean Policy Optimization", arXiv 2507.20673, equation 4. `width`: bounds of the
    log-ratio."""

    text: ClassVar[str] = (
        "A e^(mean of log rho over the sequence, each held to {width} on the side where rho A "
        "gains)"
    )

    width: NonNegative = 0.4

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        kept = held(log_ratio, advantage, -self.width, self.width)
        return exp(sequence(t).mean(kept)) * advantage


@dataclass(frozen=True)
class SoftGate(Gate):
    """sigmoid(tau (r - 1)) 4 / tau A, tau by the sign of A: "Soft Adaptive Policy Optimization",
    arXiv 2511.20347. Its slope at r = 1 is A, and it never is 0."""

    text: ClassVar[str] = (
        "4 / tau sigmoid(tau (rho - 1)) A, tau = {positive} if A > 0 else {negative}"
    )

    positive: Positive = 1.0
    negative: Positive = 1.05

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        tau = by_sign(advantage, self.positive, self.negative)
        return torch.sigmoid(tau * (exp(log_ratio) - 1)) * 4 / tau * advantage


@dataclass(frozen=True)
class SmoothWeight(Gate):
    """sg(phi(W)) A log pi with phi(W) = e^lambda W^k e^(-lambda W), W the ratio (in VESPO the
    product over the sequence), k and lambda by the sign of A; phi(1) = 1."""

    positive: tuple[Finite, Finite] = (2.0, 3.0)
    negative: tuple[Finite, Finite] = (3.0, 2.0)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        log_w = log_ratio.detach()
        up, down = (
            k * log_w + rate * (1 - exp(log_w)) for k, rate in (self.positive, self.negative)
        )
        return exp(torch.where(advantage > 0, up, down)) * advantage * log_prob

    def formula(self) -> str:
        (k, rate), (k_low, rate_low) = self.positive, self.negative
        return (
            "sg(rho^k e^(rate (1 - rho))) A log pi, (k, rate) = "
            f"({shown(k)}, {shown(rate)}) if A > 0 else ({shown(k_low)}, {shown(rate_low)})"
        )


def held(log_ratio: Tensor, advantage: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The log-ratio, held between the logarithms `low` and `high` on the side where r A would gain
    beyond them: from above for A >= 0, from below for A < 0, so that r A is the smaller one."""
    return torch.where(advantage >= 0, log_ratio.clamp(max=high), log_ratio.clamp(min=low))


def ends(low: float | None, high: float) -> str:
    """The range of `bounds` in a formula."""
    return f"{'0' if low is None else f'1 - {shown(low)}'}, 1 + {shown(high)}"


def bounds(low: float | None, high: float) -> tuple[float, float]:
    """The logarithms of 1 - `low` (None: no bound) and of 1 + `high`."""
    return (-math.inf if low is None or low >= 1 else math.log1p(-low)), math.log1p(high)


SHAPES = ("one", "two", "ring")


@dataclass(frozen=True)
class MaskedWeight(Gate):
    """M sg(w) A log pi, w the ratio (`weighted`) or 1, M 1 for ratios in a set and 0 outside.

    The set by `shape`: "one": r <= 1 + high for A >= 0 and r >= 1 - low for A <= 0; "two": between
    both for any A; "ring": the latter, and r <= 1 - outer[0] for A >= 0, r >= 1 + outer[1] for
    A <= 0. "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", arXiv 2509.24203.
    """

    low: NonNegative = 0.2
    high: UpperBound = 0.2
    shape: str = "one"
    weighted: bool = True
    outer: tuple[NonNegative, NonNegative] = (0.6, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.shape, SHAPES, "shape")

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        still = log_ratio.detach()
        weight = exp(still) if self.weighted else torch.ones_like(still)
        return torch.where(self.inside(still, advantage), weight, 0.0) * advantage * log_prob

    def inside(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        low, high = bounds(self.low, self.high)
        below, above = log_ratio <= high, log_ratio >= low
        if self.shape == "one":
            return ((advantage >= 0) & below) | ((advantage <= 0) & above)
        if self.shape == "two":
            return below & above
        far_low, far_high = bounds(*self.outer)
        far = (advantage >= 0) & (log_ratio <= far_low)
        return (below & above) | far | ((advantage <= 0) & (log_ratio >= far_high))

    def formula(self) -> str:
        low, high = shown(self.low), shown(self.high)
        both = f"1 - {low} <= rho <= 1 + {high}"
        inside = {
            "one": f"rho <= 1 + {high} if A >= 0, rho >= 1 - {low} if A <= 0",
            "two": both,
            "ring": f"{both}, or rho <= 1 - {shown(self.outer[0])} if A >= 0, or rho >= 1 + "
            f"{shown(self.outer[1])} if A <= 0",
        }
        return f"{'sg(rho) ' if self.weighted else ''}A log pi where {inside[self.shape]}, else 0"


@dataclass(frozen=True)
class Hybrid(Gate):
    """alpha times PPO's clipped gain of each step's own ratio plus 1 - alpha times that of the
    sequence's geometric mean, each with its own range. `alpha` None: the old policy's entropy over
    the largest of the batch, so that steps that were open lean on their own ratio."""

    step: Clip = Clip()
    whole: Clip = Clip(3e-4, 4e-4)
    alpha: Finite | None = 0.5

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", *(("entropy",) if self.alpha is None else ()))

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        mean = WHOLE(log_prob, t)
        own = self.step(log_ratio, log_prob, advantage, t)
        shared = self.whole(mean, log_prob, advantage, t)
        share = self._share(t)
        return share * own + (1 - share) * shared

    def _share(self, t: Trajectories) -> Tensor | float:
        if self.alpha is not None:
            return self.alpha
        assert t.entropy is not None
        entropy = torch.where(t.mask, t.entropy, torch.zeros_like(t.entropy))
        return entropy / group(t, BATCH, t.mask).max(entropy).clamp_min(1e-12)

    def formula(self) -> str:
        alpha = "H / max H" if self.alpha is None else shown(self.alpha)
        whole = self.whole.formula().replace("rho", "rho_s")
        return (
            f"a ({self.step.formula()}) + (1 - a) ({whole}), a = {alpha}, rho_s = geometric mean "
            "of rho over the sequence"
        )


@dataclass(frozen=True)
class CovarianceClip(Gate):
    """PPO's clip, and no gain from a random few of the steps that it leaves alone and whose
    covariance (A - mean A)(log pi - mean log pi) over the batch lies between `least` and `most`:
    `share` of all steps, at least one. Who is left out is decided by `signals.uniform`. "The
    Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617."""

    text: ClassVar[str] = (
        "{clip}, but 0 for a random {share} of unclipped steps with {least} < cov(A, log pi) < "
        "{most}"
    )

    clip: Clip = Clip()
    share: Probability = 2e-4
    least: NonNegative = 1.0
    most: NonNegative = 5.0

    def needs(self) -> tuple[str, ...]:
        return ("signals.uniform",)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        gain = self.clip(log_ratio, log_prob, advantage, t)
        clipped = gain.detach() < (exp(log_ratio) * advantage).detach()
        cov = covariance(log_prob.detach(), advantage, t)
        open_to = t.mask & ~clipped & (cov > self.least) & (cov < self.most)
        draw = torch.where(open_to, t.signals["uniform"], torch.inf)
        rank = torch.argsort(torch.argsort(draw.flatten(), stable=True)).view_as(draw)
        left_out = open_to & (rank < count(t, self.share))
        return torch.where(left_out, torch.zeros_like(gain), gain)


@dataclass(frozen=True)
class CovariancePenalty(Gate):
    """r A, not clipped, less `weight` |log r| at the `share` of steps (at least one) with the
    largest covariance of advantage and log-prob. Source as for `CovarianceClip`."""

    text: ClassVar[str] = (
        "rho A - {weight} |log rho| for the {share} of steps of largest cov(A, log pi)"
    )

    share: Probability = 2e-4
    weight: Finite = 1.0

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        cov = covariance(log_prob.detach(), advantage, t)
        flat = torch.where(t.mask, cov, torch.full_like(cov, -torch.inf)).flatten()
        rank = torch.argsort(torch.argsort(flat, descending=True, stable=True)).view_as(cov)
        chosen = (rank < count(t, self.share)) & t.mask
        penalty = torch.where(chosen, log_ratio.abs(), torch.zeros_like(log_ratio))
        return exp(log_ratio) * advantage - self.weight * penalty


@dataclass(frozen=True)
class GradientPreservingClip(Gate):
    """PPO's clip, but steps above the range keep the gradient of the bound times r / sg(r): they
    count as much as at the bound. "Agentic Entropy-Balanced Policy Optimization", arXiv
    2510.14545."""

    text: ClassVar[str] = "{clip}, but for A > 0 above the range with the gradient of its bound"

    clip: Clip = Clip()

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        gain = self.clip(log_ratio, log_prob, advantage, t)
        _, high = bounds(self.clip.low, self.clip.high)
        kept = (advantage > 0) & (log_ratio > high)
        rescaled = math.exp(high) * exp(log_ratio - log_ratio.detach()) * advantage
        return torch.where(kept, rescaled, gain)


def covariance(log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
    """[B, T]: what each step adds to the covariance of advantage and log-prob over the batch."""
    batch = group(t, BATCH, t.mask)
    return (advantage - batch.mean(advantage)) * (log_prob - batch.mean(log_prob))


def count(t: Trajectories, share: float) -> Tensor:
    """`share` of all steps in whole numbers, at least one."""
    return torch.floor(share * t.mask.sum().double() + 1e-9).clamp_min(1)


@dataclass(frozen=True)
class Discriminative(Gate):
    """Of every prompt with right (A > 0) and wrong answers

        sum_right w s / sum_right w - tau log sum_wrong e^(s / tau),

    s the mean log-prob of an answer, w = e^((1 - steps / `longest`) / `length_scale`): shorter
    right answers count more, wrong ones by how likely they are, whatever their length. The gain is
    the prompt's, at each of its steps; 0 for prompts with answers of one kind. "DRPO: Efficient
    Reasoning via Decoupled Reward Policy Optimization"."""

    text: ClassVar[str] = (
        "sum(w s over right) / sum(w) - {tau} log sum(e^(s / {tau}) over wrong) in the group of"
        " {key}, s = mean log pi, w = e^((1 - length / {longest}) / {length_scale})"
    )

    tau: Positive = 10.0
    length_scale: Positive = 0.1
    longest: Positive = 8192.0
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        answers = sequence(t)
        rows = group(t, self.key, first_steps(answers))
        score, right = answers.mean(log_prob), advantage > 0
        chosen, others = right.to(score.dtype), (~right).to(score.dtype)
        # Weights count by their shares alone, so the longest exponent is 0.
        log_weight = (1 - answers.size().to(score.dtype) / self.longest) / self.length_scale
        weight = chosen * (log_weight - finite(rows.max(masked(log_weight, right)))).exp()
        good = rows.sum(weight * score) / rows.sum(weight).clamp_min(1e-30)
        scaled = score / self.tau
        largest = finite(rows.max(masked(scaled.detach(), ~right)))
        excess = torch.where(right, torch.zeros_like(scaled), scaled - largest)
        total = rows.sum(others * excess.exp()).clamp_min(1e-30)
        gain = good - self.tau * (largest + total.log())
        both = (rows.sum(chosen) > 0) & (rows.sum(others) > 0)
        return torch.where(both, gain, torch.zeros_like(gain))


def masked(value: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, value, torch.full_like(value, -torch.inf))


def finite(value: Tensor) -> Tensor:
    """0 for the maximum of nothing."""
    return torch.where(value.isfinite(), value, torch.zeros_like(value))
