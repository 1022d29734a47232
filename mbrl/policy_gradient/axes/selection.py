"""Selection: which steps are trained on. What is left out keeps its place in the denominators,
unless the selection removes it.

A selection stands in one of two places of a recipe, because they are different estimators: in
`sampling` it comes before baselines and scales, whose groups then hold only what was kept; in
`selection` it comes after them.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Count, CountOrZero, Finite, NonNegative, Positive, Probability
from mbrl.policy_gradient.axes.option import Option, one_of, shown
from mbrl.policy_gradient.axes.reward import outcome
from mbrl.policy_gradient.groups import Group, first_steps, group, segment, sequence
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Selection(Option):
    """(advantages [B, T], zeros in `sampling`; trajectories) to weights [B, T], 0 for what is left
    out. With `removes`, what a recipe's selections leave out counts in no mean and no penalty."""

    removes: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class ZeroVariance(Selection):
    """Leaves out groups whose sequences all earned the same. `which`: "all", or only "right" ones
    (the largest reward) or "wrong" ones. `removed`: as if they had not been drawn."""

    which: str = "all"
    key: tuple[str, ...] = ("prompt",)
    right: Finite = 1.0
    removed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.which, ("all", "right", "wrong"), "which")
        object.__setattr__(self, "verdict", self.which != "all")
        object.__setattr__(self, "removes", self.removed)

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

    def formula(self) -> str:
        flat = f"0 for sequences that share {shown(self.key)} if all earned the same"
        if self.which != "all":
            side = "at least" if self.which == "right" else "less than"
            flat = f"{flat}, {side} {shown(self.right)}"
        return f"{flat}, else 1" + (", and no mean counts them" if self.removed else "")


@dataclass(frozen=True)
class LeastSpread(Selection):
    """Leaves out groups in which the deviation (over n) of `signals.<name>` among first steps
    (`groups.step` 0) is not above `least`, unless there is just one."""

    text: ClassVar[str] = (
        "1 for sequences that share {key} if the deviation of {name} among those of step 0 is "
        "above {least}, or just one of them is of step 0, else 0"
    )

    name: str
    least: NonNegative = 0.3
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}", "groups.step", *(f"groups.{name}" for name in self.key))

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        rows = group(t, self.key, first_steps(sequence(t)) & (t.groups["step"] == 0))
        spread = rows.std(t.signals[self.name], correction=0)
        return ((spread > self.least) | (rows.count(rows.units) == 1)).to(advantage.dtype)


@dataclass(frozen=True)
class Finished(Selection):
    """Leaves out sequences that were cut off (`truncated` at any step). Those of `limit` steps are
    whole, where the task itself ends there."""

    limit: Count | None = None

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        cut = (t.truncated & t.mask).any(1, keepdim=True)
        if self.limit is not None:
            cut = cut & (t.mask.sum(1, keepdim=True) < self.limit)
        return (~cut).to(advantage.dtype).expand_as(advantage)

    def formula(self) -> str:
        before = "" if self.limit is None else f" before {self.limit} steps"
        return f"0 for sequences that were cut off{before}, else 1"


@dataclass(frozen=True)
class DropMedian(Selection):
    """Leaves out one sequence of every group, the one whose reward is the median, as if it had not
    been drawn: means and penalties are of the others."""

    text: ClassVar[str] = (
        "0 for one sequence of those that share {key}, the median by reward, else 1"
    )
    removes: ClassVar[bool] = True

    key: tuple[str, ...] = ("prompt",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        median = group(t, self.key, first_steps(sequence(t))).middle(outcome(t))
        return 1 - sequence(t).sum(median.to(advantage.dtype))


@dataclass(frozen=True)
class SignalMask(Selection):
    """Weights that another part gave: `signals` by name, 0 for what is left out."""

    text: ClassVar[str] = "{name}"

    name: str

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        return t.signals[self.name].to(advantage.dtype)


@dataclass(frozen=True)
class Outliers(Selection):
    """Leaves out advantages beyond `limit`."""

    text: ClassVar[str] = "0 if |A| > {limit} else 1"

    limit: Positive = 3.0

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        return (advantage.abs() <= self.limit).to(advantage.dtype)


@dataclass(frozen=True)
class TopEntropy(Selection):
    """Keeps the `share` of all steps with the largest entropy (of the old policy)."""

    text: ClassVar[str] = "1 for the {share} of steps of largest entropy, else 0"

    share: Probability = 0.2

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        return top(t.entropy, t.mask, self.share)


def top(value: Tensor, mask: Tensor, share: float | Tensor) -> Tensor:
    """[B, T]: 1 for the ceil(share n) largest of the n values in `mask`, 0 elsewhere; of equal
    ones the first."""
    flat = torch.where(mask, value, torch.full_like(value, -torch.inf)).flatten()
    rank = torch.argsort(torch.argsort(flat, descending=True, stable=True))
    # In double precision: in single 0.3 of 50 is 15.000001.
    wanted = torch.ceil(share * mask.sum().double() - 1e-9)
    return ((rank < wanted).view_as(mask) & mask).to(value.dtype)


@dataclass(frozen=True)
class LargestVariance(Selection):
    """Keeps ceil(`share` n) of a group's n sequences (without a `key` of the batch's): that many of
    the best and of the worst whose rewards vary most, or means of whose `advantages`. With `grown`
    the share grows to 1 with `signals.<grown>`. "Learning More with Less: A Dynamic Dual-Level
    Down-Sampling Framework for Efficient Policy Optimization"."""

    share: Probability = 0.5
    key: tuple[str, ...] = ("prompt",)
    grown: str = ""
    advantages: bool = False

    def needs(self) -> tuple[str, ...]:
        return (*(f"groups.{name}" for name in self.key), *growth_needs(self.grown))

    def formula(self) -> str:
        part = share_formula(self.share, self.grown)
        of = f" that share {shown(self.key)}" if self.key else ""
        what = "mean A vary" if self.advantages else "rewards vary"
        return f"1 for {part} of sequences{of} whose {what} most, else 0"

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        rows = group(t, self.key, first_steps(sequence(t)))
        value = sequence(t).mean(advantage) if self.advantages else outcome(t)
        value = value - rows.mean(value)  # sums of squares lose nothing to a large mean
        rank, size = rows.rank(value), rows.size().long()
        keep = torch.ceil(grown_share(self.share, self.grown, t) * size - 1e-9).long()
        # The unit of rank i stands for the choice of the i best and the keep - i worst.
        at = torch.where(rows.units, rank, 0)
        low, high = (keep - at).clamp_min(0), size - at
        total = [ranked_sum(rows, value**p, rank, low, high) for p in (1, 2)]
        count = keep.clamp_min(1).to(value.dtype)
        spread = total[1] / count - (total[0] / count) ** 2
        spread = torch.where(rows.units & (at <= keep), spread, -torch.inf)
        # The smallest choice among equals: rounding does not decide.
        digits = 64 * torch.finfo(spread.dtype).eps
        best = spread >= rows.max(spread) - digits * rows.max(value.abs()).square()
        tops = rows.min(torch.where(best, at, torch.iinfo(torch.int64).max).to(value.dtype))
        chosen = (rank < keep - tops) | (rank >= size - tops)
        return sequence(t).max((chosen & rows.units & (keep > 0)).to(advantage.dtype))


@dataclass(frozen=True)
class TopGain(Selection):
    """Keeps the `share` of all steps, or of those that `among` keeps, with the largest |A| times
    entropy. With `grown` the share grows to 1 with `signals.<grown>`."""

    share: Probability = 0.5
    grown: str = ""
    among: Selection | None = None

    def needs(self) -> tuple[str, ...]:
        own = ("entropy", *growth_needs(self.grown))
        return own if self.among is None else tuple(dict.fromkeys((*self.among.needs(), *own)))

    def formula(self) -> str:
        part = share_formula(self.share, self.grown)
        if self.among is None:
            return f"1 for {part} of steps of largest |A| H, else 0"
        return (
            f"1 for {part} of steps of largest |A| H where m = 1, else 0, m = {shown(self.among)}"
        )

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        share = grown_share(self.share, self.grown, t)
        mask = t.mask if self.among is None else t.mask & (self.among(advantage, t) > 0)
        return top(advantage.abs() * t.entropy, mask, share)


def grown_share(share: float, grown: str, t: Trajectories) -> Tensor:
    """A scalar: `share` + (1 - `share`) g, g in [0, 1] what `signals.<grown>` is at all steps of
    the batch; without a name the share itself."""
    if not grown:
        return torch.as_tensor(share, dtype=torch.float64, device=t.mask.device)
    growth = torch.where(t.mask, t.signals[grown], torch.zeros_like(t.reward)).max().double()
    return share + (1 - share) * growth


def growth_needs(grown: str) -> tuple[str, ...]:
    return (f"signals.{grown}",) if grown else ()


def share_formula(share: float, grown: str) -> str:
    return (
        f"the share {shown(share)} + {shown(1 - share)} {grown}" if grown else f"the {shown(share)}"
    )


@dataclass(frozen=True)
class Balanced(Selection):
    """Keeps `size` sequences of a group, half of them right (reward above 0; of an odd number one
    more) and half wrong as far as there are enough, drawn by `signals.uniform` of their first
    steps."""

    text: ClassVar[str] = (
        "1 for {size} sequences that share {key}, half right and half wrong, drawn at random, "
        "else 0"
    )

    size: Count = 4
    key: tuple[str, ...] = ("prompt",)
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("signals.uniform", *(f"groups.{name}" for name in self.key))

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        first = first_steps(sequence(t))
        right = outcome(t) > 0
        draw = torch.where(first, t.signals["uniform"], torch.zeros_like(advantage))
        kept = torch.zeros_like(first)
        half = (self.size + 1) // 2
        for mine, other, least in ((right, ~right, half), (~right, right, self.size - half)):
            side = group(t, self.key, first & mine)
            # As many as half, and what the other side cannot fill.
            room = (self.size - group(t, self.key, first).count(other & first)).clamp_min(least)
            kept |= first & mine & (side.rank(draw) < room)
        return sequence(t).max(kept.to(advantage.dtype))


def ranked_sum(rows: Group, value: Tensor, rank: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """[B, T]: the sum of the group's units' `value` whose rank is below `low` or at least
    `high`."""
    place = torch.where(rows.units, rows.ids, rows.ids.numel())
    order = torch.argsort(rank.flatten(), stable=True)
    order = order[torch.argsort(place.flatten()[order], stable=True)]
    sums = value.flatten()[order].cumsum(0)
    sums = torch.cat([sums.new_zeros(1), sums])
    sizes = torch.bincount(place.flatten(), minlength=rows.ids.numel() + 1)
    start = (sizes.cumsum(0) - sizes)[rows.ids]
    size = sizes[rows.ids]

    def up_to(count: Tensor) -> Tensor:
        return sums[start + count.clamp_min(0).minimum(size)] - sums[start]

    return up_to(low) + up_to(size) - up_to(high)


@dataclass(frozen=True)
class DropSurplus(Selection):
    """Leaves out sequences whose reward is below the group's mean beyond as many as have it or
    more, drawn by `signals.uniform` of their first steps."""

    text: ClassVar[str] = (
        "0 for sequences below the mean reward of those that share {key}, beyond as many as are "
        "not, drawn at random, else 1"
    )

    key: tuple[str, ...] = ("prompt",)
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return ("signals.uniform", *(f"groups.{name}" for name in self.key))

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        first, earned = first_steps(sequence(t)), outcome(t)
        right = earned >= group(t, self.key, first).mean(earned)
        draw = torch.where(first, t.signals["uniform"], torch.zeros_like(advantage))
        wrong = group(t, self.key, first & ~right)
        room = group(t, self.key, first).count(right & first)
        kept = first & (right | (wrong.rank(draw) < room))
        return sequence(t).max(kept.to(advantage.dtype))


@dataclass(frozen=True)
class NoVoidTurn(Selection):
    """Leaves out sequences with a void turn (`signals.<name>` above 1/2 at any step): one with
    neither code nor an answer."""

    text: ClassVar[str] = "0 for sequences with {name} > 1/2 at any step, else 1"

    name: str = "void"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        void = ((t.signals[self.name] > 0.5) & t.mask).any(1, keepdim=True)
        return (~void).to(advantage.dtype).expand_as(advantage)


@dataclass(frozen=True)
class TopEntropyTurns(Selection):
    """Keeps the `share` of all turns with the largest mean entropy (of the old policy)."""

    text: ClassVar[str] = "1 for the {share} of {segment}s of largest mean entropy, else 0"

    share: Probability = 0.8
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("entropy", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        assert t.entropy is not None
        parts = segment(t, self.segment)
        kept = top(parts.mean(t.entropy), first_steps(parts), self.share)
        return parts.sum(kept)


@dataclass(frozen=True)
class ResampleOnCorrect(Selection):
    """Keeps ceil(`share` n) of a prompt's n answers: wrong and right ones in their proportion, but
    at least `fewest` of each where there are; of the right ones those with the smallest
    `signals.penalty` (tool errors, format), of the wrong ones the first in the batch. GRPO-RoC,
    "rStar2-Agent: Agentic Reasoning Technical Report", as in the authors' code."""

    text: ClassVar[str] = (
        "1 for {share} of a prompt's answers, at least {fewest} right and {fewest} wrong, right"
        " ones of least penalty first, else 0"
    )

    share: Probability = 0.5
    fewest: CountOrZero = 2
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
        keep = torch.ceil(self.share * size.double() - 1e-9).to(size.dtype)
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

    text: ClassVar[str] = (
        "1 with probability clip((coverage - {threshold}) / {width}, 0, 1) for a {segment} that"
        " earned more than 0, 1 for others"
    )

    threshold: Finite = 0.3
    width: NonNegative = 0.1
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return ("signals.coverage", "signals.uniform", f"segments.{self.segment}")

    def __call__(self, advantage: Tensor, t: Trajectories) -> Tensor:
        parts = segment(t, self.segment)
        probability = (t.signals["coverage"] - self.threshold) / self.width
        drawn = first_steps(parts) & (t.signals["uniform"] < probability)
        wrong = parts.sum(t.reward) <= 0
        return ((parts.sum(drawn.to(advantage.dtype)) > 0) | wrong).to(advantage.dtype)
