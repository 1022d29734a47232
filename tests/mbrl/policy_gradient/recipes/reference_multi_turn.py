"""Slow implementations of recipes for sequences of turns."""

import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tests.mbrl.policy_gradient.cases import Sequence, Step
from tests.mbrl.policy_gradient.recipes.reference_advantages import estimates, plain, whiten_steps
from tests.mbrl.policy_gradient.recipes.reference_pieces import (
    Slow,
    centred,
    clipped,
    gains,
    give,
    k3,
    log_likelihood,
    prompts,
    recorded,
    sequence_sum,
    spread,
    token_mean,
    weigh,
    z_scores,
)

Turn = list[Step]


def turns(s: Sequence) -> list[Turn]:
    """The steps of every turn that has any."""
    ids = sorted({x.turn for x in s.steps})
    return [[x for x in s.steps if x.turn == i] for i in ids]


def paid(turn: Turn, name: str) -> float:
    return sum(x.signals[name] for x in turn)


def earned(turn: Turn) -> float:
    return sum(x.reward for x in turn)


def discounted(values: list[float], gamma: float) -> list[float]:
    n = len(values)
    return [sum(gamma ** (k - i) * values[k] for k in range(i, n)) for i in range(n)]


def give_turns(s: Sequence, values: list[float]) -> None:
    s.advantage = [v for turn, v in zip(turns(s), values, strict=True) for _ in range(len(turn))]


def turn_advantages(
    batch: list[Sequence],
    values: Callable[[Sequence], list[float]],
    key: Callable[[Sequence, Turn], object],
    eps: float | None = 1e-6,
    keep_alone: bool = False,
) -> dict[int, list[float]]:
    """Every turn's value less the mean of the turns with its key, over their deviation plus `eps`
    (None: not divided); by the sequence's id. One alone: 0, or its value."""
    members: dict[object, list[float]] = {}
    for s in batch:
        for turn, v in zip(turns(s), values(s), strict=True):
            members.setdefault(key(s, turn), []).append(v)
    found = {}
    for s in batch:
        row = []
        for turn, v in zip(turns(s), values(s), strict=True):
            others = members[key(s, turn)]
            if len(others) == 1:
                row.append(v / (1 + (eps or 0)) if keep_alone else 0.0)
            else:
                std = 1.0 if eps is None else statistics.stdev(others) + eps
                row.append((v - statistics.fmean(others)) / std)
        found[id(s)] = row
    return found


def episodes(batch: list[Sequence], eps: float | None, keep_alone: bool = True) -> None:
    for group in prompts(batch):
        totals = [s.total for s in group]
        for s in group:
            if len(group) == 1 and keep_alone:
                give(s, s.total / (1 + (eps or 0)))
            else:
                std = 1.0 if eps is None else spread(totals) + eps
                give(s, (s.total - statistics.fmean(totals)) / std)


def add(batch: list[Sequence], found: dict[int, list[float]], weight: float = 1.0) -> None:
    for s in batch:
        before = s.advantage
        give_turns(s, found[id(s)])
        s.advantage = [a + weight * b for a, b in zip(before, s.advantage, strict=True)]


def clip_and_penalty(batch: list[Sequence], weight: float) -> Tensor:
    rows = gains(batch, lambda r, a, step: k3(step))
    return -token_mean(gains(batch, plain)) + weight * token_mean(rows)


def gigpo(batch: list[Sequence], eps: float | None = 1e-6) -> Tensor:
    episodes(batch, eps)
    found = turn_advantages(
        batch,
        lambda s: discounted([earned(t) for t in turns(s)], 0.95),
        lambda s, turn: (s.prompt, turn[0].groups["state"]),
        eps,
    )
    add(batch, found)
    return clip_and_penalty(batch, 0.01)


def gigpo_no_std(batch: list[Sequence]) -> Tensor:
    return gigpo(batch, None)


def hgpo(batch: list[Sequence]) -> Tensor:
    names = ("state", "history_2", "history_3")

    def values(s: Sequence) -> list[float]:
        return discounted([earned(t) for t in turns(s)], 0.95)

    for s in batch:
        row = []
        for i, turn in enumerate(turns(s)):
            above = below = 0.0
            for k, name in enumerate(names, start=1):
                alike = [
                    v
                    for o in batch
                    if o.prompt == s.prompt
                    for other, v in zip(turns(o), values(o), strict=True)
                    if other[0].groups[name] == turn[0].groups[name]
                ]
                score = values(s)[i] - statistics.fmean(alike)
                if abs(score) > 1e-6:
                    above += (k + 1) * score / (statistics.pstdev(alike) + 1e-6)
                    below += k + 1
            row.append(above / below if below else 0.0)
        give_turns(s, row)
    return clip_and_penalty(batch, 0.01)


def leave_one_out(batch: list[Sequence]) -> None:
    less_the_others(batch, lambda s: discounted([earned(t) for t in turns(s)], 1.0))


def trloo(batch: list[Sequence]) -> Tensor:
    leave_one_out(batch)
    return -sequence_sum(gains(batch, lambda r, a, step: clipped(r, a, 0.2, 0.28)))


def dr_kernel(batch: list[Sequence]) -> Tensor:
    leave_one_out(batch)
    weights = []
    for s in batch:
        logs = recorded(s)
        geometric = math.exp(statistics.fmean(logs))
        good = 0.999 <= geometric <= 1.001 and min(logs) >= math.log(1e-4)
        row = []
        for turn in turns(s):
            chance = (turn[0].signals["coverage"] - 0.3) / 0.1
            kept = earned(turn) <= 0 or turn[0].signals["uniform"] < chance
            row += [1.0 if good and kept else 0.0] * len(turn)
        weights.append(row)
    rows = gains(batch, lambda r, a, step: clipped(r, a, 0.2, 0.28))
    return -sequence_sum(weigh(rows, weights))


def turn_gains(s: Sequence) -> list[float]:
    found = [paid(turn, "information_gain") for turn in turns(s)]
    found[-1] = s.total
    return found


def igpo(batch: list[Sequence]) -> Tensor:
    for group in prompts(batch):
        flat = [v for s in group for v in turn_gains(s)]
        mean, std = statistics.fmean(flat), statistics.pstdev(flat) + 1e-6
        for s in group:
            give_turns(s, discounted([(v - mean) / std for v in turn_gains(s)], 1.0))
    extra = gains(batch, lambda r, a, x: 0.001 * (k3(x) - x.entropy_now))
    return sequence_sum(extra) - sequence_sum(gains(batch, plain))


def infopo(batch: list[Sequence]) -> Tensor:
    """Gains shared by a turn's steps, normalised over the steps of a prompt that have any."""
    z_scores(batch, 1e-6)
    shares = {
        id(s): [paid(turn, "information_gain") / len(turn) for turn in turns(s) for _ in turn]
        for s in batch
    }
    normal, opened = {}, {}
    for group in prompts(batch):
        flat = [v for s in group for v in shares[id(s)] if v != 0]
        outcomes = spread([s.total for s in group]) if len(group) > 1 else 1.0
        for s in group:
            mean, std = statistics.fmean(flat), spread(flat) + 1e-6
            normal[id(s)] = [(v - mean) / std if v != 0 else 0.0 for v in shares[id(s)]]
            opened[id(s)] = 1 / (1 + math.exp(outcomes / 0.05))
    outer = spread([a for s in batch for a in s.advantage]) + 1e-6
    inner = spread([v for s in batch for v in normal[id(s)]]) + 1e-6
    smaller = 0.1 * min(1.0, max(outer, 1.0) / inner)
    for s in batch:
        weight = smaller * opened[id(s)]
        pairs = zip(s.advantage, normal[id(s)], strict=True)
        s.advantage = [a + weight * v for a, v in pairs]
    bonus = gains(batch, lambda r, a, x: 0.001 * x.entropy_now)
    return -token_mean(gains(batch, plain)) - token_mean(bonus)


def matchtir(batch: list[Sequence]) -> Tensor:
    def rewards(s: Sequence) -> list[float]:
        return [earned(turn) + paid(turn, "match_score") for turn in turns(s)]

    for group in prompts(batch):
        totals = [sum(rewards(s)) for s in group]
        for s, total in zip(group, totals, strict=True):
            alone = len(group) == 1
            mean = 0.0 if alone else statistics.fmean(totals)
            std = 1.0 if alone else statistics.stdev(totals)
            give(s, 0.5 * (total - mean) / (std + 1e-6))
    found = turn_advantages(
        batch,
        lambda s: discounted(rewards(s), 0.9),
        lambda s, turn: (s.prompt, turn[0].turn),
        keep_alone=True,
    )
    add(batch, found, 0.5)
    return -token_mean(gains(batch, plain))


def spa_rl(batch: list[Sequence]) -> Tensor:
    for s in batch:
        rewards = [x.signals["progress"] + 0.5 * x.signals["grounding"] for x in s.steps]
        s.advantage = estimates(s, rewards)
    whiten_steps(batch)
    return -token_mean(gains(batch, plain))


def options(s: Sequence) -> list[list[Turn]]:
    ids = sorted({turn[0].segments["option"] for turn in turns(s)})
    return [[turn for turn in turns(s) if turn[0].segments["option"] == i] for i in ids]


def option_advantages(s: Sequence) -> tuple[list[float], list[float], list[float]]:
    """Of every turn: the low one, the high one of its option, that of leaving. gamma 1."""
    parts, low, high, leave = options(s), [], [], []
    cut, carried = s.steps[-1].truncated, 0.0
    for k in reversed(range(len(parts))):
        part = parts[k]
        head = part[0][0].signals["value_high"]
        if k + 1 < len(parts):
            beyond = parts[k + 1][0][0].signals["value_high"]
            after = beyond
        else:
            beyond = head if cut else 0.0
            after = part[-1][0].signals["value"] if cut else 0.0
        gained = [earned(turn) for turn in part]
        delta = sum(gained) + beyond - head
        carried = delta + 0.95 * (carried if k + 1 < len(parts) else 0.0)
        rows_low, rows_leave, sofar = [], [], 0.0
        for i in reversed(range(len(part))):
            value = part[i][0].signals["value"]
            following = part[i + 1][0].signals["value"] if i + 1 < len(part) else after
            sofar = gained[i] + following - value + (sofar if i + 1 < len(part) else 0.0)
            rows_low.insert(0, sofar)
            rows_leave.insert(0, sum(gained[i:]) + beyond - part[i][0].signals["value_switch"])
        low, leave = rows_low + low, rows_leave + leave
        high = [carried] * len(part) + high
    return low, high, leave


def hiper(batch: list[Sequence]) -> Tensor:
    values: dict[str, list[float]] = {"low": [], "high": [], "leave": []}
    places: list[tuple[Sequence, Turn, bool, dict[str, float]]] = []
    for s in batch:
        heads = [part[0][0] for part in options(s)]
        for turn, a, b, c in zip(turns(s), *option_advantages(s), strict=True):
            opening = turn[0] in heads
            own = {"low": a, "high": b, "leave": c}
            places.append((s, turn, opening, own))
            for kind in {kind for x in turn for kind in kinds(x, opening)}:
                values[kind].append(own[kind])
    normal = {
        kind: (statistics.fmean(v), statistics.pstdev(v) + 1e-8) for kind, v in values.items()
    }
    for s in batch:
        s.advantage = []
    for s, turn, opening, own in places:
        for x in turn:
            s.advantage.append(
                sum((own[k] - normal[k][0]) / normal[k][1] for k in kinds(x, opening))
            )
    return clip_and_penalty(batch, 0.01)


def kinds(x: Step, opening: bool) -> list[str]:
    subgoal, switch = x.signals["subgoal"] > 0.5, x.signals["switch"] > 0.5
    found = [] if subgoal or switch else ["low"]
    return found + (["high"] if subgoal and opening else []) + (["leave"] if switch else [])


def ui_s1(batch: list[Sequence]) -> Tensor:
    episodes(batch, 1e-6)
    worth = {id(s): s.steps[0].signals["step_return"] for s in batch}
    own = [(s.prompt, s.steps[0].groups["step"]) for s in batch]
    weights, changed = [], []
    for s, key in zip(batch, own, strict=True):
        others = [worth[id(o)] for o, k in zip(batch, own, strict=True) if k == key]
        add = 0.0
        if len(others) > 1:
            add = (worth[id(s)] - statistics.fmean(others)) / (statistics.stdev(others) + 1e-6)
        changed.append([a + add for a in s.advantage])
        begun = [worth[id(o)] for o, k in zip(batch, own, strict=True) if k == (s.prompt, 0)]
        kept = len(begun) == 1 or (len(begun) > 1 and statistics.pstdev(begun) > 0.3)
        weights.append([float(kept)] * len(s))
    for s, row in zip(batch, changed, strict=True):
        s.advantage = row
    rows = gains(batch, lambda r, a, step: k3(step))
    return -token_mean(weigh(gains(batch, plain), weights)) + 1e-4 * token_mean(rows)


def empg(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    means = {id(s): [statistics.fmean(x.entropy for x in turn) for turn in turns(s)] for s in batch}
    flat = [v for row in means.values() for v in row]
    low, high = min(flat), max(flat)
    sure = {k: [math.exp(-(v - low) / (high - low)) for v in row] for k, row in means.items()}
    usual = statistics.fmean(v for row in sure.values() for v in row)
    changed = {}
    for s in batch:
        own = sure[id(s)]
        changed[id(s)] = [
            s.advantage[0] * g / usual + 0.1 * (own[i + 1] if i + 1 < len(own) else 0.0)
            for i, g in enumerate(own)
        ]
    centre = statistics.fmean(v for row in changed.values() for v in row)
    for s in batch:
        give_turns(s, [v - centre for v in changed[id(s)]])
    return -token_mean(gains(batch, plain))


def archer(batch: list[Sequence]) -> Tensor:
    total, count = torch.zeros((), dtype=torch.float64), 0
    for s in batch:
        for turn in turns(s):
            a = turn[0].signals["utterance_q"] - turn[0].signals["utterance_v"]
            total = total + a * torch.stack([x.log_prob for x in turn]).sum()
            count += 1
    return -total / count


def mapo_mixed(batch: list[Sequence]) -> Tensor:
    def rewards(s: Sequence) -> list[float]:
        return [paid(turn, "process_reward") for turn in turns(s)]

    def returns(s: Sequence) -> list[float]:
        return discounted(rewards(s), 1.0)

    for s in batch:
        give(s, 0.0)
    late = turn_advantages(batch, returns, lambda s, turn: (s.prompt, turn[0].turn))
    add(batch, late, 0.5)
    add(batch, turn_advantages(batch, rewards, lambda s, turn: s.prompt), 0.5)
    return -token_mean(gains(batch, plain))


def a2tgpo(batch: list[Sequence]) -> Tensor:
    z_scores(batch)
    found = turn_advantages(
        batch,
        lambda s: [paid(turn, "information_gain") for turn in turns(s)],
        lambda s, turn: (s.prompt, turn[0].turn),
    )
    sums = {
        k: [0.3 * v / math.sqrt(len(row) - i) for i, v in enumerate(discounted(row, 1.0))]
        for k, row in found.items()
    }
    add(batch, sums)
    rows = []
    for s in batch:
        row: list[Tensor] = []
        at = 0
        for turn, worth in zip(turns(s), found[id(s)], strict=True):
            logs = [x.log_prob - x.log_probs["old"] for x in turn]
            r = torch.exp(torch.stack(logs).mean())
            width = 0.2 * (1 + 0.3 * (2 / (1 + math.exp(-worth)) - 1))
            row += [clipped(r, s.advantage[at + i], width, width) for i in range(len(turn))]
            at += len(turn)
        rows.append(row)
    return -token_mean(rows)


def spae(batch: list[Sequence]) -> Tensor:
    centred(batch)
    gained: dict[int, list[float]] = {}
    for s in batch:
        phi = []
        for turn in turns(s):
            acc, conf = turn[0].signals["accuracy"], turn[0].signals["confidence"]
            phi.append(1.5 * acc * conf + 0.5 * acc - conf)
        factors = [
            1 - 0.5 * (1 - math.exp(-sum(p > 0.9 for p in phi[:k]))) for k in range(len(phi))
        ]
        give_turns(s, [s.advantage[0] * f for f in factors])
        gained[id(s)] = [0.0] + [phi[k] - phi[k - 1] for k in range(1, len(phi))]
    every = [x for row in gained.values() for x in row]
    low, high = min(every), max(every)
    sizes = {i: [math.exp((x - low) / (high - low)) for x in row] for i, row in gained.items()}
    usual = statistics.fmean(x for row in sizes.values() for x in row)
    add(batch, {i: [0.5 * (x - usual) for x in row] for i, row in sizes.items()})
    whiten_steps(batch)
    kept = [s for s in batch if len({o.total for o in batch if o.prompt == s.prompt}) > 1]
    return -token_mean(gains(kept, lambda r, a, step: clipped(r, a, 0.2, 0.28)))


def attempts(s: Sequence, weight: float, first: int) -> list[float]:
    """Rewards of every turn from number `first` on, with the bonus."""
    by_number = {turn[0].turn: earned(turn) for turn in turns(s)}
    rewards = []
    for turn in turns(s):
        number = turn[0].turn
        before = by_number.get(number - 1, 0.0)
        bonus = weight * (by_number[number] - before) if number else 0.0
        rewards.append(by_number[number] + bonus if number >= first else 0.0)
    return rewards


def less_the_others(batch: list[Sequence], values: Callable[[Sequence], list[float]]) -> None:
    """Every turn's value less the mean of the prompt's other turns of its number."""
    known = [(s, t[0].turn, v) for s in batch for t, v in zip(turns(s), values(s), strict=True)]
    for s in batch:
        row = []
        for turn, v in zip(turns(s), values(s), strict=True):
            others = [
                w for o, k, w in known if o is not s and o.prompt == s.prompt and k == turn[0].turn
            ]
            row.append(v - (statistics.fmean(others) if others else 0.0))
        give_turns(s, row)


def score(batch: list[Sequence]) -> Tensor:
    less_the_others(batch, lambda s: attempts(s, 10.0, 0))
    rows = gains(batch, lambda r, a, step: k3(step))
    return -sequence_sum(log_likelihood(batch)) + 0.01 * sequence_sum(rows)


def score_first_stage(batch: list[Sequence]) -> Tensor:
    less_the_others(batch, lambda s: discounted(attempts(s, 0.0, 1), 1.0))
    rows = gains(batch, lambda r, a, x: k3(x) * (0.11 if x.turn == 0 else 0.01))
    return -sequence_sum(log_likelihood(batch)) + sequence_sum(rows)


SLOW: dict[str, Slow] = {
    f.__name__: f
    for f in (
        gigpo,
        gigpo_no_std,
        hgpo,
        trloo,
        dr_kernel,
        igpo,
        infopo,
        matchtir,
        spa_rl,
        hiper,
        ui_s1,
        empg,
        archer,
        mapo_mixed,
        a2tgpo,
        spae,
        score,
        score_first_stage,
    )
}
