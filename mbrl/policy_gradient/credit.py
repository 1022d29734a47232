"""Credit: from rewards at steps to what every step is held responsible for."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.networks.linear_scan import linear_scan
from mbrl.policy_gradient.groups import exp, first_steps, group, nodes, segment, sequence
from mbrl.policy_gradient.option import Option
from mbrl.policy_gradient.ratios import log_difference
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Credit(Option):
    """(reward [B, T], trajectories) to values [B, T], and which steps stand for one value each."""

    def units(self, t: Trajectories) -> Tensor:
        """[B, T] bool: one step for each value that is counted in a group's statistics."""
        return t.mask

    @abstractmethod
    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Outcome(Credit):
    """The sequence's whole reward at each of its steps."""

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(sequence(t))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        return sequence(t).sum(reward)


@dataclass(frozen=True)
class ReturnToGo(Credit):
    """Discounted rewards from a step on; with `segment` from the step's segment on (its whole
    reward, then gamma times the next one's), alike at all steps of a segment."""

    gamma: float = 1.0
    segment: str | None = None

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",) if self.segment else ()

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(segment(t, self.segment)) if self.segment else t.mask

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        gamma = torch.full_like(reward, self.gamma)
        if self.segment is None:
            return between(reward, gamma, t.mask)
        return segment_return(reward, gamma, t, self.segment)


@dataclass(frozen=True)
class SegmentReward(Credit):
    """The reward of the step's own segment, alike at all its steps."""

    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(segment(t, self.segment))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        return segment(t, self.segment).sum(reward)


@dataclass(frozen=True)
class Bootstrapped(Credit):
    """Credit that a critic's values go into, and that has targets for it. A sequence that was cut
    off continues with `signals.next_value` where that is given; one that ended with 0."""

    gamma: float = 0.99
    lam: float = 0.95

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

    lam: float = 1.0
    rho: float = 1.0  # bound of the weight of each error
    c: float = 1.0  # bound of the trace's ratios
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
class Measured(Credit):
    """A value that another part measured for every segment (a critic of whole turns): `signals` by
    name, alike at all steps of a segment. The reward is not read."""

    name: str
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}", f"segments.{self.segment}")

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(segment(t, self.segment))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        return t.signals[self.name]


@dataclass(frozen=True)
class RescaledReturn(Credit):
    """Discounted rewards from a segment on, over the square root of how many segments these are,
    alike at all steps of a segment."""

    gamma: float = 1.0
    segment: str = "turn"

    def needs(self) -> tuple[str, ...]:
        return (f"segments.{self.segment}",)

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(segment(t, self.segment))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        gamma = torch.full_like(reward, self.gamma)
        left = discounted_sum(self.units(t).to(reward.dtype), torch.ones_like(reward))
        total = segment_return(reward, gamma, t, self.segment)
        return total / segment_first(left.clamp_min(1).sqrt(), t, self.segment).clamp_min(1)


@dataclass(frozen=True)
class CutReturn(Credit):
    """Discounted rewards from a segment on, up to and with the first one that did not match what
    was recorded (`signals.<name>` 1/2 or less at its first step)."""

    gamma: float = 0.5
    segment: str = "turn"
    name: str = "matched"

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}", f"segments.{self.segment}")

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(segment(t, self.segment))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        goes_on = (t.signals[self.name] > 0.5).to(reward.dtype)
        return segment_return(reward, self.gamma * goes_on, t, self.segment)


@dataclass(frozen=True)
class TreeDifference(Credit):
    """Of every node of a tree of sequences its value, the mean reward of the sequences through it,
    less that of the node before it (of the first node: of all sequences of the prompt). Nodes are
    `groups.node`, one id wherever sequences share steps."""

    node: str = "node"
    key: tuple[str, ...] = ("prompt",)

    def needs(self) -> tuple[str, ...]:
        return (f"groups.{self.node}", *(f"groups.{name}" for name in self.key))

    def units(self, t: Trajectories) -> Tensor:
        return first_steps(nodes(t, self.node))

    def __call__(self, reward: Tensor, t: Trajectories) -> Tensor:
        total, starts = sequence(t).sum(reward), self.units(t)
        value = group(t, (self.node,), starts).mean(total)
        root = group(t, self.key, first_steps(sequence(t))).mean(total)
        before = torch.where(first_steps(sequence(t)), root, previous(value, t.mask))
        gain = torch.where(starts, value - before, torch.zeros_like(value))
        return nodes(t, self.node).sum(gain)


def segment_return(reward: Tensor, carry: Tensor, t: Trajectories, name: str) -> Tensor:
    """[B, T]: the reward of the step's segment plus `carry` (at its first step) times that of the
    next one, and so on: alike at all steps of a segment."""
    parts = segment(t, name)
    return segment_first(between(parts.sum(reward), carry, first_steps(parts)), t, name)


def between(value: Tensor, carry: Tensor, starts: Tensor) -> Tensor:
    """s = value + carry s' from each of `starts` [B, T] to the next; what lies between two of them
    is passed over, and has nothing of meaning."""
    here = torch.where(starts, value, torch.zeros_like(value))
    return discounted_sum(here, torch.where(starts, carry, torch.ones_like(carry)))


def segment_first(value: Tensor, t: Trajectories, name: str) -> Tensor:
    """[B, T]: `value` at the first step of the step's segment."""
    parts = segment(t, name)
    return parts.sum(torch.where(first_steps(parts), value, torch.zeros_like(value)))


def following(value: Tensor, starts: Tensor) -> Tensor:
    """[B, T]: `value` at the next of `starts` after every position, 0 after the last."""
    here = torch.where(starts, value, torch.zeros_like(value))
    shifted = torch.cat([here[:, 1:], torch.zeros_like(here[:, :1])], 1)
    passed = torch.cat([~starts[:, 1:], torch.zeros_like(starts[:, :1])], 1)
    return discounted_sum(shifted, passed.to(value.dtype))


def previous(value: Tensor, starts: Tensor) -> Tensor:
    """`value` [B, T] at the last of `starts` before every position, 0 before the first."""
    at = torch.arange(value.shape[1], device=value.device)
    seen = torch.where(starts, at, torch.full_like(at, -1)).cummax(1).values
    before = torch.cat([torch.full_like(seen[:, :1], -1), seen[:, :-1]], 1)
    found = value.gather(1, before.clamp_min(0))
    return torch.where(before >= 0, found, torch.zeros_like(value))


def gae(
    r_t: Tensor,
    v_tm1: Tensor,
    v_t: Tensor,
    discount_t: Tensor,
    mask: Tensor,
    truncated: Tensor,
    lam: float,
) -> Tensor:
    """Advantages [B, T]: sums of temporal-difference errors r_t + discount_t v_t - v_tm1, each
    weighted by the discounts and `lam` on the way to it. Steps outside `mask` are passed over; a
    sum ends with its episode (discount 0, or `truncated`), so that a row may hold several."""
    zero = torch.zeros_like(r_t)
    delta = torch.where(mask, r_t + discount_t * v_t - v_tm1, zero)
    carry = torch.where(mask, lam * discount_t * ~truncated, torch.ones_like(r_t))
    return discounted_sum(delta, carry)


def next_values(t: Trajectories) -> Tensor:
    """[B, T]: the value after every step. That of the next step in the mask, or 0 after the last
    one, unless `signals.next_value` says it."""
    if "next_value" in t.signals:
        return torch.where(t.mask, t.signals["next_value"], torch.zeros_like(t.reward))
    return following(t.signals["value"], t.mask)


def discounted_sum(value: Tensor, discount: Tensor) -> Tensor:
    """s_t = value_t + discount_t s_{t+1} along the rows of [B, T], 0 after the last."""
    back = linear_scan(discount.flip(1).transpose(0, 1), value.flip(1).transpose(0, 1))
    return back.transpose(0, 1).flip(1)
