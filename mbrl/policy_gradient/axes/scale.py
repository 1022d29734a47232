"""Scales: what a difference from the baseline is divided by."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import CountOrZero, Finite, NonNegative, Positive
from mbrl.policy_gradient.axes.option import Option, ascending, one_of, shown
from mbrl.policy_gradient.axes.reward import outcome
from mbrl.policy_gradient.groups import BATCH, LARGEST, Group, first_steps, sequence
from mbrl.policy_gradient.groups import group as grouped
from mbrl.types import Trajectories

SMALLEST = 1e-4  # variance of success rates: below it a Beta density has no digits in float32


@dataclass(frozen=True)
class Scale(Option):
    """(values [B, T], values less their baseline [B, T], their group, trajectories) to divisors
    [B, T]."""

    @abstractmethod
    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class One(Scale):
    """No division."""

    text: ClassVar[str] = "1"

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        return torch.ones_like(value)


@dataclass(frozen=True)
class Std(Scale):
    """The sample standard deviation (1 in a group of one if `alone` is "one") plus `eps`."""

    eps: Positive = 1e-4
    alone: str = "zero"
    correction: CountOrZero = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.alone, ("zero", "one"), "alone")

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        std = group.std(value, self.correction)
        if self.alone == "one":
            std = torch.where(group.size() > 1, std, torch.ones_like(std))
        return std + self.eps

    def formula(self) -> str:
        std = "std R" if self.correction == 1 else f"std R over n - {self.correction}"
        alone = ", 1 for one alone," if self.alone == "one" else ""
        return f"({std}{alone} + {shown(self.eps)})"


@dataclass(frozen=True)
class BatchStd(Scale):
    """The sample standard deviation of the values over the whole batch, plus `eps`."""

    text: ClassVar[str] = "(std of R over the batch + {eps})"

    eps: Positive = 1e-6

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        return grouped(t, BATCH, group.units).std(value) + self.eps


@dataclass(frozen=True)
class MedianDeviation(Scale):
    """The group's median of distances to its median, plus `eps`."""

    text: ClassVar[str] = "(median |R - median R| + {eps})"

    eps: Positive = 1e-3

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        return group.median((value - group.median(value)).abs()) + self.eps


@dataclass(frozen=True)
class VirtualStd(Scale):
    """The sample standard deviation of the group and of one answer more that earned `best`, plus
    `eps`; 1 for a group of one. See `baselines.VirtualMean`."""

    text: ClassVar[str] = "(std of R and one answer more of {best} + {eps})"

    best: Finite = 1.0
    eps: Positive = 1e-6
    verdict: ClassVar[bool] = True

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        size = group.size().to(value.dtype)
        mean = (group.sum(value) + self.best) / (size + 1)
        squared = group.sum((value - mean) ** 2) + (self.best - mean) ** 2
        std = torch.where(size > 1, (squared / size).sqrt(), torch.ones_like(size))
        return std + self.eps


@dataclass(frozen=True)
class BetaDensity(Scale):
    """The density at the group's mean p of the Beta distribution whose parameters follow, by
    moments, those of p over the batch's groups: alpha = max(1, 1 + a / 3), beta = max(1, 1 + b / 3)
    with a, b of the fit. Rewards are `low` to `high`. At least `least`. "BNPO: Beta Normalization
    Policy Optimization"."""

    text: ClassVar[str] = (
        "max(density at (mean R - {low}) / ({high} - {low}) of a Beta fitted to the batch's "
        "means, {least})"
    )

    low: NonNegative = 0.0
    high: NonNegative = 1.0
    least: Positive = 1e-6
    verdict: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.low, self.high)

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        mean = ((group.mean(value) - self.low) / (self.high - self.low)).clamp(0, 1)
        groups = grouped(t, BATCH, first_steps(group))
        centre, spread = groups.mean(mean), groups.variance(mean)
        alpha, beta = beta_parameters(centre, torch.where(groups.size() > 1, spread, 1.0))
        density = beta_density(mean, alpha, beta)
        return (density * (self.high - self.low)).clamp_min(self.least)


def beta_parameters(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """BNPO's alpha and beta for a mean and a variance of groups' means."""
    left = mean * (1 - mean) / variance.clamp_min(SMALLEST) - 1
    return (1 + left * mean / 3).clamp_min(1), (1 + left * (1 - mean) / 3).clamp_min(1)


def beta_density(p: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """p^(alpha - 1) (1 - p)^(beta - 1) / B(alpha, beta)."""
    whole = torch.lgamma(alpha + beta) - torch.lgamma(alpha) - torch.lgamma(beta)
    log_density = torch.xlogy(alpha - 1, p) + torch.xlogy(beta - 1, 1 - p) + whole
    return log_density.clamp_max(LARGEST).exp()


@dataclass(frozen=True)
class VarianceGate(Scale):
    """1 / (sigmoid(-s / `temperature`) min(1, max(z, 1) / v)) with s the deviation of the prompt's
    outcomes (1 for one alone), z that of the outcomes' z-scores at all steps of the batch and v
    that of the values at all steps, both plus `eps`: intrinsic values count where outcomes do not
    differ, and never more than outcomes do. "InfoPO: Information-Driven Policy Optimization for
    User-Centric Agents"."""

    text: ClassVar[str] = (
        "(1 / (sigmoid(-s / {temperature}) min(1, max(std z, 1) / std R))), s = std of the prompt's"
        " outcomes, std z and std R over all steps, + {eps}, of the outcomes' z-scores and of R"
    )

    temperature: Positive = 0.05
    eps: Positive = 1e-6

    def needs(self) -> tuple[str, ...]:
        return ("groups.prompt",)

    def __call__(self, value: Tensor, centred: Tensor, group: Group, t: Trajectories) -> Tensor:
        rows, steps = grouped(t, ("prompt",), first_steps(sequence(t))), grouped(t, BATCH, t.mask)
        earned = outcome(t)
        spread = rows.std(earned)
        outer = steps.std((earned - rows.mean(earned)) / (spread + self.eps)) + self.eps
        smaller = (steps.std(value) + self.eps) / outer.clamp_min(1)
        spread = torch.where(rows.size() > 1, spread, torch.ones_like(spread))
        return smaller.clamp_min(1) * (1 + (spread / self.temperature).clamp_max(LARGEST).exp())
