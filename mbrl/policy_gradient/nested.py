"""Credits that compare with several groups at once, or with groups of groups: what they return is
an advantage already, so that a term with them takes `Zero` and `One`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.policy_gradient.credit import Credit, Outcome, ReturnToGo
from mbrl.policy_gradient.groups import Group, first_steps, group, segment
from mbrl.types import Trajectories


@dataclass(frozen=True)
class NestedGroups(Credit):
    """The mean of a turn's z-scores in groups that share the last 1, 2, ... observations (`keys`,
    in that order), the one of k observations weighted by (k + 1)^`alpha`. Groups of one, and scores
    of 0, are passed over. "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic
    Tasks"."""

    keys: tuple[str, ...] = ("state", "history_2", "history_3")
    gamma: float = 0.95
    alpha: float = 1.0
    eps: float = 1e-6
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        names = ("prompt", *self.keys)
        return (*(f"groups.{name}" for name in names), f"segments.{self.segment}")

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(segment(t, self.segment))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value, units = ReturnToGo(self.gamma, self.segment)(reward, t), self.units(t)
        total, weights = torch.zeros_like(value), torch.zeros_like(value)
        for k, name in enumerate(self.keys, start=1):
            alike = group(t, ("prompt", name), units)
            centred = value - alike.mean(value)
            z = centred / (alike.std(value, correction=0) + self.eps)
            counts = (alike.size() > 1) & (centred.abs() > self.eps)  # not what rounding left
            weight = counts.to(value.dtype) * (k + 1) ** self.alpha
            total, weights = total + weight * z, weights + weight
        return total / weights.clamp_min(1)


@dataclass(frozen=True)
class TokenWeighted(Credit):
    """The outcome's z-score over the steps of the group, so that long answers count more; over its
    sequences, as in GRPO, where any of them is `limit` or more. "From Uniform to Heterogeneous:
    Tailoring Policy Optimization to Every Token's Nature"."""

    limit: float = 5.0
    eps: float = 1e-6
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def units(self, t: Trajectories) -> Tensor:
        return Outcome().units(t)

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value = Outcome()(reward, t)
        tokens, rows = group(t, self.key, t.mask), group(t, self.key, self.units(t))
        by_token = (value - tokens.mean(value)) / (tokens.std(value, correction=0) + self.eps)
        alone = rows.size() <= 1
        mean = torch.where(alone, torch.zeros_like(value), rows.mean(value))
        std = torch.where(alone, torch.ones_like(value), rows.std(value))
        extreme = tokens.max(by_token.abs()) >= self.limit
        return torch.where(extreme, (value - mean) / (std + self.eps), by_token)


@dataclass(frozen=True)
class BundleRisk(Credit):
    """A mixture of risks of bundles of questions. A paper is one answer to every question of a
    bundle (`groups.bundle`, `groups.paper`), S its score. With the quantiles q_l, q_u that were
    tracked (`signals.quantile_low`, `quantile_high`) its advantage is

        (mixing (-(q_l - S)_+ / l) + ((S - q_l)_+ - (S - q_u)_+) / (u - l)) / (mixing + 1)

    over the deviation of the bundle's papers, shared out by how far each answer is above the mean
    of its question. "RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM
    Post-Training". (At the outcome's own mean the shares are 0 / 0: then all are alike.) Quantiles
    are tracked in steps of a tenth of an answer."""

    verdict: ClassVar[bool] = True

    low: float = 0.2
    high: float = 0.8
    mixing: float = 1.5
    eps: float = 1e-6

    def needs(self) -> tuple[str, ...]:
        names = ("prompt", "bundle", "paper")
        quantiles = ("signals.quantile_low", "signals.quantile_high")
        return (*(f"groups.{name}" for name in names), *quantiles)

    def units(self, t: Trajectories) -> Tensor:
        return Outcome().units(t)

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value, units = Outcome()(reward, t), self.units(t)
        papers = group(t, ("bundle", "paper"), units)
        score = papers.sum(value)
        q_low, q_high = t.signals["quantile_low"], t.signals["quantile_high"]
        middle = (score - q_low).clamp_min(0) - (score - q_high).clamp_min(0)
        tail = -(q_low - score).clamp_min(0) / (self.low + self.eps)
        mixed = self.mixing * tail + middle / (self.high - self.low + self.eps)
        bundle = group(t, ("bundle",), first_steps(Group(papers.ids, units)))
        std = torch.where(bundle.size() > 1, bundle.std(score), torch.ones_like(score))
        advantage = mixed / (self.mixing + 1) / (std + self.eps)
        above = value - group(t, ("prompt",), units).mean(value)
        total = papers.sum(above)
        even = total.abs() <= self.eps
        share = above / torch.where(even, torch.ones_like(total), total)
        return advantage * torch.where(even, 1 / papers.size(), share)


@dataclass(frozen=True)
class SetValue(Credit):
    """mean R times the share of distinct sequences (`groups.cluster`) of the step's set
    (`groups.set`), alike for all in it; one value for each set. "Polychromic Objectives for
    Reinforcement Learning"."""

    def needs(self) -> tuple[str, ...]:
        return ("groups.set", "groups.cluster")

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(group(t, ("set",), Outcome().units(t)))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        units = Outcome().units(t)
        whole, kinds = group(t, ("set",), units), group(t, ("set", "cluster"), units)
        distinct = whole.sum(first_steps(kinds).to(reward.dtype)) / whole.size()
        return whole.mean(Outcome()(reward, t)) * distinct
