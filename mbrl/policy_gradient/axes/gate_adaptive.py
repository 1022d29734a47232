"""Clip ranges that differ from step to step: by entropy, by what a turn was worth, or by where
a ratio began."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Finite, NonNegative, Positive, Probability
from mbrl.policy_gradient.axes.gate import Gate, held
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.axes.reward import Reward
from mbrl.policy_gradient.groups import exp
from mbrl.policy_gradient.scans import segment_first
from mbrl.types import Trajectories

NEARLY = 1 - 1e-6  # the widest a ratio may fall


@dataclass(frozen=True)
class EntropyClip(Gate):
    """PPO's clip with ranges and advantages by h, the step's log-entropy less its `pivot` quantile
    in the batch, scaled to [-1, 1] on either side.

    Low entropy (h <= 0): the lower bound is `low` (1 - `clip_rate` h), and inside half the range
    advantages are A (1 + `advantage_rate` h). High entropy: the upper bound is `high`
    (1 + `clip_rate` h), and outside half the range advantages are A (1 + `advantage_rate` h). For
    A < 0 gains are no less than `dual` A. "From Uniform to Heterogeneous: Tailoring Policy
    Optimization to Every Token's Nature"."""

    text: ClassVar[str] = (
        "min(rho A', clip(rho, 1 - l, 1 + u) A'), at least {dual} A' if A' < 0; l = {low} (1 - "
        "{clip_rate} min(h, 0)), u = {high} (1 + {clip_rate} max(h, 0)), A' = A (1 + "
        "{advantage_rate} h) for low h inside and high h outside half the range; h = log "
        "entropy less its {pivot} quantile, in [-1, 1]"
    )

    low: NonNegative = 0.2
    high: NonNegative = 0.2
    clip_rate: Finite = 1.0
    advantage_rate: Finite = 1.0
    pivot: Probability = 0.8
    dual: Positive = 10.0

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        assert t.entropy is not None
        h = relative_entropy(t.entropy, t.mask, self.pivot)
        low = self.low * (1 - self.clip_rate * h.clamp_max(0))
        high = self.high * (1 + self.clip_rate * h.clamp_min(0))
        ratio = exp(log_ratio.detach())
        inside = (ratio > 1 - low / 2) & (ratio < 1 + high / 2)
        shaped = torch.where((h > 0) ^ inside, advantage * (1 + self.advantage_rate * h), advantage)
        gain = clipped(log_ratio, low, high, shaped)
        return torch.where(shaped < 0, gain.maximum(self.dual * shaped), gain)


@dataclass(frozen=True)
class InformativeClip(Gate):
    """PPO's clip with ranges times 1 + `width` (2 sigmoid(`worth`) - 1), the reward at the first
    step of the step's turn: wider for turns that told more than others. "A^2TGPO: Agentic
    Turn-Group Policy Optimization with Adaptive Turn-level Clipping", arXiv 2605.06200."""

    text: ClassVar[str] = (
        "min(rho A, clip(rho, 1 - {low} f, 1 + {high} f) A), f = 1 + {width} (2 sigmoid({worth}) "
        "- 1) of the {segment}"
    )

    worth: Reward
    low: NonNegative = 0.2
    high: NonNegative = 0.2
    width: NonNegative = 0.3
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (*self.worth.needs(), f"segments.{self.segment}")

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        worth = segment_first(self.worth(t), t, self.segment)
        factor = 1 + self.width * (2 * worth.sigmoid() - 1)
        return clipped(log_ratio, self.low * factor, self.high * factor, advantage)


@dataclass(frozen=True)
class ShiftedClip(Gate):
    """PPO's clip of ratios to the policy that sampled, around what that ratio was when the round's
    updates began: data of earlier policies may move as far as new ones. Mix-PPG of "Squeeze the
    Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model", arXiv
    2507.06892."""

    text: ClassVar[str] = (
        "min(rho A, clip(rho, s - {low}, s + {high}) A), s = pi_proximal / pi_behaviour"
    )

    low: NonNegative = 0.2
    high: NonNegative = 0.2

    def needs(self) -> tuple[str, ...]:
        return ("log_probs.proximal", "log_probs.behaviour")

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        names = (t.log_probs["proximal"], t.log_probs["behaviour"])
        began = exp(log_difference(*names, t.mask))
        return clipped(log_ratio, 1 + self.low - began, began - 1 + self.high, advantage)


def clipped(log_ratio: Tensor, low: Tensor, high: Tensor, advantage: Tensor) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A) with a range for every step."""
    least, most = torch.log1p(-low.clamp_max(NEARLY)), torch.log1p(high)
    return exp(held(log_ratio, advantage, least, most)) * advantage


def relative_entropy(entropy: Tensor, mask: Tensor, pivot: float) -> Tensor:
    """[B, T] in [-1, 1]: log entropy less its `pivot` quantile over the steps in `mask` (nearest
    rank), over the largest distance on either side."""
    kept = torch.where(mask, entropy, torch.ones_like(entropy)).clamp_min(1e-8).log()
    ordered = torch.where(mask, kept, torch.full_like(kept, torch.inf)).flatten().sort().values
    place = torch.round(pivot * (mask.sum() - 1)).long().clamp_min(0)
    h = torch.where(mask, kept - ordered.gather(0, place.view(1)), torch.zeros_like(kept))
    up, down = h.max().clamp_min(1e-8), (-h).max().clamp_min(1e-8)
    return torch.where(h > 0, h / up, h / down)
