"""Do intervals of off-policy evaluation cover what they say? Simulated data sets in small random
worlds whose values are known exactly."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from experiments import figures
from experiments.studies import Outcome
from mbrl.policy_gradient.off_policy_evaluation import Logged, evaluate
from mbrl.statistics import Interval

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "estimator": "weighted_doubly_robust",
    "episodes": 200,  # of a data set
    "steps": 10,  # of an episode at most
    "distance": 0.5,  # of the policies: 0 the same, 1 nothing in common but a floor
    "error": 0.3,  # deviation of the given values' errors, over that of the true ones
    "sets": 200,  # data sets
    "confidence": 0.95,
}
STATES, ACTIONS, GAMMA = 6, 3, 0.95
ENDS = 0.05  # chance that an episode ends after a step
FLOOR = 0.1  # share of uniform actions in both policies


class World(NamedTuple):
    """A random world: `chance` [S, A, S], `reward` means [S, A], `start` [S], both policies [S, A],
    and, for every step to go, the target's values `q` [T, S, A] and `v` [T, S]."""

    chance: Tensor
    reward: Tensor
    start: Tensor
    behaviour: Tensor
    target: Tensor
    q: Tensor
    v: Tensor

    @property
    def value(self) -> float:
        """What the target policy earns."""
        return float((self.start * self.v[0]).sum())


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """`covered`: share of data sets whose interval holds the true value; `bias` and `error` (root
    mean square) of the estimates and mean `width` of the intervals, all over the true value's
    magnitude; `effective`: mean share of episodes that the weights amount to."""
    steps, episodes = settings["steps"], settings["episodes"]
    g = torch.Generator().manual_seed(seed)
    world = build(steps, settings["distance"], g)
    spread = settings["error"] * float(world.q.std())
    noise = torch.randn(world.q.shape, generator=g, dtype=torch.float64) * spread
    q = world.q + noise  # the same guess for all data sets, as if fitted elsewhere
    v = (world.target * q).sum(-1)
    found = [
        evaluate(
            simulate(world, episodes, q, v, g),
            settings["estimator"],
            confidence=settings["confidence"],
            seed=i,
        )
        for i in range(settings["sets"])
    ]
    value, size = world.value, abs(world.value)
    estimates = np.array([f.value for f in found])
    inside = [f.low <= value <= f.high for f in found]
    values = {
        "covered": float(np.mean(inside)),
        "nominal": settings["confidence"],
        "bias": float(estimates.mean() - value) / size,
        "error": float(np.sqrt(np.mean((estimates - value) ** 2))) / size,
        "width": float(np.mean([f.high - f.low for f in found])) / size,
        "effective": float(np.mean([f.effective_share for f in found])),
    }
    return Outcome(values, {})


def build(steps: int, distance: float, generator: torch.Generator) -> World:
    """Transitions to few states each, rewards in [0, 1], softmax policies `distance` apart."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    chance = (6 * uniform(STATES, ACTIONS, STATES)).softmax(-1)
    reward, start = uniform(STATES, ACTIONS), uniform(STATES)
    first, second = (4 * uniform(2, STATES, ACTIONS)).softmax(-1)
    behaviour, target = (
        FLOOR / ACTIONS + (1 - FLOOR) * p
        for p in (first, (1 - distance) * first + distance * second)
    )
    q = torch.zeros(steps, STATES, ACTIONS, dtype=torch.float64)
    after = torch.zeros(STATES, dtype=torch.float64)
    for t in reversed(range(steps)):
        q[t] = reward + GAMMA * (1 - ENDS) * chance @ after
        after = (target * q[t]).sum(-1)
    v = (target * q).sum(-1)
    return World(chance, reward, start / start.sum(), behaviour, target, q, v)


def simulate(
    world: World, episodes: int, q: Tensor, v: Tensor, generator: torch.Generator
) -> Logged:
    """Episodes of the behaviour policy; rewards are 0 or 1 with the world's means."""
    steps = len(q)

    def draw(p: Tensor) -> Tensor:
        return torch.multinomial(p, 1, generator=generator)[:, 0]

    state = draw(world.start.expand(episodes, -1))
    live = torch.ones(episodes, dtype=torch.bool)
    fields: dict[str, list[Tensor]] = {k: [] for k in ("log_ratio", "reward", "mask", "q", "v")}
    for t in range(steps):
        action = draw(world.behaviour[state])
        ratio = world.target[state, action] / world.behaviour[state, action]
        paid = torch.rand(episodes, generator=generator) < world.reward[state, action]
        for name, value in (
            ("log_ratio", ratio.log()),
            ("reward", paid.double()),
            ("mask", live),
            ("q", q[t][state, action]),
            ("v", v[t][state]),
        ):
            fields[name].append(value)
        live = live & (torch.rand(episodes, generator=generator) >= ENDS)
        state = draw(world.chance[state, action])
    stacked = {name: torch.stack(values, 1) for name, values in fields.items()}
    return Logged(gamma=GAMMA, **stacked)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, mark: str) -> list[Path]:
    """Measured coverage of every row, all its data sets together, with Wilson's interval."""
    found = {}
    for label, records in rows.items():
        sets = [records[0]["key"]["settings"].get("sets", DEFAULTS["sets"])] * len(records)
        hits = sum(round(r["values"]["covered"] * n) for r, n in zip(records, sets, strict=True))
        low, high = stats.binomtest(hits, sum(sets)).proportion_ci(method="wilson")
        found[label.split(", ")[-1]] = Interval(100 * hits / sum(sets), 100 * low, 100 * high)
    path = folder / f"coverage{mark}.png"
    figures.intervals({"intervals of 95 %": found}, path, "data sets covered, %")
    return [path]
