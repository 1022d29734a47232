"""Selection: which steps are trained on. What is left out keeps its place in the denominators.

A selection stands in one of two places of a recipe, because they are different estimators: in
`sampling` it comes before baselines and scales, whose groups then hold only what was kept; in
`selection` it comes after them.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import first_steps, group, segment, sequence
from mbrl.policy_gradient.option import Option
from mbrl.policy_gradient.rewards import outcome
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Selection(Option):
    """(advantages [B, T], zeros in `sampling`; trajectories) to weights [B, T], 0 for what is left
    out."""

    @abstractmethod
    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class ZeroVariance(Selection):
    """Leaves out groups whose sequences all earned the same. `which`: "all", or only "right" ones
    (the largest reward) or "wrong" ones."""

    which: str = "all"
    key: tuple[str, ...] = ("prompt",)
    right: float = 1.0

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        earned = outcome(t)
        same = group(t, self.key, first_steps(sequence(t)))
        flat = same.max(earned) - same.min(earned) <= 0
        if self.which == "right":
            flat = flat & (earned >= self.right)
        elif self.which == "wrong":
            flat = flat & (earned < self.right)
        return (~flat).to(advantage.dtype)


@dataclass(frozen=True)
class Finished(Selection):
    """Leaves out sequences that were cut off (`truncated` at any step)."""

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        cut = (t.truncated & t.mask).any(1, keepdim=True)
        return (~cut).to(advantage.dtype).expand_as(advantage)


@dataclass(frozen=True)
class NonZero(Selection):
    """Leaves out advantages of exactly 0 and weighs the others by units over units that are not 0,
    in each group."""

    key: tuple[str, ...] = ("prompt",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        rows = group(t, self.key, first_steps(sequence(t)))
        live = (advantage != 0).to(advantage.dtype)
        return live * rows.size().to(advantage.dtype) / rows.sum(live).clamp_min(1)


@dataclass(frozen=True)
class SignalMask(Selection):
    """Weights that another part gave: `signals` by name, 0 for what is left out."""

    name: str

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        return t.signals[self.name].to(advantage.dtype)


@dataclass(frozen=True)
class Outliers(Selection):
    """Leaves out advantages beyond `limit`."""

    limit: float = 3.0

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        return (advantage.abs() <= self.limit).to(advantage.dtype)


@dataclass(frozen=True)
class TopEntropy(Selection):
    """Keeps the `share` of all steps with the largest entropy (of the old policy)."""

    share: float = 0.2

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        return top(t.entropy, t.mask, self.share)


def top(value: Tensor, mask: Tensor, share: float) -> Tensor:
    """[B, T]: 1 for the ceil(share n) largest of the n values in `mask`, 0 elsewhere; of equal
    ones the first."""
    flat = torch.where(mask, value, torch.full_like(value, -torch.inf)).flatten()
    rank = torch.argsort(torch.argsort(flat, descending=True, stable=True))
    wanted = torch.ceil(share * mask.sum() - 1e-9)
    return ((rank < wanted).view_as(mask) & mask).to(value.dtype)


@dataclass(frozen=True)
class NoVoidTurn(Selection):
    """Leaves out sequences with a void turn (`signals.<name>` above 1/2 at any step): one with
    neither code nor an answer."""

    name: str = "void"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        void = ((t.signals[self.name] > 0.5) & t.mask).any(1, keepdim=True)
        return (~void).to(advantage.dtype).expand_as(advantage)


@dataclass(frozen=True)
class TopEntropyTurns(Selection):
    """Keeps the `share` of all turns with the largest mean entropy (of the old policy)."""

    share: float = 0.8
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("entropy", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        parts = segment(t, self.segment)
        kept = top(parts.mean(t.entropy), first_steps(parts), self.share)
        return parts.sum(kept)
