"""Baselines: what a value is compared with."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Finite, Positive
from mbrl.policy_gradient.axes.option import Option, one_of, shown
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.groups import Group, exp, numbered, sequence
from mbrl.policy_gradient.measures.trackers import shrinkage
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Baseline(Option):
    """(values [B, T], their group, trajectories) to baselines [B, T]."""

    @abstractmethod
    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Zero(Baseline):
    """No baseline."""

    text: ClassVar[str] = "0"

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        return torch.zeros_like(value)


@dataclass(frozen=True)
class Mean(Baseline):
    """The group's mean; 0 in a group of one if `alone` is "keep", its own value (so that nothing
    is left) if "drop"."""

    text: ClassVar[str] = "mean R"

    alone: str = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.alone, ("drop", "keep"), "alone")

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        mean = group.mean(value)
        if self.alone == "drop":
            return mean
        return torch.where(group.size() > 1, mean, torch.zeros_like(mean))

    def formula(self) -> str:
        return "mean R" if self.alone == "drop" else "(mean R, or 0 for one alone)"


@dataclass(frozen=True)
class ShiftedMean(Baseline):
    """The group's mean plus `shift`; below 0 it favours what is good over what is bad."""

    text: ClassVar[str] = "(mean R + ({shift}))"

    shift: Finite = -0.1

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        return group.mean(value) + self.shift


@dataclass(frozen=True)
class SoftMean(Baseline):
    """tau log mean e^(R / tau) over the group, tau the `temperature`: the value of the policy that
    is best under a divergence of weight tau from the one that sampled ("Kimi k1.5: Scaling
    Reinforcement Learning with LLMs", arXiv 2501.12599, equation 3). The group's mean for large
    tau, its best for small."""

    text: ClassVar[str] = "{temperature} log mean e^(R / {temperature})"

    temperature: Positive = 1.0

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        best = group.max(value)  # nothing overflows below it
        relative = group.mean(((value - best) / self.temperature).exp())
        return best + self.temperature * relative.log()


@dataclass(frozen=True)
class LeaveOneOut(Baseline):
    """The mean of the others in the group; 0 for a group of one. "Buy 4 REINFORCE Samples, Get a
    Baseline for Free!" (Kool et al., 2019)."""

    text: ClassVar[str] = "mean R of the others"

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        others = (group.size() - 1).to(value.dtype)
        exact = value.double()  # the rest of equal values is that value
        rest = ((group.sum(exact) - exact) / others.clamp_min(1)).to(value.dtype)
        return torch.where(others > 0, rest, torch.zeros_like(rest))


@dataclass(frozen=True)
class Median(Baseline):
    """The group's median; of an even number of values the lower of the middle two."""

    text: ClassVar[str] = "median R"

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        return group.median(value)


@dataclass(frozen=True)
class SecondBest(Baseline):
    """For the group's best the second best, for the others themselves: all but the best get 0.
    "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning", arXiv
    2503.19595, in the form for k = the group."""

    text: ClassVar[str] = "(second best R for the best, R itself for others)"

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        rank, size = group.rank(value), group.size().long()
        zero = torch.zeros_like(value)
        best = sequence(t).sum(torch.where(group.units & (rank == size - 1), 1.0, zero)) > 0
        second = group.sum(torch.where(rank == size - 2, value, zero))
        return torch.where(best & (size > 1), second, value)


@dataclass(frozen=True)
class LengthWeighted(Baseline):
    """The group's mean, every sequence weighted by its steps: the baseline of least variance if a
    gradient's squared norm grows with the length. "On-Policy RL with Optimal Reward Baseline",
    arXiv 2505.23585."""

    text: ClassVar[str] = "sum(length R) / sum(length)"

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        length = sequence(t).size().double()
        mean = group.sum(length * value) / group.sum(length).clamp_min(1)
        return mean.to(value.dtype)


@dataclass(frozen=True)
class SignalBaseline(Baseline):
    """A baseline that another part measured: `signals` by name (a critic's value, the return of a
    greedy answer, a tracker's mean)."""

    text: ClassVar[str] = "{name}"

    name: str = "value"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        return t.signals[self.name]


@dataclass(frozen=True)
class LeastVariance(Baseline):
    """sum w^2 n R / sum w^2 n over the group, w the sequence's ratio and n the squared norm of its
    gradient (`signals.gradient_norm_squared`): of all constants the one that gives the weighted
    gradient the least variance. "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs"."""

    text: ClassVar[str] = (
        "sum(w^2 n R) / sum(w^2 n), w = pi_{numerator} / pi_{denominator}, n = squared gradient"
        " norm"
    )

    numerator: str = "old"
    denominator: str = "behaviour"

    def needs(self) -> tuple[str, ...]:
        names = (f"log_probs.{self.numerator}", f"log_probs.{self.denominator}")
        return (*names, "signals.gradient_norm_squared")

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        rows = sequence(t)
        log_weight = 2 * rows.sum(t.log_probs[self.numerator] - t.log_probs[self.denominator])
        norm = t.signals["gradient_norm_squared"]
        # A common factor cancels: the largest is 1, so that no product overflows.
        weight = norm * (log_weight - group.max(log_weight)).nan_to_num(nan=-torch.inf).exp()
        return group.sum(weight * value) / group.sum(weight).clamp_min(1e-30)


@dataclass(frozen=True)
class TokenOptimal(Baseline):
    """At every position t of the group, sum_i G_it W_it / sum_i W_it with W_it the sum of
    1 - 2 pi + sum_a pi(a)^2 over the steps so far, the squared norm of the score of the logits.
    Optimal token baseline; needs `sum_prob_squared`. With a `cap` each of these counts min(r,
    cap)^2 times, r the ratio of `old` to `behaviour`: least variance for gradients that are
    weighted by `rejection.Truncated(cap=cap)`."""

    cap: Positive | None = None

    def needs(self) -> tuple[str, ...]:
        weighted = () if self.cap is None else ("log_probs.behaviour",)
        return ("sum_prob_squared", "log_probs.old", *weighted)

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        assert t.sum_prob_squared is not None
        norm = 1 - 2 * t.log_probs["old"].exp() + t.sum_prob_squared
        if self.cap is not None:
            log_ratio = log_difference(t.log_probs["old"], t.log_probs["behaviour"], t.mask)
            norm = norm * exp(2 * log_ratio.clamp_max(math.log(self.cap)))
        so_far = torch.where(t.mask, norm, torch.zeros_like(norm)).cumsum(1)
        steps = norm.shape[1]
        at = torch.arange(steps, device=norm.device).expand_as(group.ids)
        ids = numbered(group.ids * steps + at)
        place = Group(ids, t.mask)
        return place.sum(so_far * value) / place.sum(so_far).clamp_min(1e-12)

    def formula(self) -> str:
        cap = "" if self.cap is None else f" times min(pi_old / pi_behaviour, {shown(self.cap)})^2"
        return (
            "sum(W R) / sum(W) at the same position, W = sum over the steps so far of "
            f"(1 - 2 pi_old + sum_a pi_old(a)^2){cap}"
        )


@dataclass(frozen=True)
class VirtualMean(Baseline):
    """The mean of the group and of one answer more that earned `best`, so that a group of wrong
    answers is below it. A group of one has none, as in the authors' code. "NGRPO: Negative-enhanced
    Group Relative Policy Optimization"."""

    text: ClassVar[str] = "(sum R + {best}) / (n + 1)"

    best: Finite = 1.0
    verdict: ClassVar[bool] = True

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        mean = (group.sum(value) + self.best) / (group.size() + 1).to(value.dtype)
        return torch.where(group.size() > 1, mean, torch.zeros_like(mean))


@dataclass(frozen=True)
class Shrinkage(Baseline):
    """w V + (1 - w) mean of the group, V the prior's `signals.<name>`; w as `shrinkage` of
    mbrl/policy_gradient/measures/trackers.py. "V_0.5: Generalist Value Model as a Prior for Sparse
    RL Rollouts", arXiv 2603.10848."""

    text: ClassVar[str] = (
        "(w V + (1 - w) mean R), V = {name}, w = v / (v + max((mean R - V)^2 - v, 0)), v = "
        "1 / (4 n)"
    )

    name: str = "prior_value"
    verdict: ClassVar[bool] = True

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, value: Tensor, group: Group, t: Trajectories) -> Tensor:
        prior, mean = t.signals[self.name], group.mean(value)
        weight = shrinkage(prior, mean, group.size().to(value.dtype))
        return weight * prior + (1 - weight) * mean
