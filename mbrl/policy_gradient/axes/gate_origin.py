"""Gates that tell by whom a step was taken: by the policy, or by a teacher whose probabilities
nobody knows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Finite, Positive
from mbrl.policy_gradient.axes.gate import Clip, Gate
from mbrl.policy_gradient.groups import sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class ShapedTeacher(Gate):
    """PPO's clip at the policy's own steps; pi / (pi + `gamma`) A at a teacher's (`signals.teacher`
    above 1/2), never clipped: unlikely steps have the largest slope. The shaping is that of
    "Learning to Reason under Off-Policy Guidance", arXiv 2504.14945."""

    text: ClassVar[str] = "{clip}; A pi / (pi + {gamma}) where teacher > 1/2"

    clip: Clip = Clip()
    gamma: Positive = 0.1

    def needs(self) -> tuple[str, ...]:
        return ("signals.teacher",)

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        p = log_prob.exp()
        shaped = advantage * p / (p + self.gamma)
        own = self.clip(log_ratio, log_prob, advantage, t)
        return torch.where(t.signals["teacher"] > 0.5, shaped, own)


@dataclass(frozen=True)
class ConsistentHint(Gate):
    """PPO's clip at the policy's own steps; c max(A, 0) log pi at those of a hint
    (`signals.teacher` above 1/2), c = exp(-|H - m|), H the old policy's entropy and m its mean over
    the sequence's own steps: a hint where the policy is as sure as in its own words counts most,
    and a wrong end is not the hint's fault. ADHint, arXiv 2512.13095."""

    text: ClassVar[str] = (
        "{clip}; max(A, 0) e^-|H - mean H of own steps| log pi where teacher > 1/2"
    )

    clip: Clip = Clip()

    def needs(self) -> tuple[str, ...]:
        return ("signals.teacher", "entropy")

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        shown = t.mask & (t.signals["teacher"] > 0.5)
        assert t.entropy is not None
        rows, own = sequence(t), (t.mask & ~shown).to(log_prob.dtype)
        h = torch.where(t.mask, t.entropy, torch.zeros_like(t.entropy))
        mean = rows.sum(own * h) / rows.sum(own).clamp_min(1)
        weight = (-(h - mean).abs()).exp() * advantage.clamp_min(0)
        clipped = self.clip(log_ratio, log_prob, advantage, t)
        return torch.where(shown, weight * log_prob, clipped)


@dataclass(frozen=True)
class UnweightedApart(Gate):
    """PPO's clip; A log pi where `signals.apart` is above 1/2: no ratio for answers that were
    sampled in another context, whose weights would have no bounded variance. Of these, nothing of
    steps whose old log-prob is below `least`."""

    text: ClassVar[str] = "{clip}; where apart > 1/2 A log pi, 0 for log pi_old < {least}"

    clip: Clip = Clip()
    least: Finite = -5.0

    def needs(self) -> tuple[str, ...]:
        return ("signals.apart", "log_probs.old")

    def __call__(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, t: Trajectories
    ) -> Tensor:
        own = self.clip(log_ratio, log_prob, advantage, t)
        likely = (t.log_probs["old"] >= self.least).to(advantage.dtype)
        return torch.where(t.signals["apart"] > 0.5, likely * advantage * log_prob, own)
