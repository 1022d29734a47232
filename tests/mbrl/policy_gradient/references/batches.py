"""Batches that references are recorded on, for this library's functions and in others' words."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases

ALONE = 3  # a prompt with one answer, which others give its bare reward: left out
EVEN = 3  # answers to a prompt where all must have equally many


def batch(kind: str, seed: int) -> tuple[Trajectories, Tensor, Tensor]:
    """A batch of `cases.batch` without the lone answer.

    "all": as it is. "even": three answers to every prompt, no gaps, none truncated. "distinct":
    these with rewards of which no two of a prompt are equal. "runs": a turn is a run of chosen
    steps, up to the next gap. "histories": groups by the states of the last 2 and 3 turns, where
    there are as many.
    """
    even = kind in ("even", "distinct")
    t, log_prob, entropy = cases.batch(seed, gaps=not even)
    prompt = t.groups["prompt"][:, 0]
    place = torch.arange(len(prompt)) - torch.searchsorted(prompt.contiguous(), prompt)
    keep = prompt != ALONE
    if even:
        keep &= place < EVEN
        never = torch.zeros_like(t.truncated)
        t = dataclasses.replace(t, terminated=t.terminated | t.truncated, truncated=never)
    if kind == "distinct":
        more = 0.1 * ((place * (seed + 2)) % EVEN)[:, None]
        t = dataclasses.replace(t, reward=torch.where(t.terminated, t.reward + more, t.reward))
    if kind == "runs":
        before = torch.nn.functional.pad(t.mask[:, :-1], (1, 0))
        t.segments["turn"] = ((t.mask & ~before).long().cumsum(1) - 1).clamp_min(0)
    if kind == "histories":
        t.groups.update(histories(t))
    rows = torch.nonzero(keep)[:, 0]
    now = log_prob.detach()[rows].requires_grad_()
    return t.select(rows), now, entropy.detach()[rows]


def given(t: Trajectories) -> Tensor:
    """[B, T] advantages of either sign, alike in an answer, for code that has the loss alone."""
    return torch.where(t.mask, t.signals["predicted_score"][:, :1] - 3, 0.0)


def arrays(kind: str, seed: int) -> dict[str, Any]:
    """The same, padding 0, in verl's words; `t` is the batch itself."""
    t, log_prob, entropy_now = batch(kind, seed)
    assert t.sum_prob_squared is not None and t.entropy is not None
    return {
        "t": t,
        "log_prob": log_prob.detach().nan_to_num().requires_grad_(),
        "entropy_now": entropy_now,
        "mask": t.mask.double(),
        "reward": t.reward,
        "prompt": t.groups["prompt"][:, 0].numpy(),
        "sum_prob_squared": t.sum_prob_squared.nan_to_num(),
        "entropy": t.entropy.nan_to_num(),
        **{k: v.nan_to_num() for k, v in (t.log_probs | t.signals).items()},
    }


def histories(t: Trajectories) -> dict[str, Tensor]:
    """Ids [B, T] of the states of the last 2 and 3 turns that have a step; a turn with fewer before
    it is alone."""
    state, turn = t.groups["state"], t.segments["turn"]
    found = {f"history_{k}": torch.zeros_like(state) for k in (2, 3)}
    known: dict[tuple[int, ...], int] = {}
    for i in range(len(state)):
        there = [k for k in range(cases.TURNS) if bool((t.mask[i] & (turn[i] == k)).any())]
        states = [int(state[i][turn[i] == k][0]) for k in there]
        for n, k in enumerate(there):
            for length in (2, 3):
                past = tuple(states[n - length + 1 : n + 1]) if n + 1 >= length else (-1, i, k)
                found[f"history_{length}"][i, turn[i] == k] = known.setdefault(past, len(known))
    return found
