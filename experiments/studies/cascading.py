"""Cascading reinforcement learning in a small shop whose most attractive items bore its users."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from algorithms.cascading import (
    CascadingVI,
    CascadingVIConfig,
    all_lists,
    optimum,
    policy_values,
)
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import checkpoint
from mbrl.errors import unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "learner": "cascading",  # or of LEARNERS
    "bonus": 1.0,  # 1: the widths of the theory
    "epsilon": 0.0,  # share of episodes whose lists are drawn evenly from all
    "episodes": 10_000,
    "horizon": 4,
    "size": 3,  # of a list
    "items": 8,
}
LEARNERS = ("cascading", "stateless", "lists")
STATES = 3  # curious, keen and bored; a session begins curious
POINTS = 24
SAVE_EVERY = 2000  # episodes
Lists = list[list[tuple[int, ...]]]


class World(NamedTuple):
    """`attraction` [S, N], `transition` [S, N + 1, S] and `reward` [S, N]."""

    attraction: np.ndarray
    transition: np.ndarray
    reward: np.ndarray


def world(items: int, seed: int = 0) -> World:
    """The first half of the items is bait (attraction .6 to .95) that mostly bores, the other half
    is plain (.15 to .5) and mostly makes keen. A click pays .5 to 1 to the keen, seven tenths of it
    to the curious and a tenth to the bored, who click half as much. Who clicks nothing tends to
    stay."""
    rng = np.random.default_rng(seed)
    bait = np.arange(items) < items // 2
    q = np.where(bait, rng.uniform(0.6, 0.95, items), rng.uniform(0.15, 0.5, items))
    attraction = np.stack([q, q, 0.5 * q])
    bores = np.where(bait, rng.uniform(0.6, 0.9, items), rng.uniform(0.02, 0.1, items))
    keen = (1 - bores) * np.where(bait, 0.3, 0.8)
    after = np.stack([1 - bores - keen, keen, bores], 1)
    stays = 0.7 * np.eye(STATES) + 0.1
    transition = np.stack([np.vstack([after, stays[s]]) for s in range(STATES)])
    pay = rng.uniform(0.5, 1.0, items)
    return World(attraction, transition, np.stack([0.7 * pay, pay, 0.1 * pay]))


class Learner(Protocol):
    def observe(
        self, state: int, items: tuple[int, ...], place: int | None, next_state: int
    ) -> None: ...

    def plan(self) -> tuple[Lists, np.ndarray]: ...


class Stateless:
    """A cascading bandit: one state, and nothing after the click counts."""

    def __init__(self, reward: np.ndarray, config: CascadingVIConfig) -> None:
        self.horizon, self.states = config.horizon, len(reward)
        one = CascadingVIConfig(1, config.size, config.episodes, config.delta, config.bonus)
        self.inner = CascadingVI(reward[:1], one)

    def observe(
        self, state: int, items: tuple[int, ...], place: int | None, next_state: int
    ) -> None:
        self.inner.observe(0, items, place, 0)

    def plan(self) -> tuple[Lists, np.ndarray]:
        policy, values = self.inner.plan()
        return [[policy[0][0]] * self.states for _ in range(self.horizon)], values


class ListsAsActions:
    """Optimistic value iteration (UCBVI) that takes every list for an action of its own, with the
    Bernstein widths of CascadingVI, and knows nothing of clicks."""

    def __init__(self, states: int, items: int, config: CascadingVIConfig) -> None:
        self.config, self.lists = config, list(all_lists(items, config.size))
        self.place = {items: i for i, items in enumerate(self.lists)}
        self.paid = np.zeros((states, len(self.lists)))
        self.moved = np.zeros((states, len(self.lists), states))

    def pay(self, state: int, items: tuple[int, ...], reward: float) -> None:
        self.paid[state, self.place[items]] += reward

    def observe(
        self, state: int, items: tuple[int, ...], place: int | None, next_state: int
    ) -> None:
        self.moved[state, self.place[items], next_state] += 1

    def plan(self) -> tuple[Lists, np.ndarray]:
        c = self.config
        confidence = c.bonus**2 * np.log(c.episodes * c.horizon * self.moved.size / c.delta)
        visits = self.moved.sum(2)
        m = np.maximum(visits, 1)
        p = self.moved / m[..., None]
        values = np.zeros((c.horizon + 1, len(p)))
        policy: Lists = [[] for _ in range(c.horizon)]
        for h in reversed(range(c.horizon)):
            top, ahead = float(c.horizon - h), values[h + 1]
            variance = np.maximum(p @ ahead**2 - (p @ ahead) ** 2, 0.0) + 0.25
            width = 2 * np.sqrt(variance * confidence / m) + 5 * c.horizon * confidence / m
            q = np.where(visits == 0, top, self.paid / m + p @ ahead + width).clip(max=top)
            policy[h] = [self.lists[i] for i in q.argmax(1)]
            values[h] = q.max(1)
        return policy, values


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """`regret`: the sum over episodes of the best expected return less that of the episode's lists,
    both exact; `late`: its mean over the last fifth of the episodes, in per cent of the best
    return; `slope`: that of log regret on log episodes from a sixteenth on, NaN with one episode;
    `bait`: the share of bait among the items of the last lists for the curious at first."""
    name = settings["learner"]
    if name not in LEARNERS:
        raise unknown_name("learner", name, LEARNERS)
    place = world(settings["items"])
    horizon, size, total = (settings[k] for k in ("horizon", "size", "episodes"))
    config = CascadingVIConfig(horizon, size, total, bonus=settings["bonus"])
    learner: Learner
    if name == "lists":
        learner = ListsAsActions(STATES, settings["items"], config)
    elif name == "stateless":
        learner = Stateless(place.reward, config)
    else:
        learner = CascadingVI(place.reward, config)
    best = optimum(*place, horizon, size)[1][0, 0]
    gaps = learn(learner, place, settings, seed, folder / "learner.pt", float(best))
    regret = gaps.cumsum()
    at = np.unique(np.geomspace(max(1, total // 16), total, 32).round().astype(int))
    logs = np.log(at), np.log(np.maximum(regret[at - 1], 1e-12))
    fit = np.polyfit(*logs, 1)[0] if len(at) > 1 else np.nan
    shown = learner.plan()[0][0][0]
    values = {
        "regret": float(regret[-1]),
        "late": float(100 * gaps[-max(1, total // 5) :].mean() / best),
        "slope": float(fit),
        "bait": float(np.mean([a < settings["items"] // 2 for a in shown])) if shown else 0.0,
    }
    at = np.unique(np.linspace(0, total - 1, POINTS).round().astype(int))
    curves = {"episode": (at + 1).tolist(), "regret": regret[at].round(3).tolist()}
    return Outcome({k: float(f"{v:.6g}") for k, v in values.items()}, curves)


def learn(
    learner: Any, place: World, settings: dict[str, Any], seed: int, path: Path, best: float
) -> np.ndarray:
    """How much each episode's lists lose in expectation [K]. Every episode has random numbers of
    its own, so that a learner goes on from the counts in `path` as it would have."""
    total, epsilon = settings["episodes"], settings["epsilon"]
    lists = list(all_lists(settings["items"], settings["size"]))
    holder = learner.inner if isinstance(learner, Stateless) else learner
    counts = [n for n in ("examined", "clicked", "moved", "paid") if hasattr(holder, n)]
    gaps, first = np.zeros(total), 0
    known: dict[Any, float] = {}
    if path.exists():
        state = checkpoint.load(path)
        first = state["episode"]
        gaps[:first] = state["gaps"]
        for name in counts:
            getattr(holder, name)[:] = np.array(state[name])
    for k in range(first, total):
        rng = np.random.default_rng((seed, k))
        policy, _ = learner.plan()
        if rng.random() < epsilon:
            drawn = rng.integers(len(lists), size=(len(policy), STATES))
            policy = [[lists[i] for i in row] for row in drawn]
        key = tuple(map(tuple, policy))
        if key not in known:
            known[key] = best - policy_values(policy, *place)[0, 0]
        gaps[k] = known[key]
        episode(learner, place, policy, rng)
        if (k + 1) % SAVE_EVERY == 0 and k + 1 < total:
            parts = {name: getattr(holder, name).tolist() for name in counts}
            checkpoint.save(path, {**parts, "episode": k + 1, "gaps": gaps[: k + 1].tolist()})
    return gaps


def episode(learner: Any, place: World, policy: Lists, rng: np.random.Generator) -> None:
    """One session of lists from the curious state, which the learner observes."""
    state = 0
    for lists in policy:
        items = lists[state]
        clicks = rng.random(len(items)) < place.attraction[state, list(items)]
        clicked = int(clicks.argmax()) if clicks.any() else None
        at = items[clicked] if clicked is not None else place.reward.shape[1]
        reached = int(rng.choice(STATES, p=place.transition[state, at]))
        learner.observe(state, items, clicked, reached)
        if isinstance(learner, ListsAsActions) and clicked is not None:
            learner.pay(state, items, float(place.reward[state, at]))
        state = reached


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Regret against episodes."""
    path = folder / f"cascading{suffix}.png"
    lines = figures.by_label(rows, figures.column("episode"), figures.column("regret"))
    figures.curves(lines, "episodes", "regret", path)
    return [path]
