"""Selection by sampling: which answers of more than were needed are trained on. Chance comes from
`signals.uniform`, numbers in [0, 1)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import Group, first_steps, group, segment, sequence
from mbrl.policy_gradient.rewards import outcome
from mbrl.policy_gradient.selection import Selection
from mbrl.types import Trajectories


@dataclass(frozen=True)
class ResampleOnCorrect(Selection):
    """Keeps ceil(`share` n) of a prompt's n answers: wrong and right ones in their proportion, but
    at least `fewest` of each where there are; of the right ones those with the smallest
    `signals.penalty` (tool errors, format), of the wrong ones the first in the batch. GRPO-RoC,
    "rStar2-Agent: Agentic Reasoning Technical Report", as in the authors' code."""

    share: float = 0.5
    fewest: int = 2
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("groups.prompt", "signals.penalty")

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        first, right = first_steps(sequence(t)), outcome(t) > 0
        rows = group(t, ("prompt",), first)
        good, bad = Group(rows.ids, first & right), Group(rows.ids, first & ~right)
        size, rights, wrongs = (
            rows.count(where).to(advantage.dtype) for where in (first, right, ~right)
        )
        keep = torch.ceil(self.share * size - 1e-9)
        few = torch.full_like(keep, self.fewest)
        kept_wrong = torch.round(wrongs * keep / size.clamp_min(1)).maximum(few.minimum(wrongs))
        kept_right = (keep - kept_wrong).maximum(few.minimum(rights)).minimum(rights).minimum(keep)
        kept_wrong = keep - kept_right
        penalty = t.signals["penalty"]
        chosen = (good.units & (good.rank(penalty) < kept_right)) | (
            bad.units & (bad.rank(torch.zeros_like(penalty)) < kept_wrong)
        )
        return sequence(t).sum(chosen.to(advantage.dtype))


@dataclass(frozen=True)
class CoverageRejection(Selection):
    """Keeps a turn that earned more than 0 with probability (c - `threshold`) / `width`, in [0, 1],
    c its `signals.coverage`: how much of the run time is the turn's own work. Others are kept.
    Profiling-based rejection sampling of "Dr. Kernel: Reinforcement Learning Done Right for Triton
    Kernel Generations"."""

    threshold: float = 0.3
    width: float = 0.1
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("signals.coverage", "signals.uniform", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        parts = segment(t, self.segment)
        probability = (t.signals["coverage"] - self.threshold) / self.width
        drawn = first_steps(parts) & (t.signals["uniform"] < probability)
        wrong = parts.sum(t.reward) <= 0
        return ((parts.sum(drawn.to(advantage.dtype)) > 0) | wrong).to(advantage.dtype)
