"""Groups of steps, the units that are counted in them, and their statistics."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.types import Trajectories

BATCH: tuple[str, ...] = ()  # the key of one group that holds everything
LARGEST = 60.0  # exponents beyond it count as it: e^60 fits float32, and so do sums of it


@dataclass(frozen=True)
class Group:
    """Which steps belong together, and which of them count.

    `ids` [B, T] int64 in 0..B T - 1: steps with one id are one group. `units` [B, T] bool: the
    steps that stand for what is counted (the first of every sequence, or of every turn, or all),
    so that a long answer weighs as much as a short one. All statistics are [B, T]: at every step
    that of its group.
    """

    ids: Tensor
    units: Tensor

    def sum(self, value: Tensor) -> Tensor:
        kept = torch.where(self.units, value, torch.zeros_like(value))
        total = value.new_zeros(self.ids.numel()).index_add(0, self.ids.flatten(), kept.flatten())
        return total[self.ids]

    def count(self, where: Tensor) -> Tensor:
        """How many units of the group `where` [B, T] is True, as numbers that divide."""
        return self.sum(where.to(torch.get_default_dtype()))

    def size(self) -> Tensor:
        """Units of the group; at least 1, so that it divides."""
        return self.count(self.units).clamp_min(1)

    def mean(self, value: Tensor) -> Tensor:
        """In float64, so that the mean of equal values is that value: what is left of a difference
        would be divided by a deviation of next to nothing."""
        return (self.sum(value.double()) / self.size()).to(value.dtype)

    def variance(self, value: Tensor, correction: int = 1) -> Tensor:
        """With `correction` 1 that of a sample; 0 where a group has no more units than that."""
        squared = self.sum((value - self.mean(value)) ** 2)
        left = self.size().to(value.dtype) - correction
        return torch.where(left > 0, squared / left.clamp_min(1), torch.zeros_like(squared))

    def std(self, value: Tensor, correction: int = 1) -> Tensor:
        return self.variance(value, correction).sqrt()

    def max(self, value: Tensor) -> Tensor:
        """-inf where a group has no unit."""
        kept = torch.where(self.units, value, torch.full_like(value, -torch.inf))
        most = torch.full_like(value, -torch.inf).flatten()
        return most.scatter_reduce(0, self.ids.flatten(), kept.flatten(), "amax")[self.ids]

    def min(self, value: Tensor) -> Tensor:
        """inf where a group has no unit."""
        return -self.max(-value)

    def rank(self, value: Tensor) -> Tensor:
        """[B, T] int64: how many units of the group come before this one, smallest value first, in
        order of position where values are equal. (Of steps that are no units: nothing of
        meaning.)"""
        flat = torch.where(self.units, value, torch.full_like(value, torch.inf)).flatten()
        order = torch.argsort(flat, stable=True)
        order = order[torch.argsort(self.ids.flatten()[order], stable=True)]
        sizes = torch.bincount(self.ids.flatten(), minlength=self.ids.numel())
        first = sizes.cumsum(0) - sizes
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return (place - first[self.ids.flatten()]).view_as(self.ids)

    def median(self, value: Tensor) -> Tensor:
        """Of an even number of units the lower of the middle two, as `torch.median`."""
        return self.sum(torch.where(self.middle(value), value, torch.zeros_like(value)))

    def middle(self, value: Tensor) -> Tensor:
        """[B, T] bool: the unit whose value is the group's median; of equal ones just one."""
        return self.units & (self.rank(value) == (self.size().long() - 1) // 2)


def group(t: Trajectories, key: tuple[str, ...], units: Tensor) -> Group:
    """The groups that share all of `key`: names of `t.groups` and `t.segments`; none: the batch."""
    ids = torch.zeros_like(t.mask, dtype=torch.int64)
    for name in key:
        part = t.groups[name] if name in t.groups else t.segments[name]
        ids = ids * (part.max() + 1) + part
    if len(key) > 1:  # ids of combinations may be larger than there are steps
        ids = numbered(ids)
    return Group(ids, units)


def numbered(ids: Tensor) -> Tensor:
    """The same groups numbered from 0: the inverse of `torch.unique`, in static shapes."""
    flat, order = ids.flatten().sort()
    number = torch.cat([torch.zeros_like(flat[:1]), (flat[1:] != flat[:-1]).long()]).cumsum(0)
    return torch.empty_like(flat).scatter(0, order, number).view_as(ids)


def sequence(t: Trajectories) -> Group:
    """Every sequence a group of its steps."""
    rows = torch.arange(len(t.mask), device=t.mask.device)
    return Group(rows[:, None].expand_as(t.mask), t.mask)


def segment(t: Trajectories, name: str) -> Group:
    """Every segment of every sequence a group of its steps. Segments are numbered in each sequence
    from 0, in their order."""
    rows = torch.arange(len(t.mask), device=t.mask.device)
    return Group(rows[:, None] * t.mask.shape[1] + t.segments[name], t.mask)


def first_steps(part: Group) -> Tensor:
    """[B, T] bool: the first unit of every group of `part`."""
    batch, steps = part.units.shape
    at = torch.arange(batch * steps, device=part.ids.device).view(batch, steps)
    return part.units & (at == part.min(at.double()))


def exp(log_ratio: Tensor) -> Tensor:
    """e to `log_ratio`, which counts as no more than `LARGEST`."""
    return log_ratio.clamp_max(LARGEST).exp()


def by_sign(advantage: Tensor, positive: float, negative: float) -> Tensor:
    """`positive` where an advantage is above 0, else `negative`."""
    above = (advantage > 0).to(advantage.dtype)
    return positive * above + negative * (1 - above)


def nodes(t: Trajectories, name: str) -> Group:
    """The steps of a sequence that have one id of `t.groups[name]` together, for every sequence."""
    rows = torch.arange(len(t.mask), device=t.mask.device)[:, None]
    part = t.groups[name]
    return Group(numbered(rows * (part.max() + 1) + part), t.mask)
