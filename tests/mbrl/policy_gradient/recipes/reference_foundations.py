"""Slow implementations of the base recipes."""

import math
import statistics

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    alike,
    centred,
    clipped,
    gains,
    geometric,
    give,
    k3,
    log_likelihood,
    product,
    prompts,
    ratio,
    recorded,
    returns,
    sequence_mean,
    sequence_sum,
    share_of,
    token_mean,
    weigh,
    z_scores,
)


def plain(r: Tensor, a: float, step: Step) -> Tensor:
    return clipped(r, a)


def higher(r: Tensor, a: float, step: Step) -> Tensor:
    return clipped(r, a, 0.2, 0.28)


def reinforce(batch: list[Sequence]) -> Tensor:
    for s in batch:
        s.advantage = returns(s)
    return -sequence_sum(log_likelihood(batch))


def rloo(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        for s in group:
            others = [o.total for o in group if o is not s]
            give(s, s.total - (statistics.fmean(others) if others else 0.0))
    return -sequence_sum(log_likelihood(batch))


def remax(batch: list[Sequence]) -> Tensor:
    for s in batch:
        give(s, s.total - s.steps[0].signals["greedy_return"])
    return -sequence_sum(log_likelihood(batch))


def advantages_of_a_critic(batch: list[Sequence]) -> None:
    """Generalised advantage estimates, whitened over the steps of the batch."""
    gamma, lam = 0.99, 0.95
    for s in batch:
        s.advantage = [0.0] * len(s)
        carried = 0.0
        for i in reversed(range(len(s))):
            step = s.steps[i]
            after = s.steps[i + 1].signals["value"] if i + 1 < len(s) else 0.0
            goes_on = 0.0 if step.terminated else 1.0
            delta = step.reward + gamma * goes_on * after - step.signals["value"]
            carried = delta + gamma * lam * goes_on * (0.0 if step.truncated else carried)
            s.advantage[i] = carried
    flat = [a for s in batch for a in s.advantage]
    mean, std = statistics.fmean(flat), statistics.stdev(flat)
    for s in batch:
        s.advantage = [(a - mean) / (std + 1e-8) for a in s.advantage]


def ppo(batch: list[Sequence]) -> Tensor:
    advantages_of_a_critic(batch)
    return -token_mean(gains(batch, plain))


def a2c(batch: list[Sequence]) -> Tensor:
    for s in batch:
        s.advantage = []
        for i, step in enumerate(s.steps):
            later = [0.99 ** (j - i) * s.steps[j].reward for j in range(i, len(s))]
            s.advantage.append(sum(later) - step.signals["value"])  # rows end in 0
    return -token_mean(log_likelihood(batch)) - 0.01 * token_mean(entropies(batch))


def entropies(batch: list[Sequence]) -> list[list[Tensor]]:
    return [[x.entropy_now for x in s.steps] for s in batch]


def vtrace(batch: list[Sequence]) -> Tensor:
    """Remark 1 of the paper: v_s = V_s + delta_s + gamma c_s (v_{s+1} - V_{s+1})."""
    for s in batch:
        s.advantage = [0.0] * len(s)
        target, value = 0.0, 0.0  # of the step after
        for i in reversed(range(len(s))):
            x = s.steps[i]
            r = min(1.0, math.exp(x.log_probs["old"] - x.log_probs["behaviour"]))
            here = x.signals["value"]
            s.advantage[i] = r * (x.reward + 0.99 * target - here)
            target = here + r * (x.reward + 0.99 * value - here) + 0.99 * r * (target - value)
            value = here
    return -token_mean(log_likelihood(batch)) - 0.01 * token_mean(entropies(batch))


def grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    penalty = sequence_mean(gains(batch, lambda r, a, step: k3(step)))
    return -sequence_mean(gains(batch, plain)) + 0.04 * penalty


def dr_grpo(batch: list[Sequence]) -> Tensor:
    centred(batch)
    return -sequence_sum(gains(batch, plain)) / 1024


def reinforce_pp_baseline(batch: list[Sequence]) -> Tensor:
    centred(batch)
    flat = [a for s in batch for a in s.advantage]
    mean, std = statistics.fmean(flat), statistics.stdev(flat)
    for s in batch:
        s.advantage = [(a - mean) / (std + 1e-8) for a in s.advantage]
    k2 = gains(batch, lambda r, a, x: (x.log_prob - x.log_probs["reference"]) ** 2 / 2)
    return -token_mean(gains(batch, plain)) + 0.01 * token_mean(k2)


def lite_ppo(batch: list[Sequence]) -> Tensor:
    """Less the mean of the prompt, over the deviation of all rewards."""
    std = statistics.stdev(s.total for s in batch) + 1e-6
    for group in prompts(batch):
        mean = statistics.fmean(s.total for s in group)
        for s in group:
            give(s, (s.total - mean) / std)
    return -token_mean(gains(batch, plain))


def grpo_passk(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        ordered = sorted(group, key=lambda s: s.total)
        for s in group:
            give(s, 0.0)
        if len(group) > 1:
            give(ordered[-1], ordered[-1].total - ordered[-2].total)
    return -token_mean(gains(batch, plain))


def opo(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        b = sum(len(s) * s.total for s in group) / sum(len(s) for s in group)
        for s in group:
            give(s, s.total - b)
    return -sequence_sum(log_likelihood(batch))


def skywork_or1(batch: list[Sequence]) -> Tensor:
    """Groups whose answers earned the same are not there; an entropy bonus of the given weight."""
    z_scores(batch)
    kept = [s for g in prompts(batch) if len({s.total for s in g}) > 1 for s in g]
    if not kept:
        return torch.zeros((), dtype=torch.float64)
    rows = gains(kept, lambda r, a, x: clipped(r, a) + x.signals["entropy_weight"] * x.entropy_now)
    return -token_mean(rows)


def optimal_token_baseline(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        norms: dict[tuple[int, int], float] = {}
        for i, s in enumerate(group):
            so_far = 0.0
            for step in s.steps:
                so_far += 1 - 2 * math.exp(step.log_probs["old"]) + step.sum_prob_squared
                norms[i, step.at] = so_far
        for s in group:
            s.advantage = []
            for step, value in zip(s.steps, returns(s), strict=True):
                above = below = 0.0
                for j, other in enumerate(group):
                    for x, g in zip(other.steps, returns(other), strict=True):
                        if x.at == step.at:
                            above += norms[j, x.at] * g
                            below += norms[j, x.at]
                s.advantage.append(value - above / max(below, 1e-12))
    return -sequence_sum(log_likelihood(batch))


def dapo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    weights = []
    for s in batch:
        totals = {o.total for o in batch if o.prompt == s.prompt}
        cut = any(step.truncated for step in s.steps)
        weights.append(0.0 if cut or len(totals) == 1 else 1.0)
    return -token_mean(weigh(gains(batch, higher), alike(batch, weights)))


def dual_clip_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def dual(r: Tensor, a: float, step: Step) -> Tensor:
        kept = clipped(r, a)
        return torch.maximum(kept, torch.full_like(kept, 3.0 * a)) if a < 0 else kept

    return -token_mean(gains(batch, dual))


def two_sided_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    kept = gains(batch, lambda r, a, step: clipped(torch.clamp(r, max=4.0), a))
    return -token_mean(kept) + 0.001 * token_mean(gains(batch, lambda r, a, step: k3(step)))


def gspo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = [[clipped(geometric(s), s.advantage[0], 3e-4, 4e-4)] for s in batch]
    return -sequence_mean(rows)


def gspo_token(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = []
    for s in batch:
        whole = geometric(s).detach()
        rows.append(
            [
                clipped(whole * torch.exp(x.log_prob - x.log_prob.detach()), a, 3e-4, 4e-4)
                for x, a in zip(s.steps, s.advantage, strict=True)
            ]
        )
    return -sequence_mean(rows)


def gmpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = []
    for s in batch:
        a = s.advantage[0]
        logs = [torch.log(ratio(x)) for x in s.steps]
        kept = [torch.clamp(v, max=0.4) if a >= 0 else torch.clamp(v, min=-0.4) for v in logs]
        rows.append([a * torch.exp(torch.stack(kept).sum() / len(s))])
    return -sequence_mean(rows)


def cispo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    return -token_mean(
        gains(batch, lambda r, a, x: torch.clamp(r.detach(), max=5.0) * a * x.log_prob)
    )


def sapo_soft_gate(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def soft(r: Tensor, a: float, step: Step) -> Tensor:
        tau = 1.0 if a > 0 else 1.05
        return 1 / (1 + torch.exp(-tau * (r - 1))) * 4 / tau * a

    return -sequence_mean(gains(batch, soft))


def vespo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = []
    for s in batch:
        w, a = product(s).detach(), s.advantage[0]
        k, rate = (2.0, 3.0) if a > 0 else (3.0, 2.0)
        phi = math.exp(rate) * w**k * torch.exp(-rate * w)
        rows.append([phi * a * x.log_prob for x in s.steps])
    return -token_mean(rows)


def luspo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = [[len(s) * clipped(geometric(s), s.advantage[0], 3e-4, 4e-4)] for s in batch]
    return -sequence_mean(rows)


def truncated_is_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    weights = [[min(math.exp(v), 2.0) for v in recorded(s)] for s in batch]
    return -token_mean(weigh(gains(batch, plain), weights))


def masked_is_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    whole = [math.exp(sum(recorded(s))) for s in batch]
    weights = alike(batch, [w if w <= 3.0 else 0.0 for w in whole])
    return -token_mean(weigh(gains(batch, plain), weights))


def geometric_rejection_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    means = [math.exp(statistics.fmean(recorded(s))) for s in batch]
    weights = alike(batch, [1.0 if 0.999 <= m <= 1.001 else 0.0 for m in means])
    return -token_mean(weigh(gains(batch, plain), weights))


def off_policy_mask_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    weights = []
    for s in batch:
        fell = statistics.fmean(x.log_probs["old"] - float(x.log_prob.detach()) for x in s.steps)
        weights.append(0.0 if s.advantage[0] < 0 and fell > 0.1 else 1.0)
    kept = sequence_mean(weigh(gains(batch, plain), alike(batch, weights)))
    return -kept + 0.001 * sequence_mean(gains(batch, lambda r, a, step: r * k3(step)))


def top_entropy_grpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    entropies = sorted((x.entropy for s in batch for x in s.steps), reverse=True)
    least = entropies[share_of(len(entropies), 0.2) - 1]
    weights = [[1.0 if x.entropy >= least else 0.0 for x in s.steps] for s in batch]
    return -token_mean(weigh(gains(batch, higher), weights))


SLOW: dict[str, Slow] = {
    f.__name__: f
    for f in (
        reinforce,
        rloo,
        remax,
        ppo,
        a2c,
        vtrace,
        grpo,
        dr_grpo,
        reinforce_pp_baseline,
        lite_ppo,
        grpo_passk,
        opo,
        optimal_token_baseline,
        skywork_or1,
        dapo,
        dual_clip_grpo,
        two_sided_grpo,
        gspo,
        gspo_token,
        gmpo,
        cispo,
        sapo_soft_gate,
        vespo,
        luspo,
        truncated_is_grpo,
        masked_is_grpo,
        geometric_rejection_grpo,
        off_policy_mask_grpo,
        top_entropy_grpo,
    )
}
