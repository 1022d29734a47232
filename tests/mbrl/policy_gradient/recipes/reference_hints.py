"""Slow implementations of the recipes for what a policy cannot sample."""

import math
import statistics

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    alike,
    clipped,
    gains,
    give,
    k3,
    product,
    recorded,
    sequence_mean,
    sequence_sum,
    token_mean,
    weigh,
    z_scores,
)


def kl(batch: list[Sequence], weight: float = 0.04) -> Tensor:
    return weight * sequence_mean([[k3(x) for x in s.steps] for s in batch])


def grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = gains(batch, lambda r, a, x: clipped(r, a))
    return kl(batch) - sequence_mean(rows)


def cleaner(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        kept = clipped(r, a, 0.2, 0.28)
        return kept.clamp(min=10.0 * a) if a < 0 else kept

    return -token_mean(gains(batch, gain))


def latr(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = gains(batch, lambda r, a, x: clipped(r, a))
    return 0.01 * token_mean([[k3(x) for x in s.steps] for s in batch]) - token_mean(rows)


def cog_rethinker(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = gains(batch, lambda r, a, x: clipped(r, a, 0.2, 0.28))
    shown = [[x.signals["demonstration"] * x.log_prob for x in s.steps] for s in batch]
    return -token_mean(rows) - 0.5 * token_mean(shown)


def scope(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        if x.signals["teacher"] == 1:
            p = torch.exp(x.log_prob)
            return a * p / (p + 0.1)
        return clipped(r, a)

    return kl(batch) - sequence_mean(gains(batch, gain))


def adhint(batch: list[Sequence]) -> Tensor:
    """What is right without a hint and wrong with one counts more."""
    z_scores(batch)
    rows = []
    for s in batch:
        row = []
        own = [x.entropy for x in s.steps if x.signals["teacher"] == 0]
        mean = statistics.fmean(own) if own else 0.0
        for x, a in zip(s.steps, s.advantage, strict=True):
            w = x.signals["hint_weight"]
            a *= w if a > 0 else 2 - w
            if x.signals["teacher"] == 0:
                row.append(clipped(torch.exp(x.log_prob - x.log_probs["old"]), a))
            else:
                row.append(math.exp(-abs(x.entropy - mean)) * max(a, 0.0) * x.log_prob)
        rows.append(row)
    return kl(batch) - sequence_mean(rows)


def weighted(batch: list[Sequence]) -> Tensor:
    """By what sequences are likely without the document over with it."""
    z_scores(batch)
    weights = [min(math.exp(sum(recorded(s))), 2.0) for s in batch]
    rows = weigh(gains(batch, lambda r, a, x: clipped(r, a)), alike(batch, weights))
    assert product(batch[0]) > 0
    return kl(batch) - sequence_mean(rows)


def rltf(weight: float) -> Slow:
    def run(batch: list[Sequence]) -> Tensor:
        z_scores(batch)

        def gain(r: Tensor, a: float, x: Step) -> Tensor:
            if x.signals["apart"] == 1:
                likely = 1.0 if x.log_probs["old"] >= -5.0 else 0.0
                return 0.1 * likely * x.signals["worth"] * x.log_prob
            return clipped(r, a)

        total = kl(batch) - sequence_mean(gains(batch, gain))
        if weight:
            shown = [[x.signals["demonstration"] * x.log_prob for x in s.steps] for s in batch]
            total = total - weight * sequence_mean(shown)
        return total

    return run


def tt_opd(batch: list[Sequence]) -> Tensor:
    near = [
        [0 * x.log_prob + 4.0 * x.signals["reverse_kl"] * x.signals["near"] for x in s.steps]
        for s in batch
    ]
    return grpo(batch) + sequence_mean(near)


def openclaw_rl(batch: list[Sequence]) -> Tensor:
    for s in batch:
        s.advantage = [
            2 * s.total - 1 + max(-5.0, min(5.0, x.log_probs["teacher"] - x.log_probs["old"]))
            for x in s.steps
        ]
    return -sequence_mean(gains(batch, lambda r, a, x: clipped(r, a, 0.2, 0.28)))


def int_rl(batch: list[Sequence]) -> Tensor:
    """Less the mean of the others; log-likelihoods by ratios of 1.02 at most, summed."""
    for s in batch:
        others = [o.total for o in batch if o is not s and o.prompt == s.prompt]
        give(s, s.total - (statistics.fmean(others) if others else 0.0))

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        shown = 1.0 if x.signals["demonstration"] == 1 else 0.0
        return (min(float(r.detach()), 1.02) * a + shown) * x.log_prob

    return -sequence_sum(gains(batch, gain))


def distilled(batch: list[Sequence]) -> Tensor:
    for s in batch:
        give(s, 0.0)
    return sequence_mean(
        [[x.signals["reverse_kl"] + 0 * x.log_prob for x in s.steps] for s in batch]
    )


SLOW: dict[str, Slow] = {
    "prefix_rl": grpo,
    "scope": scope,
    "adhint": adhint,
    "int_rl": int_rl,
    "fission_grpo": grpo,
    "cleaner": cleaner,
    "policy_rollout": grpo,
    "policy_rollout_weighted": weighted,
    "agent_rlvr": grpo,
    "cog_rethinker": cog_rethinker,
    "rltf_sd": rltf(0.0),
    "rltf_fm": rltf(0.1),
    "tt_opd": tt_opd,
    "openclaw_rl": openclaw_rl,
    "on_policy_distillation": distilled,
    "tcod": distilled,
    "tcod_backward": distilled,
    "latr": latr,
}
