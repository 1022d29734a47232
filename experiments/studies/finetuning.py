"""A policy that was trained in one task goes on in another one: what it costs and where it ends."""

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import algorithms
from experiments.reports import figures
from experiments.runs import continuation
from experiments.runs import training as runs
from experiments.runs.study import place
from experiments.settings import CollectionSettings, RunSettings, build_config, merge, preset
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl import tasks
from mbrl.collector import CollectorConfig
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.records import Evaluations

VERSION = 2
DEFAULTS: dict[str, Any] = {
    "task": "CartPoleSwingUp-v0",  # of the first policy
    "changed": "CartPoleSwingUp-v0,pole_mass=1.0,half_length=1.0",  # where it goes on
    "before": 40_000,  # steps of SAC in the first task
    "before_collection": {},  # how it gathers experience
    "algorithm": "lift",
    "config": {},  # settings over the preset's
    "collection": {},  # how experience is gathered, over what the algorithm has
    "pretrained": True,  # whether the first policy goes on; else a new one begins
    "steps": 5000,  # in the changed task
    "every": 500,  # of them between evaluations
    "starts": 50,  # fixed ones of every evaluation
    "limit": 2.4,  # m from the middle, beyond which a real cart would meet the end of its track
}


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    run, config = first_run(settings, seed)
    parts = [asdict(run), configs.to_dict(config), algorithms.SAC.version]
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    folder = (home / "trainings" / f"sac-{settings['task']}-{seed}-{name}").resolve()
    runs.ensure(run, config, folder)
    return {"before": folder}


def first_run(settings: dict[str, Any], seed: int) -> tuple[RunSettings, Any]:
    """Settings and config of SAC in the first task."""
    task = settings["task"]
    run = RunSettings(
        "sac", task, steps=settings["before"], seed=seed, eval_every=0, tensorboard=False,
        collection=CollectionSettings(**settings["before_collection"]),
    )  # fmt: skip
    return run, build_config("sac", preset("sac", task)["config"])


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train in the first task, then go on in the changed one.

    Normalised scores of greedy actions in the changed task: `start` before the first step there,
    `lowest` and `end` of the later evaluations, `mean` over them. Of the steps there: `collected`,
    the mean score of the episodes that were finished, `outside`, the share in percent beyond the
    limit, `jitter`, the mean change of the action from one step to the next, of the range -1 to 1.
    """
    before = place(folder, "before").resolve()
    run, config = first_run(settings, seed)
    runs.ensure(run, config, before)
    runs.TrainingRun(before).finish()
    name, changed = settings["algorithm"], settings["changed"]
    begin: dict[str, Any] = {"after": str(before)} if settings["pretrained"] else {}
    run = RunSettings(
        name, changed, **begin, steps=settings["steps"], seed=seed,
        eval_every=settings["every"], eval_episodes=settings["starts"],
        final_episodes=settings["starts"], tensorboard=False,
        collection=CollectionSettings(**settings["collection"]),
    )  # fmt: skip
    config = build_config(name, preset(name, changed)["config"])
    if settings["pretrained"]:
        config = continuation.config_after(run, config, runs.TrainingRun(before))
    config = build_config(name, merge(configs.to_dict(config), settings["config"]))
    require_room(run, config)
    task = tasks.make(changed)
    earlier = algorithms.load(before / "checkpoint.pt")
    cls, _ = algorithms.ALGORITHMS[name]
    first = earlier if settings["pretrained"] else cls(task.spec, config, seed=seed)
    start = float(task.spec.score(evaluate(first, task, settings["starts"]).mean()))
    online = folder / "online"
    runs.ensure(run, config, online)
    runs.TrainingRun(online).finish()
    known = Evaluations.load(online / "evaluations.npz")
    scores = [start, *(float(task.spec.score(r.mean())) for r in known.returns)]
    values = {
        "start": start,
        "lowest": min(scores[1:]),
        "end": scores[-1],
        "mean": float(np.mean(scores[1:])),
        **of_the_steps(online, task, settings["limit"]),
    }
    return Outcome(values, {"step": [0.0, *map(float, known.steps)], "score": scores})


def require_room(run: RunSettings, config: Any) -> None:
    """Raise `ConfigError` where the replay forgets steps, whose numbers are read from it."""
    given, own = run.collection, getattr(config, "online", CollectorConfig())
    capacity = given.capacity or own.capacity
    rows = (run.steps or 0) * (given.envs or own.envs)
    if capacity < rows:
        raise ConfigError(
            f"collection.capacity is {capacity}, and the replay is to hold the {rows} rows of all "
            "steps, whose numbers are read from it; give that many"
        )


def of_the_steps(folder: Path, task: Any, limit: float) -> dict[str, float]:
    """What the steps in the task were like, from the experience in the checkpoint of a run."""
    agent = algorithms.load(folder / "checkpoint.pt")
    rows = getattr(agent.source, "real", agent.source).rows.whole()
    length, copies = task.spec.max_episode_steps, agent.source.collection.envs
    reward, action = (x.unflatten(0, (-1, copies)) for x in (rows.reward, rows.action))
    whole = len(reward) // length * length  # no episode ends before its limit
    returns = reward[:whole].reshape(-1, length, copies).sum(1).double().numpy()
    score = float(task.spec.score(returns.mean())) if whole else math.nan
    change = (action[1:] - action[:-1]).abs().mean()
    return {
        "collected": score,
        "outside": 100.0 * float((rows.next_obs[:, 0].abs() > limit).float().mean()),
        "jitter": float(change) / 2,
    }


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score against steps in the changed task."""
    panels = figures.by_label(rows, lambda r: r["curves"]["step"], lambda r: r["curves"]["score"])
    path = folder / f"finetuning{suffix}.png"
    figures.curves(panels, "steps in the changed task", "normalised score", path, top=100)
    return [path]
