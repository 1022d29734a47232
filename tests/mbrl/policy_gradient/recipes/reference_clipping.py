"""Slow implementations of the recipes that change the gate, the aggregation or what is kept."""

import itertools
import math
import statistics

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_foundations import plain
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    alike,
    clipped,
    gains,
    give,
    log_likelihood,
    prompts,
    ratio,
    sequence_sum,
    share_of,
    token_mean,
    weigh,
    z_scores,
)


def covariances(batch: list[Sequence]) -> dict[int, float]:
    """By the identity of each step."""
    steps = [(x, a) for s in batch for x, a in zip(s.steps, s.advantage, strict=True)]
    mean_a = statistics.fmean(a for _, a in steps)
    mean_p = statistics.fmean(float(x.log_prob.detach()) for x, _ in steps)
    return {id(x): (a - mean_a) * (float(x.log_prob.detach()) - mean_p) for x, a in steps}


def clip_cov(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    found = covariances(batch)
    steps = [(x, a) for s in batch for x, a in zip(s.steps, s.advantage, strict=True)]
    free = [
        x
        for x, a in steps
        if 1.0 < found[id(x)] < 5.0 and float(clipped(ratio(x), a)) >= float(ratio(x) * a)
    ]
    count = max(1, math.floor(2e-4 * len(steps)))
    out = {id(x) for x in sorted(free, key=lambda x: x.signals["uniform"])[:count]}
    rows = gains(batch, lambda r, a, x: (0.0 if id(x) in out else 1.0) * clipped(r, a))
    return -token_mean(rows)


def kl_cov(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    found = covariances(batch)
    count = max(1, math.floor(2e-4 * len(found)))
    chosen = set(sorted(found, key=lambda i: -found[i])[:count])

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        return r * a - (torch.abs(torch.log(r)) if id(x) in chosen else 0.0)

    return -token_mean(gains(batch, gain))


def epo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def penalty(r: Tensor, a: float, x: Step) -> Tensor:
        past = x.signals["entropy_history"]
        outside = not 0.8 * past <= float(x.entropy_now.detach()) <= 1.2 * past
        return -0.001 * (x.entropy_now - (0.1 if outside else 0.0))

    return -token_mean(gains(batch, plain)) + token_mean(gains(batch, penalty))


def epo_hinge(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def penalty(r: Tensor, a: float, x: Step) -> Tensor:
        past, h = x.signals["entropy_history"], x.entropy_now
        outside = h * 0
        if float(h) < 0.8 * past:
            outside = 0.8 * past - h
        elif float(h) > 1.2 * past:
            outside = h - 1.2 * past
        return -0.001 * (h - x.signals["entropy_phase"] * outside)

    return -token_mean(gains(batch, plain)) + token_mean(gains(batch, penalty))


def aepo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    entropies = [x.entropy for s in batch for x in s.steps]
    mean, std = statistics.fmean(entropies), statistics.stdev(entropies)
    for s in batch:
        s.advantage = [
            a * (1 + 0.2 * (x.entropy - mean) / std)
            for x, a in zip(s.steps, s.advantage, strict=True)
        ]

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        if a < 0:
            return torch.clamp(clipped(r, a), min=3.0 * a)
        return torch.minimum(r, 1.2 / r.detach() * r) * a

    return -token_mean(gains(batch, gain))


def arpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    shared: dict[int, list[float]] = {}
    for s in batch:
        for node in {x.groups["node"] for x in s.steps}:
            shared.setdefault(node, []).append(s.advantage[0])
    for s in batch:
        s.advantage = [statistics.fmean(shared[x.groups["node"]]) for x in s.steps]
    return -token_mean(gains(batch, plain))


def balanced_aggregation(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = gains(batch, plain)
    total = torch.zeros((), dtype=torch.float64)
    for sign in (1, -1):
        mine = [i for i, s in enumerate(batch) if s.advantage[0] * sign > 0]
        if mine:
            total = total + len(mine) / len(batch) * token_mean([rows[i] for i in mine])
    return -total


def d3s(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    share = 0.5 + 0.5 * batch[0].steps[0].signals["schedule"]
    size = share_of(len(batch), share)
    ordered = sorted(batch, key=lambda s: statistics.fmean(s.advantage))
    choices = []
    for tops in range(size + 1):
        part = ordered[: size - tops] + (ordered[-tops:] if tops else [])
        choices.append((statistics.pvariance([statistics.fmean(s.advantage) for s in part]), part))
    best = max(v for v, _ in choices)
    kept = {id(s) for s in next(part for v, part in choices if v >= best - 1e-9)}
    order = sorted(
        (-abs(a) * x.entropy, i, x.at)
        for i, s in enumerate(batch)
        for x, a in zip(s.steps, s.advantage, strict=True)
        if id(s) in kept
    )
    steps = {(i, at) for _, i, at in order[: share_of(len(order), share)]}
    weights = [
        [1.0 if id(s) in kept and (i, x.at) in steps else 0.0 for x in s.steps]
        for i, s in enumerate(batch)
    ]
    return -token_mean(weigh(gains(batch, plain), weights))


def reinforce_ada(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    kept: set[int] = set()
    for group in prompts(batch):
        sides = [[s for s in group if s.total > 0], [s for s in group if s.total <= 0]]
        for mine, other in itertools.permutations(sides):
            room = max(2, 4 - len(other))
            mine.sort(key=lambda s: s.steps[0].signals["uniform"])
            kept |= {id(s) for s in mine[:room]}
    weights = alike(batch, [1.0 if id(s) in kept else 0.0 for s in batch])
    return -token_mean(weigh(gains(batch, plain), weights))


def tree(batch: list[Sequence]) -> None:
    leaves: dict[int, list[float]] = {}
    for s in batch:
        for node in {x.groups["node"] for x in s.steps}:
            leaves.setdefault(node, []).append(s.total)
    for group in prompts(batch):
        root = statistics.fmean(s.total for s in group)
        for s in group:
            s.advantage, before, parent = [], None, root
            for x in s.steps:
                node = x.groups["node"]
                if before is not None and node != before:
                    parent = statistics.fmean(leaves[before])
                before = node
                s.advantage.append(statistics.fmean(leaves[node]) - parent)


def rose(batch: list[Sequence]) -> Tensor:
    tree(batch)
    return -sequence_sum(gains(batch, plain)) / 1024


def rose_length_aware(batch: list[Sequence]) -> Tensor:
    tree(batch)
    for group in prompts(batch):
        right = [s for s in group if s.total > 0]
        if not right:
            continue
        shortest = min(right, key=len)
        for s in right:
            k = 0
            for mine, other in zip(s.steps, shortest.steps, strict=False):
                if (mine.at, mine.groups["node"]) != (other.at, other.groups["node"]):
                    break
                k += 1
            if s is shortest or k == len(s):
                continue
            f = 1 - (len(shortest) - k) / (len(s) - k)
            s.advantage[k:] = [a - abs(a) * f for a in s.advantage[k:]]
    return -sequence_sum(gains(batch, plain)) / 1024


def otr(batch: list[Sequence]) -> Tensor:
    for s in batch:
        give(s, 1.1 * s.total - 0.1)
    return -token_mean(log_likelihood(batch))


SLOW: dict[str, Slow] = {
    f.__name__: f
    for f in (
        clip_cov,
        kl_cov,
        epo,
        epo_hinge,
        aepo,
        arpo,
        balanced_aggregation,
        d3s,
        reinforce_ada,
        rose,
        rose_length_aware,
        otr,
    )
}
