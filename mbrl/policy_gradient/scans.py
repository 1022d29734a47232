"""Recursions along the steps of sequences [B, T]: discounted sums, values at the next or previous
start of a segment, generalised advantages."""

import torch
from torch import Tensor

from mbrl.networks.linear_scan import linear_scan
from mbrl.policy_gradient.groups import first_steps, segment
from mbrl.types import Trajectories


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
    last = value.gather(1, before.clamp_min(0))
    return torch.where(before >= 0, last, torch.zeros_like(value))


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
