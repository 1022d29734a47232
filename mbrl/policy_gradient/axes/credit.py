"""Credit: from rewards at steps to what every step is held responsible for."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mbrl.config import Finite, Fraction, Positive, Probability
from mbrl.policy_gradient.axes.option import Option, ascending, shown
from mbrl.policy_gradient.axes.ratio import log_difference
from mbrl.policy_gradient.groups import Group, exp, first_steps, group, nodes, segment, sequence
from mbrl.policy_gradient.scans import (
    between,
    discounted_sum,
    following,
    gae,
    next_values,
    previous,
    segment_first,
    segment_return,
)
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Credit(Option):
    """(reward [B, T], trajectories) to values [B, T], and which steps stand for one value each."""

    def unit(self) -> str:
        """What has one value: "step", "sequence", or the name of a segment."""
        return "step"

    def units(self, t: Trajectories) -> Tensor:
        """[B, T] bool: one step for each value that is counted in a group's statistics."""
        unit = self.unit()
        if unit == "step":
            return t.mask
        return first_steps(sequence(t) if unit == "sequence" else segment(t, unit))

    @abstractmethod
    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Outcome(Credit):
    """The sequence's whole reward at each of its steps."""

    text: ClassVar[str] = "sum of r over the sequence"

    def unit(self) -> str:
        return "sequence"

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        return sequence(t).sum(reward)


OUTCOME = Outcome()  # made once: settings are checked when they are made, which does not compile


@dataclass(frozen=True)
class ReturnToGo(Credit):
    """Discounted rewards from a step on; with `segment` from the step's segment on (its whole
    reward, then gamma times the next one's), alike at all steps of a segment."""

    gamma: Probability = 1.0
    segment: str | None = None

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",) if self.segment else ()

    def unit(self) -> str:
        return self.segment or "step"

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        gamma = torch.full_like(reward, self.gamma)
        if self.segment is None:
            return between(reward, gamma, t.mask)
        return segment_return(reward, gamma, t, self.segment)

    def formula(self) -> str:
        if self.segment is None:
            return f"sum_k {shown(self.gamma)}^k r_(t+k)"
        return f"sum_k {shown(self.gamma)}^k r of the k-th {self.segment} from this one on"


@dataclass(frozen=True)
class SegmentReward(Credit):
    """The reward of the step's own segment, alike at all its steps."""

    text: ClassVar[str] = "sum of r over the {segment}"

    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def unit(self) -> str:
        return self.segment

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        return segment(t, self.segment).sum(reward)


@dataclass(frozen=True)
class Bootstrapped(Credit):
    """Credit that a critic's values go into, and that has targets for it. A sequence that was cut
    off continues with `signals.next_value` where that is given; one that ended with 0."""

    gamma: Probability = 0.99
    lam: Probability = 0.95

    def needs(self) -> tuple[str, ...]:
        return ("signals.value",)

    def discount(self, t: Trajectories) -> Tensor:
        return self.gamma * (~t.terminated).to(t.reward.dtype)

    @abstractmethod
    def targets(self, reward: Tensor, t: Trajectories) -> Tensor:
        """What the critic's values [B, T] are to become."""
        ...


@dataclass(frozen=True)
class GAE(Bootstrapped):
    """Generalised advantage estimates of `signals.value`, "High-Dimensional Continuous Control
    Using Generalized Advantage Estimation", arXiv 1506.02438, equation 16."""

    text: ClassVar[str] = "sum_k ({gamma} * {lam})^k delta_(t+k), delta = r + {gamma} V(next) - V"

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value, after = t.signals["value"], next_values(t)
        return gae(reward, value, after, self.discount(t), t.mask, t.truncated, self.lam)

    def targets(self, reward: Tensor, t: Trajectories) -> Tensor:
        return self(reward, t) + t.signals["value"]


@dataclass(frozen=True)
class VTrace(Bootstrapped):
    """rho_t (r_t + discount_t v_{t+1} - V_t), v the V-trace targets for the policy `target` from
    data of `behaviour`: "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures", arXiv 1802.01561, section 4. On data of the target itself, with
    both bounds at least 1, v is the n-step return (`lam` = 1)."""

    text: ClassVar[str] = (
        "min({rho}, w) (r + {gamma} v(next) - V), v = V-trace targets with traces {lam} "
        "min({c}, w), w = pi_{target} / pi_{behaviour}"
    )

    lam: Probability = 1.0
    rho: Positive = 1.0  # bound of the weight of each error
    c: Positive = 1.0  # bound of the trace's ratios
    target: str = "old"
    behaviour: str = "behaviour"

    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), f"log_probs.{self.target}", f"log_probs.{self.behaviour}")

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        weight, excess = self._traced(reward, t)
        goes_on = (~t.truncated).to(reward.dtype)
        after = next_values(t) + goes_on * following(excess, t.mask)
        return weight * (reward + self.discount(t) * after - t.signals["value"])

    def targets(self, reward: Tensor, t: Trajectories) -> Tensor:
        return t.signals["value"] + self._traced(reward, t)[1]

    def _traced(self, reward: Tensor, t: Trajectories) -> tuple[Tensor, Tensor]:
        """The weights rho [B, T], and v - V [B, T]."""
        log_ratio = log_difference(t.log_probs[self.target], t.log_probs[self.behaviour], t.mask)
        weight = exp(log_ratio.clamp_max(math.log(self.rho)))
        trace = self.lam * exp(log_ratio.clamp_max(math.log(self.c)))
        discount, zero = self.discount(t), torch.zeros_like(reward)
        error = reward + discount * next_values(t) - t.signals["value"]
        carry = torch.where(t.mask, discount * trace * ~t.truncated, torch.ones_like(reward))
        return weight, discounted_sum(torch.where(t.mask, weight * error, zero), carry)


@dataclass(frozen=True)
class SegmentValue(Credit):
    """A value that another part measured for every segment (a critic of whole turns): `signals` by
    name, alike at all steps of a segment. The reward is not read."""

    text: ClassVar[str] = "{name} of the {segment}"

    name: str
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}", f"segments.{self.segment}")

    def unit(self) -> str:
        return self.segment

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        return t.signals[self.name]


@dataclass(frozen=True)
class RescaledReturn(Credit):
    """Discounted rewards from a segment on, over the square root of how many segments these are,
    alike at all steps of a segment."""

    text: ClassVar[str] = (
        "(sum_k {gamma}^k r of the k-th {segment} from this one on) / sqrt(their number)"
    )

    gamma: Probability = 1.0
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def unit(self) -> str:
        return self.segment

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        gamma = torch.full_like(reward, self.gamma)
        left = discounted_sum(self.units(t).to(reward.dtype), torch.ones_like(reward))
        total = segment_return(reward, gamma, t, self.segment)
        return total / segment_first(left.clamp_min(1).sqrt(), t, self.segment).clamp_min(1)


@dataclass(frozen=True)
class TreeDifference(Credit):
    """Of every node of a tree of sequences its value, the mean reward of the sequences through it,
    less that of the node before it (of the first node: of all sequences of the prompt). Nodes are
    `groups.node`, one id wherever sequences share steps."""

    text: ClassVar[str] = (
        "mean outcome of the sequences through this {node} - that through the one before "
        "(first: of all that share {key})"
    )

    node: str = "node"
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return (f"groups.{self.node}", *(f"groups.{name}" for name in self.key))

    def unit(self) -> str:
        return self.node

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(nodes(t, self.node))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        total, starts = sequence(t).sum(reward), self.units(t)
        value = group(t, (self.node,), starts).mean(total)
        root = group(t, self.key, first_steps(sequence(t))).mean(total)
        before = torch.where(first_steps(sequence(t)), root, previous(value, t.mask))
        gain = torch.where(starts, value - before, torch.zeros_like(value))
        return nodes(t, self.node).sum(gain)


@dataclass(frozen=True)
class NestedGroups(Credit):
    """The mean of a turn's z-scores in groups that share the last 1, 2, ... observations (`keys`,
    in that order), the one of k observations weighted by (k + 1)^`alpha`. Groups of one, and scores
    of 0, are passed over. "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic
    Tasks"."""

    text: ClassVar[str] = (
        "mean over k of z-scores of sum_j {gamma}^j r over {segment}s, deviation + {eps}, among"
        " those that share {keys} (the k-th), weighted by (k + 1)^{alpha}"
    )

    keys: tuple[str, ...] = ("state", "history_2", "history_3")
    gamma: Probability = 0.95
    alpha: Finite = 1.0
    eps: Positive = 1e-6
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        names = ("prompt", *self.keys)
        return (*(f"groups.{name}" for name in names), f"segments.{self.segment}")

    def unit(self) -> str:
        return self.segment

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value, units = (
            segment_return(reward, torch.full_like(reward, self.gamma), t, self.segment),
            self.units(t),
        )
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

    text: ClassVar[str] = (
        "z-score of the outcome, deviation + {eps}, over the steps that share {key}; over their"
        " sequences if any of it is {limit} or more"
    )

    limit: Positive = 5.0
    eps: Positive = 1e-6
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return tuple(f"groups.{name}" for name in self.key)

    def unit(self) -> str:
        return "sequence"

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value = OUTCOME(reward, t)
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

    text: ClassVar[str] = (
        "({mixing} (-(q_l - S)+ / {low}) + ((S - q_l)+ - (S - q_u)+) / ({high} - {low})) / "
        "({mixing} + 1) / (std S + {eps}), S = score of the paper, shared out by how far an "
        "answer is above its question's mean"
    )

    verdict: ClassVar[bool] = True

    low: Fraction = 0.2
    high: Fraction = 0.8
    mixing: Finite = 1.5
    eps: Positive = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.low, self.high)

    def needs(self) -> tuple[str, ...]:
        names = ("prompt", "bundle", "paper")
        quantiles = ("signals.quantile_low", "signals.quantile_high")
        return (*(f"groups.{name}" for name in names), *quantiles)

    def unit(self) -> str:
        return "sequence"

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        value, units = OUTCOME(reward, t), self.units(t)
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

    text: ClassVar[str] = "mean outcome of the set times its share of distinct sequences"

    def needs(self) -> tuple[str, ...]:
        return ("groups.set", "groups.cluster")

    def unit(self) -> str:
        return "set"

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(group(t, ("set",), OUTCOME.units(t)))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        units = OUTCOME.units(t)
        whole, kinds = group(t, ("set",), units), group(t, ("set", "cluster"), units)
        distinct = whole.sum(first_steps(kinds).to(reward.dtype)) / whole.size()
        return whole.mean(OUTCOME(reward, t)) * distinct
