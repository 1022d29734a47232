"""Modulation by length: what right answers that are longer than they need be lose."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import NonNegative
from mbrl.policy_gradient.axes.modulation import Modulation
from mbrl.policy_gradient.axes.reward import outcome
from mbrl.policy_gradient.groups import sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class LongerRight(Modulation):
    """With s the shortest of a prompt's right sequences (whole reward above 0; of equal ones the
    first in the batch) and k the steps that another right one, b, has in common with it before
    they part (equal `groups.<node>`): from step k on A of b loses |A| f, with
    f = 1 - ((L_s - k) / (L_b - k))^`power`. ROSE, "Reinforced Efficient Reasoning via Semantically
    Diverse Exploration", arXiv 2601.05053, as in the authors' code, but for nodes. Takes B B
    numbers."""

    text: ClassVar[str] = (
        "A - |A| (1 - ((L_s - k) / (L - k))^{power}) from step k on, for right sequences, L_s the "
        "length of the prompt's shortest right one, k where their {node}s part; else A"
    )
    verdict: ClassVar[bool] = True

    power: NonNegative = 1.0
    node: str = "node"

    def needs(self) -> tuple[str, ...]:
        return ("groups.prompt", f"groups.{self.node}")

    def __call__(self, advantage: Tensor, units: Tensor, t: Trajectories) -> Tensor:
        length = sequence(t).sum(torch.ones_like(t.reward))[:, 0]
        right, prompt = outcome(t)[:, 0] > 0, t.groups["prompt"][:, 0]
        able = right[:, None] & right & (prompt[:, None] == prompt)
        shortest = torch.where(able, length, torch.inf).argmin(1)
        shared = common(t.groups[self.node], t.mask, shortest)
        k = shared.sum(1).to(length.dtype)
        own, least = (length - k).clamp_min(1), (length[shortest] - k).clamp_min(0)
        loss = torch.where(right, 1 - (least / own) ** self.power, torch.zeros_like(length))
        lost = advantage.abs() * loss.clamp_min(0)[:, None]
        return advantage - torch.where(shared, torch.zeros_like(lost), lost)


def common(node: Tensor, mask: Tensor, other: Tensor) -> Tensor:
    """[B, T] bool: the steps in `mask` that every sequence has in common with number `other` [B],
    those before the first at which one of them has another node or no step."""
    both = mask & mask[other] & (node == node[other])
    parted = (mask | mask[other]) & ~both
    return both & (parted.long().cumsum(1) == 0)
