"""Slow implementations of the recipes that change the ratio or correct for other policies."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_foundations import advantages_of_a_critic, plain
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
    sequence_mean,
    sequence_sum,
    spread,
    token_mean,
    weigh,
    z_scores,
)


def minpro(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = []
    for s in batch:
        row, least = [], math.inf
        for x, a in zip(s.steps, s.advantage, strict=True):
            own = float(ratio(x).detach())
            weight = min(own * (1.0 if math.isinf(least) else least), 5.0)
            least = min(least, own)
            row.append(weight * a * x.log_prob)
        rows.append(row)
    return -token_mean(rows)


def topr(batch: list[Sequence]) -> Tensor:
    for s in batch:
        give(s, 2 * s.total - 1)
    rows = []
    for s in batch:
        whole = float(product(s, "behaviour").detach())
        weight = 1.0 if s.advantage[0] > 0 else min(whole, 1.0)
        rows.append([weight * a * x.log_prob for x, a in zip(s.steps, s.advantage, strict=True)])
    return -sequence_sum(rows)


def masked(inside: Callable[[float, float], bool], weighted: bool = True) -> Slow:
    def run(batch: list[Sequence]) -> Tensor:
        centred(batch)

        def gain(r: Tensor, a: float, x: Step) -> Tensor:
            weight = float(r.detach()) if weighted else 1.0
            return (weight if inside(float(r.detach()), a) else 0.0) * a * x.log_prob

        return -token_mean(gains(batch, gain))

    return run


def one_side(r: float, a: float, low: float = 0.2, high: float = 0.2) -> bool:
    return (a >= 0 and r <= 1 + high) or (a <= 0 and r >= 1 - low)


def two_side(r: float, a: float) -> bool:
    return 0.8 <= r <= 1.2


def ring(r: float, a: float) -> bool:
    return two_side(r, a) or (a >= 0 and r <= 0.4) or (a <= 0 and r >= 3.0)


def rec_sequence(batch: list[Sequence]) -> Tensor:
    centred(batch)
    rows = []
    for s in batch:
        r = float(geometric(s).detach())
        weight = r if one_side(r, s.advantage[0], 3e-4, 4e-4) else 0.0
        rows.append([weight * a * x.log_prob for x, a in zip(s.steps, s.advantage, strict=True)])
    return -sequence_mean(rows)


def opmd(batch: list[Sequence]) -> Tensor:
    centred(batch)
    return -sequence_sum(log_likelihood(batch)) / 1.1


def rep_opmd(batch: list[Sequence]) -> Tensor:
    centred(batch)
    penalties = []
    for s in batch:
        moved = torch.stack([x.log_prob - x.log_probs["old"] for x in s.steps]).sum()
        penalties.append(0.1 * 0.5 * moved**2)
    return -sequence_sum(log_likelihood(batch)) + torch.stack(penalties).mean()


def asym_re(batch: list[Sequence]) -> Tensor:
    centred(batch)
    for s in batch:
        give(s, s.advantage[0] + 0.1)
    return -sequence_sum(log_likelihood(batch))


def red_drop(batch: list[Sequence]) -> Tensor:
    """Some of those below the mean are dropped; the mean of the others is the baseline."""
    for s in batch:
        group = [o for o in batch if o.prompt == s.prompt]
        mean = statistics.fmean(o.total for o in group)
        high = [o for o in group if o.total >= mean]
        low = sorted(
            (o for o in group if o.total < mean), key=lambda o: o.steps[0].signals["uniform"]
        )
        kept = high + low[: len(high)]
        there = any(o is s for o in kept)
        give(s, s.total - statistics.fmean(o.total for o in kept) if there else 0.0)
    return -sequence_sum(log_likelihood(batch))


def red_weight(batch: list[Sequence]) -> Tensor:
    centred(batch)
    for s in batch:
        give(s, s.advantage[0] * math.exp(s.advantage[0]))
    return -sequence_sum(log_likelihood(batch))


def turns(s: Sequence, above: Callable[[Step], Tensor], name: str = "turn") -> dict[int, Tensor]:
    """Sums of `above` over the steps of each segment."""
    found: dict[int, Tensor] = {}
    for x in s.steps:
        found[x.segments[name]] = found.get(x.segments[name], torch.zeros(())) + above(x)
    return found


def turn_rows(batch: list[Sequence], low: float, high: float) -> list[list[Tensor]]:
    """PPO's gain with the geometric mean of each turn."""
    rows = []
    for s in batch:
        total = turns(s, lambda x: x.log_prob - x.log_probs["old"])
        size = turns(s, lambda x: torch.ones(()))
        rows.append(
            [
                clipped(torch.exp(total[x.turn] / size[x.turn]), a, low, high)
                for x, a in zip(s.steps, s.advantage, strict=True)
            ]
        )
    return rows


def bias(batch: list[Sequence], ratios: list[list[float]]) -> float:
    """1 over max(1, |mean of r A over clipped steps|)."""
    total, steps = 0.0, 0
    for s, row in zip(batch, ratios, strict=True):
        for a, r in zip(s.advantage, row, strict=True):
            steps += 1
            if (a > 0 and r > 1.2) or (a < 0 and r < 0.8):
                total += r * a
    return 1 / max(1.0, abs(total / steps))


def turn_ppo(batch: list[Sequence]) -> Tensor:
    advantages_of_a_critic(batch)
    return -token_mean(turn_rows(batch, 0.2, 0.2))


def s_ppo(batch: list[Sequence]) -> Tensor:
    advantages_of_a_critic(batch)
    ratios = [[float(ratio(x).detach()) for x in s.steps] for s in batch]
    return -token_mean(gains(batch, plain)) * bias(batch, ratios)


def st_ppo(batch: list[Sequence]) -> Tensor:
    advantages_of_a_critic(batch)
    ratios = []
    for s in batch:
        total = turns(s, lambda x: x.log_prob.detach() - x.log_probs["old"])
        size = turns(s, lambda x: torch.ones(()))
        ratios.append([math.exp(total[x.turn] / size[x.turn]) for x in s.steps])
    return -token_mean(turn_rows(batch, 0.2, 0.2)) * bias(batch, ratios)


def hybrid(batch: list[Sequence], share: Callable[[Step], float]) -> Tensor:
    z_scores(batch)
    rows = []
    for s in batch:
        row = []
        for x, a in zip(s.steps, s.advantage, strict=True):
            own = clipped(ratio(x), a, 0.2, 0.28)
            whole = clipped(geometric(s), a, 3e-4, 4e-4)
            row.append(share(x) * own + (1 - share(x)) * whole)
        rows.append(row)
    return -sequence_mean(rows)


def dhpo(batch: list[Sequence]) -> Tensor:
    return hybrid(batch, lambda x: 0.5)


def dhpo_entropy(batch: list[Sequence]) -> Tensor:
    most = max(x.entropy for s in batch for x in s.steps)
    return hybrid(batch, lambda x: x.entropy / most)


def dispo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        low, high = (0.0, 101.0) if a < 0 else (0.8, 11.0)
        return torch.clamp(r.detach(), low, high) * a * x.log_prob

    return -token_mean(gains(batch, gain))


def alp(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    return -token_mean(gains(batch, plain, "behaviour"))


def vcpo(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        totals = [s.total for s in group]
        weights = [
            math.exp(2 * sum(recorded(s))) * s.steps[0].signals["gradient_norm_squared"]
            for s in group
        ]
        b = sum(w * r for w, r in zip(weights, totals, strict=True)) / sum(weights)
        for s in group:
            give(s, (s.total - b) / (spread(totals) + 1e-4))
    whole = [float(product(s, "behaviour").detach()) for s in batch]
    share = sum(whole) ** 2 / (len(whole) * sum(w**2 for w in whole))
    kept = weigh(log_likelihood(batch), alike(batch, [min(w, 8.0) for w in whole]))
    return -sequence_mean(kept) * min(1.0, share) ** 0.5


def mini_rl(batch: list[Sequence]) -> Tensor:
    centred(batch)

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        value = float(r.detach())
        weight = min(math.exp(x.log_probs["old"] - x.log_probs["behaviour"]), 5.0) * value
        return (weight if one_side(value, a, 0.2, 0.27) else 0.0) * a * x.log_prob

    return -sequence_sum(gains(batch, gain))


def areal(batch: list[Sequence]) -> Tensor:
    z_scores(batch)

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        weight = math.exp(x.log_probs["proximal"] - x.log_probs["behaviour"])
        return (weight if weight <= 5.0 else 0.0) * clipped(r, a)

    return -token_mean(gains(batch, gain, "proximal"))


def remix(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    penalty = gains(batch, lambda r, a, x: 0.02 * (k3(x) + k3(x, "previous")))

    def gain(r: Tensor, a: float, x: Step) -> Tensor:
        began = math.exp(x.log_probs["proximal"] - x.log_probs["behaviour"])
        return torch.minimum(r * a, r.clamp(began - 0.2, began + 0.2) * a)

    return -token_mean(gains(batch, gain, "behaviour")) + token_mean(penalty)


def seeupo(batch: list[Sequence]) -> Tensor:
    """As the authors' code: turns are samples, which the last turns' changed ratios multiply."""

    def held(x: float) -> float:
        return min(max(x, 0.8), 1.2)

    centred(batch)
    worth = [s.advantage[0] for s in batch]
    mean, std = statistics.fmean(worth), statistics.stdev(worth)
    losses = []
    for s, a in zip(batch, worth, strict=True):
        changed, by_turn = 1.0, {x.turn: [y for y in s.steps if y.turn == x.turn] for x in s.steps}
        for k in sorted(by_turn, reverse=True):
            logs = [x.log_prob - x.log_probs["old"] for x in by_turn[k]]
            r = torch.exp(torch.stack(logs).mean())
            losses.append(-clipped(r, (a - mean) / (std + 1e-6) * changed))
            moved = [x.log_probs["proximal"] - x.log_probs["old"] for x in by_turn[k]]
            changed = held(changed * held(math.exp(statistics.fmean(moved))))
    return torch.stack(losses).mean()


def cj_grpo(batch: list[Sequence]) -> Tensor:
    """As the authors' code: a mean over the tokens of each decoding step, and over the steps."""
    centred(batch)
    means = []
    for s in batch:
        by_step: dict[int, list[Tensor]] = {}
        for x, a in zip(s.steps, s.advantage, strict=True):
            gap = x.log_probs["reference"] - x.log_prob
            value = -clipped(ratio(x), a, 0.5, 0.5) + 0.04 * (torch.exp(gap) - gap - 1)
            by_step.setdefault(x.segments["decode"], []).append(value)
        means += [torch.stack(values).mean() for values in by_step.values()]
    return torch.stack(means).mean()


def calibrl(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    rows = []
    for s in batch:
        y = 1.0 if s.total > 0 else -1.0
        row = []
        for x, a in zip(s.steps, s.advantage, strict=True):
            margin = -y * (x.log_prob - x.log_probs["expert"])
            row.append(abs(a) * (margin if margin > 0 else 0.5 * margin))
        rows.append(row)
    return -token_mean(gains(batch, plain)) + token_mean(rows)


def mini_rl_r2(batch: list[Sequence]) -> Tensor:
    return mini_rl(batch)


def mini_rl_r3(batch: list[Sequence]) -> Tensor:
    return mini_rl(batch)


SLOW: dict[str, Slow] = {
    "rec_one_side": masked(one_side),
    "rec_one_side_no_is": masked(one_side, weighted=False),
    "rec_two_side": masked(two_side),
    "rec_ring": masked(ring),
} | {
    f.__name__: f
    for f in (
        minpro,
        topr,
        rec_sequence,
        opmd,
        rep_opmd,
        asym_re,
        red_drop,
        red_weight,
        turn_ppo,
        s_ppo,
        st_ppo,
        dhpo,
        dhpo_entropy,
        dispo,
        alp,
        vcpo,
        mini_rl,
        mini_rl_r2,
        mini_rl_r3,
        areal,
        remix,
        seeupo,
        cj_grpo,
        calibrl,
    )
}
