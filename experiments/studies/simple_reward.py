"""One simple product against a shaped sum as the reward of a driver, over minibatch sizes: CaRL:
Learning Scalable Planning Policies with Simple Rewards (arXiv 2504.17838), in a small task.

The paper claims that PPO with a shaped sum gets worse as minibatches grow and that it does not with
route completion times penalties. Here PPO of this library learns on WindingRoad-v0 at the same
number of transitions; a minibatch is whole episodes, at most 256 steps each."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms import PolicyGradient, PolicyGradientConfig
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.evaluation import START_SEED
from mbrl.tasks.winding_road import CLEAR, LANE, LENGTH, LIMIT_SPEED, distance_off, gap_to_parked

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "reward": "simple",  # or shaped, progress
    "minibatch": 1024,  # steps at most, 256 of an episode
    "rate": 5e-4,  # learning rate at a minibatch of 256; it grows with the root of the size
    "steps": 3000,  # of each of the 64 copies
    "epochs": 3,
    "episodes": 100,  # fixed starts of the evaluation
}
ENVS, EPISODE = 64, 256  # copies, and steps of an episode at most (250, counted as 256)
QUARTERS = 4  # of the training, with an evaluation each
HIT = 0.65  # factor of a collision, or of leaving the road


def config(settings: dict[str, Any]) -> PolicyGradientConfig:
    """The settings of a cell. Raises `ConfigError` for a minibatch that is not 256 times a divisor
    of the 64 copies."""
    size = settings["minibatch"]
    if size % EPISODE or ENVS % max(1, size // EPISODE):
        raise ConfigError(
            f"minibatch is {size}, it must be {EPISODE} times a divisor of the {ENVS} copies"
        )
    rate = settings["rate"] * (size / EPISODE) ** 0.5
    return PolicyGradientConfig(
        recipe="ppo",
        group=1,
        envs=ENVS,
        epochs=settings["epochs"],
        minibatches=ENVS * EPISODE // size,
        learning_rate=rate,
        critic_rate=rate,
    )


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train, then drive greedily from fixed starts: `score` and what it is made of, see `drive`.
    The curve is that of the score at every quarter of the training."""
    task = tasks.make("WindingRoad-v0", reward=settings["reward"])
    agent = PolicyGradient(task.spec, config(settings), seed=seed)
    steps: list[float] = []
    scores: list[float] = []
    values: dict[str, float] = {}
    for part in range(1, QUARTERS + 1):
        agent.learn(task, settings["steps"] * part // QUARTERS - agent.step, callbacks=[])
        values = drive(agent.policy, settings["episodes"])
        steps.append(float(agent.step * ENVS))
        scores.append(values["score"])
    return Outcome(values, {"step": steps, "score": scores})


@torch.no_grad()
def drive(policy: torch.nn.Module, episodes: int) -> dict[str, float]:
    """Means over the episodes: `score`, the driving score in per cent, route completion x 0.65
    where a parked car was touched or the road was left x (1 - share of steps outside the lanes) x
    (1 - share of steps above the speed limit); `completion`, per cent of the route; `hit` and
    `left`, per cent of the episodes that touched a car, and that left the road; `speed`, m/s;
    `simple`, the return of the simple reward."""
    task = tasks.make("WindingRoad-v0")
    state = task.reset(episodes, torch.Generator().manual_seed(START_SEED))
    on = torch.ones(episodes, dtype=torch.bool)
    hit, left = torch.zeros_like(on), torch.zeros_like(on)
    count, outside, fast, earned, speed = torch.zeros(5, episodes, dtype=torch.float64)
    for _ in range(task.spec.max_episode_steps or 0):
        step = task.step(state, policy(task.observe(state)))
        reached = torch.where(on[:, None], step.state, state)
        off = distance_off(reached).abs()
        count += on
        outside += on & (off > LANE)
        fast += on & (reached[:, 3] > LIMIT_SPEED)
        speed += torch.where(on, reached[:, 3], 0.0)
        earned += torch.where(on, step.reward, 0.0)
        touched = gap_to_parked(reached) < CLEAR
        hit |= on & step.terminated & touched
        left |= on & step.terminated & ~touched
        on &= ~step.ended
        state = reached
        if not bool(on.any()):
            break
    completion = 100 * state[:, 4].double() / LENGTH
    factor = torch.where(hit | left, HIT, 1.0) * (1 - outside / count) * (1 - fast / count)
    return {
        "score": float((completion * factor).mean()),
        "completion": float(completion.mean()),
        "hit": 100 * float(hit.double().mean()),
        "left": 100 * float(left.double().mean()),
        "speed": float((speed / count).mean()),
        "simple": float(earned.mean()),
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Driving score against the size of a minibatch, a line a reward."""
    at: dict[str, dict[float, list[float]]] = {}
    for label, records in rows.items():
        name, _, size = label.partition(", minibatch ")
        scores = [record["values"]["score"] for record in records]
        at.setdefault(name, {})[float(np.log2(float(size)))] = scores
    file = folder / f"minibatches{suffix}.png"
    lines = {name: figures.pointwise(points) for name, points in at.items()}
    axis = "log2 of the steps in a minibatch"
    figures.curves({"WindingRoad-v0": lines}, axis, "driving score", file)
    return [file]


def _sizes() -> list[dict[str, Any]]:
    """Every reward at every size."""
    return [
        {"label": f"{reward}, minibatch {size}", "reward": reward, "minibatch": size}
        for reward in ("simple", "shaped")
        for size in (256, 1024, 4096, 16384)
    ]


ROWS = {"sizes": _sizes}
