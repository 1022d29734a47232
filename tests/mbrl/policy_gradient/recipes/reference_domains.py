"""Slow implementations of the recipes of domains, stages and several parts."""

import math
import statistics

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    clipped,
    gains,
    geometric,
    give,
    k3,
    prompts,
    sequence_mean,
    spread,
    token_mean,
    z_scores,
)


def bare(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    return -token_mean(gains(batch, lambda r, a, x: clipped(r, a)))


def compared(batch: list[Sequence], worth: dict[int, float]) -> Tensor:
    """As `bare`, with other returns, by the place of a sequence."""
    for group in prompts(batch):
        values = [worth[batch.index(s)] for s in group]
        for s, value in zip(group, values, strict=True):
            give(s, (value - statistics.fmean(values)) / (spread(values) + 1e-4))
    return -token_mean(gains(batch, lambda r, a, x: clipped(r, a)))


def spark(batch: list[Sequence]) -> Tensor:
    z_scores(batch, 1e-9)
    rows = gains(batch, lambda r, a, x: clipped(r, a))
    return 0.001 * token_mean([[k3(x) for x in s.steps] for s in batch]) - token_mean(rows)


def apriel(batch: list[Sequence]) -> Tensor:
    worth: dict[int, float] = {}
    for group in prompts(batch):
        right = [s for s in group if s.total > 0]
        share, lengths = len(right) / len(group), [len(s) for s in right]
        for s in group:
            value = s.total
            if s.total > 0:
                span = max(lengths) - min(lengths) + 1
                value *= 1 - 0.5 * share * (len(s) - min(lengths)) / span
            worth[batch.index(s)] = value
    return compared(batch, worth)


def try_again(batch: list[Sequence]) -> Tensor:
    worth = {}
    for i, s in enumerate(batch):
        paid = sum(x.reward * 0.5**x.turn for x in s.steps)
        worth[i] = paid - 0.5 * s.steps[-1].signals["repeated"]
    return compared(batch, worth)


def datamind(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    place = min(1.0, max(x.signals["round"] for s in batch for x in s.steps) / 350)
    mu = 0.05 + 0.5 * (0.9 - 0.05) * (1 + math.cos(math.pi * place))

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        kept = clipped(r, a, 0.2, 0.28)
        return kept.clamp(min=10.0 * a) if a < 0 else kept

    rows = gains(batch, gain)
    own, shown = list[Tensor](), list[Tensor]()
    for s, row in zip(batch, rows, strict=True):
        for x, gain in zip(s.steps, row, strict=True):
            if x.signals["demonstration"] == 1:
                shown.append(-gain - x.log_prob)
            else:
                own.append(-gain)
    total = torch.zeros((), dtype=torch.float64)
    for values, weight in ((own, 1 - mu), (shown, mu)):
        if values:
            total = total + weight * torch.stack(values).mean()
    return total


def mpo(batch: list[Sequence]) -> Tensor:
    """Of pairs; of several chosen or other answers to a prompt the mean over either."""

    def logistic(x: Tensor) -> Tensor:
        return -torch.log(1 / (1 + torch.exp(-x)))

    total, terms, likely = torch.zeros((), dtype=torch.float64), list[Tensor](), list[Tensor]()
    for group in prompts(batch):
        sides: dict[float, list[Tensor]] = {0.0: [], 1.0: []}
        for s in group:
            moved = torch.stack([x.log_prob - x.log_probs["reference"] for x in s.steps]).sum()
            sides[s.steps[0].signals["chosen"]].append(0.1 * moved)
            if s.steps[0].signals["chosen"] == 1:
                likely += [-x.log_prob for x in s.steps]
        if sides[0.0] and sides[1.0]:
            r, c = (torch.stack(sides[side]).mean() for side in (0.0, 1.0))
            delta = group[0].steps[0].signals["shift"]
            bco = logistic(c - delta) + logistic(-(r - delta))
            terms.append(0.8 * logistic(c - r) + 0.2 * bco)
    if terms:
        total = total + torch.stack(terms).mean()
    if likely:
        total = total + torch.stack(likely).mean()
    return total


def signalled(name: str) -> Slow:
    """With a number of the whole sequence as its return."""

    def run(batch: list[Sequence]) -> Tensor:
        return compared(batch, {i: s.steps[-1].signals[name] for i, s in enumerate(batch)})

    return run


def cory(batch: list[Sequence]) -> Tensor:
    return signalled("team")(batch) + 0.04 * token_mean([[k3(x) for x in s.steps] for s in batch])


def hill(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    return -token_mean(gains(batch, lambda r, a, x: clipped(r, a, 0.2, 0.28)))


def dynaweb(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = [[clipped(geometric(s), s.advantage[0], 3e-4, 4e-4)] for s in batch]
    shown = [[x.signals["demonstration"] * -x.log_prob for x in s.steps] for s in batch]
    return sequence_mean(shown) - sequence_mean(rows)


SLOW: dict[str, Slow] = {
    "nemotron_cascade": bare,
    "apriel": apriel,
    "try_again": try_again,
    "datamind": datamind,
    "spark": spark,
    "mpo": mpo,
    "a2fm": signalled("routed"),
    "cory": cory,
    "hill": hill,
    "dynaweb": dynaweb,
    "syn_grpo": bare,
}
