"""Slow implementations of recipes by what follows normalisation and by what is left out."""

import math
import statistics

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_advantages import dual, plain, signal
from tests.mbrl.policy_gradient.recipes.reference_multi_turn import episodes, turns
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    alike,
    centred,
    clipped,
    gains,
    give,
    k3,
    prompts,
    recorded,
    sequence_mean,
    share_of,
    spread,
    token_mean,
    weigh,
    z_scores,
)


def adora(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    for group in prompts(batch):
        right = [len(s) for s in group if s.total > 0]
        wrong = [len(s) for s in group if s.total <= 0]
        long = bool(right) and max(right) > (statistics.fmean(wrong) if wrong else 0.0)
        for s in group:
            give(s, s.advantage[0] * (1.0 if long or not right else 0.1))
    return -token_mean(gains(batch, plain))


def token_scores(batch: list[Sequence]) -> None:
    for group in prompts(batch):
        flat = [s.total for s in group for _ in s.steps]
        mean, std = statistics.fmean(flat), statistics.pstdev(flat)
        found = [(s.total - mean) / (std + 1e-6) for s in group]
        if max(abs(v) for v in found) >= 5:
            totals = [s.total for s in group]
            alone = len(group) == 1
            centre = 0.0 if alone else statistics.fmean(totals)
            width = 1.0 if alone else spread(totals)
            found = [(s.total - centre) / (width + 1e-6) for s in group]
        for s, v in zip(group, found, strict=True):
            give(s, v)


def hapo_token_aware(batch: list[Sequence]) -> Tensor:
    token_scores(batch)
    logs = sorted(math.log(max(x.entropy, 1e-8)) for s in batch for x in s.steps)
    pivot = logs[round(0.8 * (len(logs) - 1))]
    up, down = logs[-1] - pivot, pivot - logs[0]

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        d = math.log(max(x.entropy, 1e-8)) - pivot
        h = d / up if d > 0 else d / down
        low, high = 0.2 * (1 - min(h, 0)), 0.2 * (1 + max(h, 0))
        inside = 1 - low / 2 < float(r) < 1 + high / 2
        if (h > 0 and not inside) or (h <= 0 and inside):
            a = a * (1 + h)
        kept = clipped(r, a, low, high)
        return torch.maximum(kept, torch.full_like(kept, 10 * a)) if a < 0 else kept

    return -token_mean(gains(batch, gain))


def hapo(batch: list[Sequence]) -> Tensor:
    return hapo_token_aware(batch)


def simple_tir(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    weights = [0.0 if any(x.signals["void"] > 0.5 for x in s.steps) else 1.0 for s in batch]
    return -token_mean(weigh(gains(batch, plain), alike(batch, weights)))


def mini_o3(batch: list[Sequence]) -> Tensor:
    episodes(batch, 1e-6)
    weights = [0.0 if any(x.truncated for x in s.steps) else 1.0 for s in batch]
    return -token_mean(weigh(gains(batch, plain), alike(batch, weights)))


def grpo_roc(batch: list[Sequence]) -> Tensor:
    kept: list[Sequence] = []
    for group in prompts(batch):
        right = sorted((s for s in group if s.total > 0), key=lambda s: signal(s, "penalty"))
        wrong = [s for s in group if s.total <= 0]
        keep = math.ceil(len(group) / 2)
        bad = max(round(len(wrong) * keep / len(group)), min(2, len(wrong)))
        good = min(max(keep - bad, min(2, len(right))), len(right), keep)
        kept += right[:good] + wrong[: keep - good]
    for s in batch:
        give(s, 0.0)
    episodes(kept, 1e-6)
    weights = [1.0 if any(s is o for o in kept) else 0.0 for s in batch]
    rows = gains(batch, lambda r, a, step: clipped(r, a, 0.2, 0.28))
    return -token_mean(weigh(rows, alike(batch, weights)))


def seed_grpo(batch: list[Sequence]) -> Tensor:
    centred(batch)
    for group in prompts(batch):
        names = [s.steps[0].groups["cluster"] for s in group]
        shares = [names.count(k) / len(group) for k in set(names)]
        entropy = -sum(math.log(p) for p in shares) / len(shares)
        most = max(math.log(len(group)), 1e-6)
        for s in group:
            give(s, s.advantage[0] * (1 - 0.02 * entropy / most))
    return -token_mean(gains(batch, plain))


def ace(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    for s in batch:
        if s.advantage[0] < 0:
            rise = statistics.fmean(recorded(s, "old", "reference"))
            give(s, s.advantage[0] * (1 + math.log1p(math.exp(rise))))
    return -token_mean(gains(batch, plain))


def likelihood(s: Sequence) -> float:
    return statistics.fmean(x.log_probs["old"] for x in s.steps)


def xrpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    for group in prompts(batch):
        centre = statistics.fmean(likelihood(s) for s in group)
        for s in group:
            if s.total > 0:
                a = s.advantage[0]
                bonus = max(2.5 * (1 - math.exp(likelihood(s) - centre)), 0.0)
                give(s, a + min(bonus, max(0.5 * a, 0.0)))
    return -token_mean(gains(batch, plain))


def xrpo_seeded(batch: list[Sequence]) -> Tensor:
    return xrpo(batch)


def arm_progrpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    for group in prompts(batch):
        if sum(s.total for s in group) == 0:
            continue
        for s in group:
            least = sorted(x.log_probs["old"] for x in s.steps)[: share_of(len(s), 0.2)]
            gap = signal(s, "prompt_confidence") - math.exp(statistics.fmean(least))
            give(s, s.advantage[0] + 0.3 * gap)
    return -token_mean(gains(batch, lambda r, a, x: clipped(r, a, 0.2, 0.28)))


def ettrl(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        values = [signal(s, "majority_reward") for s in group]
        means = [statistics.fmean(x.entropy for x in s.steps) for s in group]
        for s, v, h in zip(group, values, means, strict=True):
            a = (v - statistics.fmean(values)) / (spread(values) + 1e-4)
            give(s, a * (1 + (statistics.fmean(means) - h) / statistics.fmean(means)))
    return -token_mean(gains(batch, plain))


def dart(batch: list[Sequence]) -> Tensor:
    episodes(batch, 1e-6)
    means = [statistics.fmean(x.entropy for x in turn) for s in batch for turn in turns(s)]
    least = sorted(means, reverse=True)[share_of(len(means), 0.8) - 1]
    weights = []
    for s in batch:
        row = []
        for turn in turns(s):
            kept = statistics.fmean(x.entropy for x in turn) >= least
            for x in turn:
                w = math.exp(x.log_probs["old"] - x.log_probs["behaviour"])
                row.append(min(w, 1.0) if kept else 0.0)
        weights.append(row)
    rows = weigh(dual(batch, 0.1, 0.28, 10.0), weights)
    penalty = gains(batch, lambda r, a, step: k3(step))
    return -sequence_mean(rows) + 0.1 * sequence_mean(penalty)


SLOW: dict[str, Slow] = {
    f.__name__: f
    for f in (
        adora,
        hapo_token_aware,
        hapo,
        simple_tir,
        mini_o3,
        grpo_roc,
        seed_grpo,
        ace,
        xrpo,
        xrpo_seeded,
        arm_progrpo,
        ettrl,
        dart,
    )
}
