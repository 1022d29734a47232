"""Gates that leave steps out instead of clipping them, and gates with several branches."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.gates import Clip, Gate, bounds
from mbrl.policy_gradient.groups import BATCH, exp, group
from mbrl.policy_gradient.option import one_of
from mbrl.policy_gradient.ratios import Geometric
from mbrl.policy_gradient.selection import top
from mbrl.types import Trajectories

SHAPES = ("one", "two", "ring")


@dataclass(frozen=True)
class MaskedWeight(Gate):
    """M sg(w) A log pi, w the ratio (`weighted`) or 1, M 1 for ratios in a set and 0 outside.

    The set by `shape`: "one": r <= 1 + high for A >= 0 and r >= 1 - low for A <= 0; "two": between
    both for any A; "ring": the latter, and r <= 1 - outer[0] for A >= 0, r >= 1 + outer[1] for
    A <= 0. "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm", arXiv 2509.24203.
    """

    low: float = 0.2
    high: float = 0.2
    shape: str = "one"
    weighted: bool = True
    outer: tuple[float, float] = (0.6, 2.0)

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
class Hybrid(Gate):
    """alpha times PPO's clipped gain of each step's own ratio plus 1 - alpha times that of the
    sequence's geometric mean, each with its own range. `alpha` None: the old policy's entropy over
    the largest of the batch, so that steps that were open lean on their own ratio."""

    step: Clip = Clip()
    whole: Clip = Clip(3e-4, 4e-4)
    alpha: float | None = 0.5

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.old", *(("entropy",) if self.alpha is None else ()))

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        mean = Geometric()(log_prob, t)
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


@dataclass(frozen=True)
class CovarianceClip(Gate):
    """PPO's clip, and no gain from a random few of the steps that it leaves alone and whose
    covariance (A - mean A)(log pi - mean log pi) over the batch lies between `least` and `most`:
    `share` of all steps, at least one. Who is left out is decided by `signals.uniform`. "The
    Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617."""

    clip: Clip = Clip()
    share: float = 2e-4
    least: float = 1.0
    most: float = 5.0

    def needs(self) -> tuple[str, ...]:
        return ("signals.uniform",)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        gain = self.clip(log_ratio, log_prob, advantage, t)
        clipped = gain.detach() < (exp(log_ratio) * advantage).detach()
        found = covariance(log_prob.detach(), advantage, t)
        open_to = t.mask & ~clipped & (found > self.least) & (found < self.most)
        draw = torch.where(open_to, t.signals["uniform"], torch.inf)
        rank = torch.argsort(torch.argsort(draw.flatten(), stable=True)).view_as(draw)
        left_out = open_to & (rank < count(t, self.share))
        return torch.where(left_out, torch.zeros_like(gain), gain)


@dataclass(frozen=True)
class CovariancePenalty(Gate):
    """r A, not clipped, less `weight` |log r| at the `share` of steps (at least one) with the
    largest covariance of advantage and log-prob. Source as for `CovarianceClip`."""

    share: float = 2e-4
    weight: float = 1.0

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        found = covariance(log_prob.detach(), advantage, t)
        flat = torch.where(t.mask, found, torch.full_like(found, -torch.inf)).flatten()
        rank = torch.argsort(torch.argsort(flat, descending=True, stable=True)).view_as(found)
        chosen = (rank < count(t, self.share)) & t.mask
        penalty = torch.where(chosen, log_ratio.abs(), torch.zeros_like(log_ratio))
        return exp(log_ratio) * advantage - self.weight * penalty


@dataclass(frozen=True)
class GradientPreservingClip(Gate):
    """PPO's clip, but of the `share` of steps with the largest entropy those above the range keep
    the gradient of the bound times r / sg(r): they count as much as at the bound."""

    clip: Clip = Clip()
    share: float = 0.2

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        assert t.entropy is not None
        gain = self.clip(log_ratio, log_prob, advantage, t)
        _, high = bounds(self.clip.low, self.clip.high)
        kept = (top(t.entropy, t.mask, self.share) > 0) & (advantage > 0) & (log_ratio > high)
        rescaled = math.exp(high) * exp(log_ratio - log_ratio.detach()) * advantage
        return torch.where(kept, rescaled, gain)


def covariance(log_prob: Tensor, advantage: Tensor, t: Trajectories) -> Tensor:
    """[B, T]: what each step adds to the covariance of advantage and log-prob over the batch."""
    batch = group(t, BATCH, t.mask)
    return (advantage - batch.mean(advantage)) * (log_prob - batch.mean(log_prob))


def count(t: Trajectories, share: float) -> Tensor:
    """`share` of all steps in whole numbers, at least one."""
    return torch.floor(share * t.mask.sum() + 1e-9).clamp_min(1)
