"""Coverage of intervals of off-policy evaluation, on simulated data sets in small random worlds
with exact values."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from algorithms.evaluation.dice import DICEConfig, correct_all
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl.config import Count, Fraction
from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient.off_policy_evaluation import ESTIMATORS, Evaluation, Logged, evaluate
from mbrl.statistics import Interval
from mbrl.types import Dataset, Spec, Transitions

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "estimator": "weighted_doubly_robust",  # or dice
    "episodes": 200,  # of a data set
    "steps": 10,  # of an episode at most
    "distance": 0.5,  # of the policies: 0 the same, 1 nothing in common but a floor
    "error": 0.3,  # deviation of the given values' errors, over that of the true ones
    "sets": 200,  # data sets
    "confidence": 0.95,
}
STATES, ACTIONS, GAMMA = 6, 3, 0.95
ENDS = 0.05  # probability that an episode ends after a step
FLOOR = 0.1  # share of uniform actions in both policies
DICE = DICEConfig(
    hidden=(32,),
    nu_rate=3e-3,
    zeta_rate=3e-3,
    steps=1500,
    batch_size=256,
    gamma=GAMMA,
    average_every=10,
)
TOGETHER = 50  # data sets that DICE is fitted to side by side


class World(NamedTuple):
    """A random world: `transition` [S, A, S], `reward` means [S, A], `start` [S], both policies [S,
    A], and, for every step to go, the target's values `q` [T, S, A] and `v` [T, S]."""

    transition: Tensor
    reward: Tensor
    start: Tensor
    behaviour: Tensor
    target: Tensor
    q: Tensor
    v: Tensor

    @property
    def value(self) -> float:
        """The value of the target policy."""
        return float((self.start * self.v[0]).sum())


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """`covered`: share of data sets whose interval holds the true value; `bias` and `error` (root
    mean square) of the estimates and mean `width` of the intervals, all over the true value's
    magnitude; `effective`: mean share of episodes (DICE: of steps) that the weights amount to."""
    require_settings(settings, "dice")
    if settings["estimator"] == "dice" and settings["confidence"] != 0.95:
        raise ConfigError(
            f"confidence is {settings['confidence']}; DICE's intervals are of 0.95: leave it there"
        )
    steps, episodes = settings["steps"], settings["episodes"]
    g = torch.Generator().manual_seed(seed)
    world = build(steps, settings["distance"], g)
    spread = settings["error"] * float(world.q.std())
    noise = torch.randn(world.q.shape, generator=g, dtype=torch.float64) * spread
    q = world.q + noise  # the same guess for all data sets, as if fitted elsewhere
    v = (world.target * q).sum(-1)
    name, share = settings["estimator"], settings["confidence"]
    sets = [simulate(world, episodes, steps, g) for _ in range(settings["sets"])]
    if name == "dice":
        evaluations = corrected(world, sets)
    else:
        evaluations = [
            evaluate(logged(world, data, q, v), name, confidence=share, seed=i)
            for i, data in enumerate(sets)
        ]
    value = endless(world) if name == "dice" else world.value
    return Outcome(quality(evaluations, value, settings["confidence"], abs(value)), {})


def require_settings(settings: dict[str, Any], *further: str) -> None:
    """Raise `ConfigError` for an estimator that is neither one of importance sampling nor among
    `further`, and for numbers out of range."""
    known = (*ESTIMATORS, *further)
    if settings["estimator"] not in known:
        raise unknown_name("estimator", settings["estimator"], known)
    counts = dict.fromkeys(("episodes", "steps", "sets"), Count)
    configs.check(settings, {"confidence": Fraction, **counts})


def quality(
    evaluations: Sequence[Evaluation], value: float, confidence: float, size: float
) -> dict[str, float]:
    """What `measure` reports of evaluations of several data sets whose true value is known; errors
    and widths over `size`."""
    estimates = np.array([e.value for e in evaluations])
    inside = [e.low <= value <= e.high for e in evaluations]
    return {
        "covered": float(np.mean(inside)),
        "nominal": confidence,
        "bias": float(estimates.mean() - value) / size,
        "error": float(np.sqrt(np.mean((estimates - value) ** 2))) / size,
        "width": float(np.mean([e.high - e.low for e in evaluations])) / size,
        "effective": float(np.mean([e.effective_share for e in evaluations])),
    }


def build(steps: int, distance: float, generator: torch.Generator) -> World:
    """Transitions to few states each, rewards in [0, 1], softmax policies `distance` apart."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    transition = (6 * uniform(STATES, ACTIONS, STATES)).softmax(-1)
    reward, start = uniform(STATES, ACTIONS), uniform(STATES)
    first, second = (4 * uniform(2, STATES, ACTIONS)).softmax(-1)
    behaviour, target = (
        FLOOR / ACTIONS + (1 - FLOOR) * p
        for p in (first, (1 - distance) * first + distance * second)
    )
    q = torch.zeros(steps, STATES, ACTIONS, dtype=torch.float64)
    after = torch.zeros(STATES, dtype=torch.float64)
    for t in reversed(range(steps)):
        q[t] = reward + GAMMA * (1 - ENDS) * transition @ after
        after = (target * q[t]).sum(-1)
    v = (target * q).sum(-1)
    return World(transition, reward, start / start.sum(), behaviour, target, q, v)


class Episodes(NamedTuple):
    """Simulated steps [B, T]; those after an episode's end are not in `mask`."""

    state: Tensor
    action: Tensor
    paid: Tensor
    after: Tensor
    ended: Tensor
    mask: Tensor


def simulate(world: World, episodes: int, steps: int, generator: torch.Generator) -> Episodes:
    """Episodes of the behaviour policy; rewards are 0 or 1 with the world's means."""

    def draw(p: Tensor) -> Tensor:
        return torch.multinomial(p, 1, generator=generator)[:, 0]

    state = draw(world.start.expand(episodes, -1))
    alive = torch.ones(episodes, dtype=torch.bool)
    columns: list[tuple[Tensor, ...]] = []
    for _ in range(steps):
        action = draw(world.behaviour[state])
        paid = torch.rand(episodes, generator=generator) < world.reward[state, action]
        ended = torch.rand(episodes, generator=generator) < ENDS
        after = draw(world.transition[state, action])
        columns.append((state, action, paid.double(), after, ended, alive))
        state, alive = after, alive & ~ended
    return Episodes(*(torch.stack(column, 1) for column in zip(*columns, strict=True)))


def logged(world: World, episodes: Episodes, q: Tensor, v: Tensor) -> Logged:
    """The episodes with log-ratios of the target policy and its (guessed) values."""
    state, action, at = episodes.state, episodes.action, torch.arange(episodes.mask.shape[1])
    ratio = world.target[state, action] / world.behaviour[state, action]
    return Logged(
        ratio.log(),
        episodes.paid,
        episodes.mask,
        q=q[at, state, action],
        v=v[at, state],
        gamma=GAMMA,
    )


def dataset(episodes: Episodes) -> Dataset:
    """The same as transitions between one-hot states, without the behaviour policy."""
    seen, mask, length = torch.eye(STATES), episodes.mask, episodes.mask.shape[1]
    truncated = ~episodes.ended & (torch.arange(length) == length - 1)
    data = Transitions(
        seen[episodes.state[mask]],
        episodes.action[mask],
        episodes.paid[mask].float(),
        seen[episodes.after[mask]],
        episodes.ended[mask],
        truncated[mask],
    )
    return Dataset(data, Spec("world", STATES, 1, ACTIONS, (0.0,), (1.0,), length))


def corrected(world: World, sets: Sequence[Episodes]) -> list[Evaluation]:
    """DICE's estimates of the value without a limit of steps, from the episodes of each set."""

    def acts(obs: Tensor, generator: torch.Generator) -> Tensor:
        probabilities = world.target[obs.argmax(-1)]
        return torch.multinomial(probabilities, 1, generator=generator)[:, 0]

    evaluations: list[Evaluation] = []
    for first in range(0, len(sets), TOGETHER):
        data = [dataset(episodes) for episodes in sets[first : first + TOGETHER]]
        results = correct_all(acts, data, replace(DICE, seed=first))
        evaluations += [Evaluation(r.value, r.low, r.high, r.effective_share) for r in results]
    return evaluations


def endless(world: World) -> float:
    """The value of the target policy without a step limit."""
    move = torch.einsum("sa,sat->st", world.target, world.transition) * GAMMA * (1 - ENDS)
    earned = (world.target * world.reward).sum(-1)
    v = torch.linalg.solve(torch.eye(STATES, dtype=torch.float64) - move, earned)
    return float(world.start @ v)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Measured coverage of every row, all its data sets together, with Wilson's interval."""
    coverage = {}
    for label, records in rows.items():
        sets = [records[0]["key"]["settings"].get("sets", DEFAULTS["sets"])] * len(records)
        hits = sum(round(r["values"]["covered"] * n) for r, n in zip(records, sets, strict=True))
        low, high = stats.binomtest(hits, sum(sets)).proportion_ci(method="wilson")
        coverage[label.split(", ")[-1]] = Interval(100 * hits / sum(sets), 100 * low, 100 * high)
    path = folder / f"coverage{suffix}.png"
    figures.intervals({"intervals of 95 %": coverage}, path, "data sets covered, %")
    return [path]
