"""The edge-of-reach problem in a plane, with the true dynamics as the model.

A point moves by its action, rollouts of k steps begin on a square, and no reward or dynamics error
is left to blame: what goes wrong goes wrong in the values of states that rollouts end in and never
begin in. "The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning", arXiv
2402.12527; the paper's rewards are not public, those here are this library's.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from algorithms import RAVLConfig, edac
from algorithms.evaluation.diagnosis import greedy_values, value_metrics, verdict
from algorithms.learners.soft_actor_critic import (
    LearnerConfig,
    SoftActorCritic,
    soft_value_target,
)
from algorithms.sources.imagined import ImaginationConfig, ImaginedRows
from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.plane import LIMIT, SQUARE, Plane
from mbrl import checkpoint
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.callbacks import read
from mbrl.errors import ConfigError, unknown_name
from mbrl.networks import Normaliser
from mbrl.training import Metrics
from mbrl.types import Dataset, Provenance, Transitions
from world_models import RolloutConfig, TrueDynamics, WorldModel

VERSION = 3
ANY_PRECISION = True
DEFAULTS: dict[str, Any] = {
    "reward": "zero",  # of the point mass
    "centre": [9.0, 9.0],  # of the bump or the distance; (9, 9) is at the very edge for k = 10
    "sd": 2.0,  # of the bump
    "critics": 2,  # N
    "eta": 0.0,  # weight of the diversity term
    "horizon": 10,  # k
    "clock": False,  # end the task after 30 steps, and let the agent see the time
    "alpha": 1.0,  # initial temperature
    "learn_alpha": True,  # adapt it
    "patch": "none",  # targets whose value is replaced by the exact one
    "updates": 12_000,
    "hidden": [64, 64],  # widths of actor and critics
    "unit": 1.0,  # length that the networks' coordinates are in units of
    "init": "edac",  # of the networks; corl: also CORL's small first critic layer
}
PATCHES = ("none", "oracle", "random", "variance", "bootstrapped")
STARTS, EVERY, RETAIN = 1000, 250, 5
POINTS = 500  # start states that are looked at
EVALUATIONS = 24  # evaluations of a run
SAVE_EVERY = 1000  # updates
QUARTER = 0.25  # of the value range: an excess beyond it is a blow-up


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train in the plane and compare values with certified bounds.

    `q` is the mean value at start states over the last third of the run, `bound` what no soft
    value there can exceed, (r_max + alpha ln 4) / (1 - gamma) with the largest temperature of that
    third; `lag_bound` is what values would be that follow that ceiling as it moves no faster than
    the target average lets them, `lag_ratio` is `q` over it; `slope` is that of `q`, per 1,000
    updates. `norm` is the largest coordinate after 30 greedy steps, `edge` the share of end states
    that only ends of rollouts reach, `auroc` how well the critics' spread tells these from trained
    states, `patched` the share of targets that were replaced. `excess` is by how much of the value
    range the last values at start states lie above what the policy earns from there (with as much
    entropy bonus as values remember), `blew_up` whether that is more than a quarter, `alarm` the
    update since which the detector's alarm stands at the end (NaN: it does not).
    """
    world, agent = build(settings, seed)
    evaluations, diagnoses = train(world, agent, settings["updates"], folder / "checkpoint.pt")
    rewards = (torch.tensor(world.lowest), torch.tensor(world.highest))
    generator = torch.Generator().manual_seed(0)
    learner = agent.learner
    metrics = value_metrics(
        learner,
        agent.model,
        starts(world),
        rewards,
        learner.remembered,
        generator,
        clip_rewards=False,
    )
    values = {
        "excess": float(metrics["value/excess"]),
        "blew_up": float(metrics["value/excess"] > QUARTER),
    }
    return Outcome(
        values | _summary(world, evaluations, diagnoses), _curves(evaluations, diagnoses)
    )


KINDS = ("value", "reach")
Looks = list[dict[str, float]]


def train(world: Plane, agent: "PatchedRAVL", updates: int, path: Path) -> tuple[Looks, Looks]:
    """All updates; the evaluations, and what the detector of runaway values saw. Every `SAVE_EVERY`
    updates their state is saved in `path`, from which a stopped training goes on."""
    agent.prepare(starting_data(world, agent.seed), lambda metrics: None)
    evaluations: Looks = []
    diagnoses: Looks = []
    metrics: Metrics = {}
    first = greedy_values(agent.learner, starts(world)).max().clamp_min(0.0).detach()
    lag_bound = first.expand(LIMIT if world.clock else 1)
    if path.exists():
        state = checkpoint.load(path)
        agent.step = state["step"]
        agent.load_state_dict(state["agent"])
        lag_bound, metrics = state["lag_bound"], state["metrics"]
        evaluations, diagnoses = state["evaluations"], state["diagnoses"]
    for step in range(agent.step + 1, updates + 1):
        metrics |= agent.advance() | agent.update(agent.next_batch())
        agent.step = step
        lag_bound = followed(lag_bound, metrics["actor/alpha"], world)
        if "value/at" in metrics:
            diagnoses.append(read({k: metrics.pop(k) for k in list(metrics) if k[:5] in KINDS}))
        if step % (updates // EVALUATIONS) == 0:
            seen = {"step": float(step), "lag_bound": float(lag_bound[0])}
            evaluations.append(seen | evaluate(world, agent, metrics))
        if step % SAVE_EVERY == 0:
            state = {
                "step": step,
                "agent": agent.state_dict(),
                "lag_bound": lag_bound,
                "metrics": metrics,
                "evaluations": evaluations,
                "diagnoses": diagnoses,
            }
            checkpoint.save(path, state)
    return evaluations, diagnoses


class PatchedRAVL(Agent[Batch]):
    """RAVL (or, with two critics and no diversity, SAC on imagined rollouts) whose targets take
    the exact value of some of the next states instead of the bootstrapped one."""

    version = 1
    config: RAVLConfig
    learner: SoftActorCritic
    source: ImaginedRows

    def build(
        self, generator: torch.Generator, model: WorldModel, world: Plane, kind: str, unit: float
    ) -> tuple[SoftActorCritic, ImaginedRows]:
        self.world, self.kind, self.unit = world, kind, unit
        c, device = self.config, self.device
        target = None if kind == "none" else self.patched_target
        learner = edac.diversified(self.spec, c.learner, device, generator, target)
        return learner, ImaginedRows(learner, model, c.imagination, device, self.seed)

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Take the data in; the networks see coordinates in lengths of `unit`, time as it is."""
        super().prepare(dataset, on_progress)
        if self.config.learner.normalise_obs:
            for name in ("actor", "critic", "target"):
                normaliser = self.learner.modules[name].normaliser
                assert isinstance(normaliser, Normaliser)
                normaliser.mean.zero_()
                normaliser.std.fill_(1.0)
                normaliser.std[:2] = self.unit

    def patched_target(self, learner: SoftActorCritic, batch: Batch, metrics: Metrics) -> Tensor:
        """The learner's target [B], of the chosen rows with the exact value."""
        chosen = self._chosen(batch)
        metrics["patched"] = chosen.double().mean()
        # The entropy bonus that goes with the value: the policy's own, now and later.
        bonus = metrics["actor/alpha"] * metrics["actor/entropy"] / (1 - self.config.gamma)
        exact = batch.reward + batch.discount * (self.world.value(batch.next_obs) + bonus)
        return torch.where(chosen, exact, soft_value_target(learner, batch))

    def _chosen(self, batch: Batch) -> Tensor:
        """[B] bool: as many rows as lie in the edge set, chosen by `kind`."""
        edge = self.world.at_edge(batch.next_obs)
        if self.kind == "oracle":
            return edge
        if self.kind == "random":
            rank = torch.rand(len(edge), generator=self.generator)
        elif self.kind == "variance":
            rank = greedy_values(self.learner, batch.next_obs).detach().std(0, correction=0)
        else:
            rank = self._visits(batch.next_obs)
        order = torch.argsort(torch.argsort(rank, descending=True))
        return order < edge.sum()

    def _visits(self, obs: Tensor) -> Tensor:
        """[B]: how often the targets of the buffer bootstrap from the unit cell of each state."""
        imagined = self.source.imagined
        ends = imagined.batch(imagined.rows[: imagined.size]).next_obs
        half = 2 * LIMIT + int(SQUARE)

        def cell(points: Tensor) -> Tensor:
            x, y = points[:, :2].floor().long().clamp(-half, half - 1).add(half).unbind(-1)
            return x * 2 * half + y

        counts = torch.bincount(cell(ends), minlength=4 * half * half)
        return counts[cell(obs)].double()


def build(settings: dict[str, Any], seed: int) -> tuple[Plane, PatchedRAVL]:
    """The world and an untrained agent. Raises `ConfigError` for a patch that does not exist, a
    horizon beyond an episode, a unit that is no length, updates fewer than the evaluations."""
    if settings["patch"] not in PATCHES:
        raise unknown_name("patch", settings["patch"], PATCHES)
    if not 1 <= settings["horizon"] <= LIMIT:
        raise ConfigError(f"horizon is {settings['horizon']}, it must lie in 1..{LIMIT}")
    if not 0 < settings["unit"] < math.inf:
        raise ConfigError(f"unit is {settings['unit']}, it must be a length above 0")
    if settings["updates"] < EVALUATIONS:
        raise ConfigError(
            f"updates is {settings['updates']}, it must be at least {EVALUATIONS}: a run has as "
            "many evaluations"
        )
    world = Plane(settings, LearnerConfig().gamma)
    config = RAVLConfig(
        learner=LearnerConfig(
            critics=settings["critics"],
            hidden=tuple(settings["hidden"]),
            eta=settings["eta"],
            alpha=settings["alpha"],
            learn_alpha=settings["learn_alpha"],
            normalise_obs=settings["unit"] != 1,
            init=settings["init"],
        ),
        imagination=ImaginationConfig(
            rollout=RolloutConfig(horizon=settings["horizon"]),
            starts=STARTS,
            every=EVERY,
            retain=RETAIN,
            real_ratio=0.0,
            diagnose=settings["updates"] // EVALUATIONS // EVERY * EVERY or EVERY,
        ),
    )
    model = TrueDynamics(world.task)
    agent = PatchedRAVL(
        world.task.spec,
        config,
        seed=seed,
        model=model,
        world=world,
        kind=settings["patch"],
        unit=settings["unit"],
    )
    return world, agent


def starting_data(world: Plane, seed: int) -> Dataset:
    """10,000 single steps from the square, of which only the start states are used."""
    generator = torch.Generator().manual_seed(seed)
    state = world.task.reset(10_000, generator)
    action = 2 * torch.rand(len(state), 2, generator=generator) - 1
    step = world.task.step(state, action)
    ended = step.terminated
    data = Transitions(state, action, step.reward, step.obs, ended, ~ended)
    return Dataset(data, world.task.spec, Provenance(card="a point in the plane"))


def starts(world: Plane) -> Tensor:
    """The start states of evaluations [POINTS, 2], or 3 columns with a clock."""
    return world.task.reset(POINTS, torch.Generator().manual_seed(1))


def followed(before: Tensor, alpha: Tensor, world: Plane) -> Tensor:
    """Values [30] by steps left, most first ([1] without a clock), one update after `before`, if
    every step paid the most it can, entropy ln 4 included, and each target was fitted exactly."""
    following = torch.cat([before[1:], before.new_zeros(1)]) if world.clock else before
    target = world.highest + alpha * math.log(4) + world.gamma * following
    return before + LearnerConfig().tau * (target - before)


@torch.no_grad()
def evaluate(world: Plane, agent: PatchedRAVL, metrics: Metrics) -> dict[str, float]:
    """The values, returns and penalties of the agent at its present step."""
    obs = starts(world)
    q = greedy_values(agent.learner, obs).min(0).values
    state, earned = obs, torch.zeros(POINTS)
    for _ in range(LIMIT):
        step = world.task.step(state, agent.policy(state))
        state, earned = step.state, earned + step.reward
    imagined = agent.source.imagined
    rows = imagined.batch(imagined.rows[: imagined.size])
    edge = world.at_edge(rows.next_obs)
    return {
        "q": float(q.mean()),
        "q_max": float(q.max()),
        "exact": float(world.value(obs).mean()),
        "alpha": float(metrics["actor/alpha"]),
        "return": float(earned.mean()),
        "norm": float(state[:, :2].abs().amax(-1).mean()),
        "edge": float(edge.double().mean()),
        "patched": float(metrics.get("patched", torch.zeros(()))),
        **_spread(world, agent, rows.obs[edge_free(rows.obs, world)]),
    }


def edge_free(obs: Tensor, world: Plane) -> Tensor:
    """A mask of evenly spaced trained states that are not at the edge."""
    keep = torch.zeros(len(obs), dtype=torch.bool)
    keep[:: max(1, len(obs) // POINTS)] = True
    return keep & ~world.at_edge(obs)


def _spread(world: Plane, agent: PatchedRAVL, inside: Tensor) -> dict[str, float]:
    """Medians of the effective penalty inside and on a ring of edge states, and the area under the
    curve of the critics' spread as a test for the edge. The ring is drawn, since an agent that
    stays inside visits no edge state."""
    ring = world.ring(POINTS, torch.Generator().manual_seed(2))
    penalties = {}
    spreads = []
    for name, states in (("inside", inside), ("edge", ring)):
        q = greedy_values(agent.learner, states)
        penalties[f"penalty_{name}"] = float((q.mean(0) - q.min(0).values).median())
        spreads.append(q.std(0, correction=0).numpy())
    low, high = spreads
    rank = stats.mannwhitneyu(high, low).statistic / (len(high) * len(low))
    return penalties | {"auroc": float(rank)}


def _summary(
    world: Plane, evaluations: list[dict[str, float]], diagnoses: list[dict[str, float]]
) -> dict[str, float]:
    third = evaluations[-(len(evaluations) // 3) :]
    steps, q = np.array([[e["step"], e["q"]] for e in third]).T
    alpha = max(e["alpha"] for e in third)
    years = sum(world.gamma**t for t in range(LIMIT)) if world.clock else 1 / (1 - world.gamma)
    diagnosis, last = verdict(diagnoses), evaluations[-1]
    lag_bound = float(np.mean([e["lag_bound"] for e in third]))
    return {
        "q": float(q.mean()),
        "lag_bound": lag_bound,
        "lag_ratio": float(q.mean()) / lag_bound,
        "slope": 1000 * float(np.polyfit(steps, q, 1)[0]),
        "bound": (world.highest + alpha * math.log(4)) * years,
        "edge": float(np.mean([e["edge"] for e in evaluations])),
        "patched": float(np.mean([e["patched"] for e in evaluations])),
        "alarm": float("nan") if diagnosis.since is None else float(diagnosis.since),
        **{k: last[k] for k in ("return", "norm", "penalty_inside", "penalty_edge", "auroc")},
    }


def _curves(
    evaluations: list[dict[str, float]], diagnoses: list[dict[str, float]]
) -> dict[str, list[float]]:
    """The values of every evaluation and, under names of their own, of every diagnosis."""
    names = ("step", "q", "q_max", "alpha", "lag_bound", "return", "norm", "edge")
    own = {"at": "value/at", "value": "value/q", "earned": "value/monte_carlo"}
    return {name: [e[name] for e in evaluations] for name in names} | {
        name: [d[known] for d in diagnoses]
        for name, known in (own | {"excess": "value/excess"}).items()
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Mean value at start states against updates; where panels differ in one hyperparameter, also
    the mean over the last third of training against it."""
    panels = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["q"])
    by_value: dict[str, dict[float, list[float]]] = {}
    for label, records in rows.items():
        panel, line = label.split(", ", 1)
        if " = " in panel:
            at = float(panel.split(" = ")[1])
            by_value.setdefault(line, {})[at] = [r["values"]["q"] for r in records]
    files = [folder / f"values{suffix}.png"]
    figures.curves(panels, "updates", "mean value at start states", files[0])
    if all(" = " in panel for panel in panels):
        lines = {line: figures.pointwise(at) for line, at in by_value.items()}
        files.append(folder / f"knob{suffix}.png")
        name = next(iter(panels)).split(" = ")[0]
        figures.against_hyperparameter(lines, name, files[1], "mean value, last third")
    return files
