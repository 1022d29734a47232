"""Rewards that depend on how long an answer is beside others, or how late it comes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import NonNegative, Probability
from mbrl.policy_gradient.axes.reward import Reward, at_last, outcome
from mbrl.policy_gradient.groups import first_steps, group, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class ShortWhereEasy(Reward):
    """R (1 - `weight` p (L - Lmin) / (Lmax - Lmin + 1)) for sequences that earned more than 0, R
    for others, at the last step: p is the share of the prompt's sequences that earned more than 0,
    L how many steps a sequence has, Lmin and Lmax the least and the most of these. Where most
    succeed, short answers are to; where few do, nearly all lengths are alike. In place of the
    "difficulty-aware length penalty" of Apriel-Reasoner, whose code has one near the limit."""

    text: ClassVar[str] = (
        "R (1 - {weight} p (L - Lmin) / (Lmax - Lmin + 1)) if R > 0 else R, at its last step, p "
        "the share of the prompt's sequences with R > 0, Lmin and Lmax the lengths of these"
    )
    verdict: ClassVar[bool] = True

    weight: Probability = 0.5

    def needs(self) -> tuple[str, ...]:
        return ("groups.prompt",)

    def __call__(self, t: Trajectories) -> Tensor:
        earned, whole = outcome(t), sequence(t)
        units = first_steps(whole)
        right = earned > 0
        length = whole.size().to(earned.dtype)
        every = group(t, ("prompt",), units)
        some = group(t, ("prompt",), units & right)
        share = every.count(units & right).to(earned.dtype) / every.size().to(earned.dtype)
        low = torch.where(right, some.min(length), 0.0)
        high = torch.where(right, some.max(length), 0.0)
        over = torch.where(right, (length - low) / (high - low + 1), 0.0)
        return at_last(earned * (1 - self.weight * share * over), t)


@dataclass(frozen=True)
class Decayed(Reward):
    """Every reward times `factor` to the number of turns before: 1, 1/2, 1/4 for a right first,
    second, third attempt. "A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning"."""

    text: ClassVar[str] = "r {factor}^turn, turns from 0"

    factor: NonNegative = 0.5

    def needs(self) -> tuple[str, ...]:
        return ("segments.turn",)

    def __call__(self, t: Trajectories) -> Tensor:
        return t.reward * self.factor ** t.segments["turn"].to(t.reward.dtype)
