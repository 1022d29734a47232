"""Slow implementations of recipes by baselines, scales and rewards."""

import math
import statistics

import torch
from scipy.stats import beta as beta_law
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    alike,
    clipped,
    gains,
    give,
    k3,
    log_likelihood,
    product,
    prompts,
    ratio,
    sequence_mean,
    sequence_sum,
    spread,
    token_mean,
    weigh,
)


def plain(r: Tensor, a: float, step: Step) -> Tensor:
    return clipped(r, a)


def grouped(batch: list[Sequence], name: str) -> list[list[Sequence]]:
    ids = sorted({s.steps[0].groups[name] for s in batch})
    return [[s for s in batch if s.steps[0].groups[name] == i] for i in ids]


def z(group: list[Sequence], values: list[float], eps: float = 1e-4) -> None:
    for s, v in zip(group, values, strict=True):
        give(s, (v - statistics.fmean(values)) / (spread(values) + eps))


def signal(s: Sequence, name: str) -> float:
    return s.steps[0].signals[name]


def penalty(batch: list[Sequence]) -> list[list[Tensor]]:
    return gains(batch, lambda r, a, step: k3(step))


def estimates(s: Sequence, rewards: list[float], gamma: float = 0.99) -> list[float]:
    """Generalised advantage estimates, lambda 0.95."""
    found, carried = [0.0] * len(s), 0.0
    for i in reversed(range(len(s))):
        after = s.steps[i + 1].signals["value"] if i + 1 < len(s) else 0.0
        delta = rewards[i] + gamma * after - s.steps[i].signals["value"]
        carried = delta + gamma * 0.95 * carried
        found[i] = carried
    return found


def whiten_steps(batch: list[Sequence]) -> None:
    flat = [a for s in batch for a in s.advantage]
    mean, std = statistics.fmean(flat), statistics.stdev(flat)
    for s in batch:
        s.advantage = [(a - mean) / (std + 1e-8) for a in s.advantage]


def whiten(batch: list[Sequence], eps: float) -> None:
    values = [s.advantage[0] for s in batch]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    for s in batch:
        give(s, (s.advantage[0] - mean) / (std + eps))


def mc_grpo(batch: list[Sequence]) -> Tensor:
    """As the authors' trainer: of every group one answer, at the place of `torch.median`, is not in
    the batch that is learned from."""
    kept = []
    for group in prompts(batch):
        rewards = torch.tensor([s.total for s in group], dtype=torch.float64)
        middle = rewards.median()
        deviation = (rewards - middle).abs().median() + 1e-3
        order = sorted(range(len(group)), key=lambda i: float(rewards[i]))
        pivot = order[(len(group) - 1) // 2]
        assert rewards[pivot] == middle
        for i, s in enumerate(group):
            give(s, float((rewards[i] - middle) / deviation))
        kept += [s for i, s in enumerate(group) if i != pivot]
    return -sequence_mean(gains(kept, plain)) + 0.04 * sequence_mean(penalty(kept))


def bnpo(batch: list[Sequence]) -> Tensor:
    means = [statistics.fmean(s.total for s in group) for group in prompts(batch)]
    mean, variance = statistics.fmean(means), statistics.variance(means)
    common = mean * (1 - mean) / variance - 1
    alpha, beta = max(1, 1 + common * mean / 3), max(1, 1 + common * (1 - mean) / 3)
    for group, p in zip(prompts(batch), means, strict=True):
        density = float(beta_law.pdf(p, alpha, beta))
        for s in group:
            give(s, min(1e6, 1 / density if density > 0 else math.inf) * (s.total - p))
    return -token_mean(gains(batch, plain))


def by_outcome(batch: list[Sequence], right: float, wrong: float) -> Tensor:
    for s in batch:
        give(s, right if s.total > 0 else wrong)
    return -token_mean(gains(batch, plain))


def psr(batch: list[Sequence]) -> Tensor:
    return by_outcome(batch, 1.0, 0.0)


def nsr(batch: list[Sequence]) -> Tensor:
    return by_outcome(batch, 0.0, -1.0)


def w_reinforce(batch: list[Sequence]) -> Tensor:
    return by_outcome(batch, 0.1, -1.0)


def ngrpo(batch: list[Sequence]) -> Tensor:
    weights = {}
    for group in prompts(batch):
        values = [s.total for s in group] + [1.0]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        if len(group) == 1:
            mean, std = 0.0, 1.0
        for s in group:
            give(s, (s.total - mean) / (std + 1e-6))
            weights[id(s)] = 0.0 if all(o.total == 1 for o in group) else 1.0
    rows = gains(batch, lambda r, a, step: clipped(r, a, 0.16, 0.24))
    return -token_mean(weigh(rows, alike(batch, [weights[id(s)] for s in batch])))


def gdpo(batch: list[Sequence], gate: bool = False) -> Tensor:
    sums = {id(s): 0.0 for s in batch}
    for group in prompts(batch):
        lengths = [signal(s, "length_reward") * (s.total if gate else 1) for s in group]
        for values in ([s.total for s in group], lengths):
            z(group, values)
            for s in group:
                sums[id(s)] += s.advantage[0]
    for s in batch:
        give(s, sums[id(s)])
    whiten(batch, 1e-4)
    return -token_mean(gains(batch, plain))


def gdpo_conditioned(batch: list[Sequence]) -> Tensor:
    return gdpo(batch, gate=True)


def riskpo(batch: list[Sequence]) -> Tensor:
    low, high, q_low, q_high = 0.2, 0.8, 0.6, 1.4
    means = {
        s.prompt: statistics.fmean(o.total for o in group)
        for group in prompts(batch)
        for s in group
    }
    for bundle in grouped(batch, "bundle"):
        papers = grouped(bundle, "paper")
        scores = [sum(s.total for s in paper) for paper in papers]
        std = statistics.stdev(scores) if len(scores) > 1 else 1.0
        for paper, score in zip(papers, scores, strict=True):
            middle = (max(score - q_low, 0) - max(score - q_high, 0)) / (high - low + 1e-6)
            tail = -max(q_low - score, 0) / (low + 1e-6)
            advantage = (1.5 * tail + middle) / 2.5 / (std + 1e-6)
            above = [s.total - means[s.prompt] for s in paper]
            for s, share in zip(paper, above, strict=True):
                even = abs(sum(above)) <= 1e-6
                give(s, advantage * (1 / len(paper) if even else share / sum(above)))
    return -token_mean(gains(batch, plain))


def dual(batch: list[Sequence], low: float, high: float, bound: float) -> list[list[Tensor]]:
    def gain(r: Tensor, a: float, step: Step) -> Tensor:
        kept = clipped(r, a, low, high)
        return torch.maximum(kept, torch.full_like(kept, bound * a)) if a < 0 else kept

    return gains(batch, gain)


def fapo(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        values = []
        for s in group:
            flawed = s.total > 0 and signal(s, "flawed") > 0.5
            values.append((1.0 if s.total > 0 else -1.0) - (1.0 if flawed else 0.0))
        z(group, values, 1e-6)
    return -token_mean(dual(batch, 0.2, 0.28, 10.0))


def drpo_decoupled(batch: list[Sequence]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for group in prompts(batch):
        scores = [torch.stack([x.log_prob for x in s.steps]).mean() for s in group]
        right = [i for i, s in enumerate(group) if s.total > 0]
        wrong = [i for i, s in enumerate(group) if s.total <= 0]
        if not right or not wrong:
            continue
        weight = {i: math.exp((1 - len(group[i]) / 8192) / 0.1) for i in right}
        good = sum((weight[i] * scores[i] for i in right), torch.zeros(())) / sum(weight.values())
        bad = torch.logsumexp(torch.stack([scores[i] for i in wrong]) / 10, 0)
        total = total + len(group) / len(batch) * (good - 10 * bad)
    r = gains_of_ratio(batch)
    divergence = torch.stack([x - 1 - torch.log(x) for x in r]).mean()
    return -total + 1e3 / 2 * torch.clamp(divergence - 1e-4, min=0) ** 2


def gains_of_ratio(batch: list[Sequence]) -> list[Tensor]:
    return [ratio(x) for s in batch for x in s.steps]


def stable_reinforce(batch: list[Sequence]) -> Tensor:
    for s in batch:
        give(s, s.total * (1 + 0.5 * signal(s, "consistency")) + 0.5 * signal(s, "format_reward"))
    whiten(batch, 1e-8)
    weights = [1.0 if abs(s.advantage[0]) <= 3 else 0.0 for s in batch]

    def gain(r: Tensor, a: float, step: Step) -> Tensor:
        return clipped(torch.clamp(r, 1e-3, 1e3), a)

    return -sequence_mean(weigh(gains(batch, gain), alike(batch, weights)))


def nlpo(batch: list[Sequence]) -> Tensor:
    for s in batch:
        paid = [x.reward - 0.1 * (x.log_probs["old"] - x.log_probs["reference"]) for x in s.steps]
        s.advantage = estimates(s, paid)
    whiten_steps(batch)
    return -token_mean(gains(batch, plain))


def offline(batch: list[Sequence]) -> None:
    for s in batch:
        give(s, max(s.total - signal(s, "reference_value"), 0.0))


def a_lol(batch: list[Sequence]) -> Tensor:
    offline(batch)
    weights = [float(torch.clamp(product(s, "reference").detach(), 0.1, 1.9)) for s in batch]
    return -sequence_sum(weigh(log_likelihood(batch), alike(batch, weights)))


def a_lol_ref_free(batch: list[Sequence]) -> Tensor:
    offline(batch)
    return -sequence_sum(log_likelihood(batch))


def a_lol_seq(batch: list[Sequence]) -> Tensor:
    offline(batch)
    rows = gains(
        batch, lambda r, a, x: torch.clamp(r.detach(), 0.1, 1.9) * a * x.log_prob, "reference"
    )
    return -sequence_sum(rows)


def a_lol_kl(batch: list[Sequence]) -> Tensor:
    offline(batch)
    k1 = gains(batch, lambda r, a, x: x.log_prob - x.log_probs["reference"])
    return -sequence_sum(log_likelihood(batch)) + 0.1 * sequence_sum(k1)


def mssr(batch: list[Sequence]) -> Tensor:
    for s in batch:
        give(s, s.total - signal(s, "tracked_value"))
    whiten(batch, 1e-8)
    for s in batch:
        s.advantage = [
            a + min(0.4 * x.entropy, abs(a) / 2) for a, x in zip(s.advantage, s.steps, strict=True)
        ]
    return -token_mean(gains(batch, plain))


def polychromic(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        sets = grouped(group, "set")
        worth = [
            statistics.fmean(s.total for s in one)
            * len({s.steps[0].groups["cluster"] for s in one})
            / len(one)
            for one in sets
        ]
        for one, value in zip(sets, worth, strict=True):
            for s in one:
                give(s, value - statistics.fmean(worth))
    for s in batch:
        if signal(s, "vine_window") <= 0.5:
            s.advantage = estimates(s, [x.reward for x in s.steps])
    return -token_mean(gains(batch, plain)) + 0.01 * token_mean(penalty(batch))


def v_half(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        n, mean = len(group), statistics.fmean(s.total for s in group)
        prior = signal(group[0], "prior_value")
        noise = 1 / n  # of the mean of rewards of -1 and 1
        bias = max((2 * mean - 1 - (2 * prior - 1)) ** 2 - noise, 0.0)
        weight = bias / (bias + noise)
        for s in group:
            give(s, s.total - weight * mean - (1 - weight) * prior)
    return -token_mean(gains(batch, plain))


def weighted_grpo(batch: list[Sequence]) -> Tensor:
    for pair in grouped(batch, "pair"):
        values = []
        for s in pair:
            hard, right = signal(s, "hard") > 0.5, s.total > 0
            values.append((1.0 if right else -1.0) * (2.0 if hard == right else 1.0))
        z(pair, values)
    return -token_mean(gains(batch, plain))


def urpa(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        z(group, [signal(s, "consistency_reward") for s in group])
    return -token_mean(gains(batch, plain)) + 0.04 * token_mean(penalty(batch))


def ps_grpo(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        z(group, [signal(s, "group_similarity") for s in group])
    return -token_mean(gains(batch, plain)) + 0.04 * token_mean(penalty(batch))


def q_hawkeye(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        scores = [min(max(signal(s, "predicted_score"), 1.0), 5.0) for s in group]
        z(group, [s.total for s in group])
        for s in group:
            give(s, s.advantage[0] * math.exp(-0.2 * statistics.pvariance(scores) / 4))
    apart = gains(
        batch, lambda r, a, x: x.signals["contrast_weight"] * k3(x, "degraded").clamp(max=10.0)
    )
    kept = -sequence_mean(log_likelihood(batch)) + 0.04 * sequence_mean(penalty(batch))
    return kept - 1e-4 * token_mean(apart)


SLOW: dict[str, Slow] = {
    f.__name__: f
    for f in (
        mc_grpo,
        bnpo,
        psr,
        nsr,
        w_reinforce,
        ngrpo,
        gdpo,
        gdpo_conditioned,
        riskpo,
        fapo,
        drpo_decoupled,
        stable_reinforce,
        nlpo,
        a_lol,
        a_lol_ref_free,
        a_lol_seq,
        a_lol_kl,
        mssr,
        polychromic,
        v_half,
        weighted_grpo,
        urpa,
        ps_grpo,
        q_hawkeye,
    )
}
