"""Every recipe that is available on text tasks, from the same warm starts at the same budget."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.tasks import TASKS
from experiments.reports import figures
from experiments.studies import language_training
from mbrl import statistics
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES

VERSION = 1
DEFAULTS = language_training.DEFAULTS | {"config": {"prompts": 16}}
needs, measure = language_training.needs, language_training.measure

COMMON = ("brackets", "grid_world")  # one turn, several turns
# Rounds that take GRPO about 15 and 40 seconds of one core; by then it has gained some points.
ROUNDS = {"brackets": 150, "grid_world": 45}
OTHERS = 40  # rounds on every other task
# Where these take GRPO some ten seconds, in which it loses points or gains one.
SHORT = ("formatted", "chain", "retrieval", "kernels")
RATES = {"grid_world": 6e-4}  # of learning, where it is not the default
MARK = " (reconstructed)"
# What some recipes need beside the defaults; an expert is made by the cell.
EXTRA: dict[str, dict[str, Any]] = {
    "reinforce_ada": {"config": {"scheduler": "reinforce_ada_scheduler", "pool": 500}},
    "calibrl": {"expert": 200},
    "mc_grpo": {"config": {"group": 9}},  # one answer more is drawn, a median one left out
}


@functools.cache
def takes(recipe: str, task: str) -> bool:
    """Whether training on `task` provides all that `recipe` needs."""
    extra = EXTRA.get(recipe, {})
    given: dict[str, Any] = {"task": task, "recipe": recipe} | extra.get("config", {})
    if "expert" in extra:
        given["expert"] = "made by the cell"
    try:
        LanguageConfig(**given)
    except ConfigError:
        return False
    return True


def on_common_tasks() -> list[dict[str, Any]]:
    """A row for each of the two tasks and each recipe that is available there."""
    return [_row(task, name) for task in COMMON for name in RECIPES if takes(name, task)]


def on_own_tasks() -> list[dict[str, Any]]:
    """For each recipe that is available on neither of the two tasks, a row on the first task where
    it is, and a row of GRPO there."""
    rows: dict[str, list[str]] = {}
    for name in RECIPES:
        if any(takes(name, task) for task in COMMON):
            continue
        first = next((task for task in TASKS if takes(name, task)), None)
        if first is not None:
            rows.setdefault(first, ["grpo"]).append(name)
    return [_row(task, name) for task, names in rows.items() for name in names]


def on_own_tasks_for_longer() -> list[dict[str, Any]]:
    """The rows of short runs again, with ten times the rounds."""
    return [
        row | {"label": row["label"].replace(",", " at ten times,", 1), "steps": 10 * OTHERS}
        for row in on_own_tasks()
        if row["task"] in SHORT
    ]


def _row(task: str, name: str) -> dict[str, Any]:
    note = MARK if RECIPES[name].mark == "reconstructed" else ""
    steps = ROUNDS.get(task, OTHERS)
    row = {"label": f"{task}, {name}{note}", "task": task, "recipe": name, "steps": steps}
    extra = EXTRA.get(name, {})
    config = DEFAULTS["config"] | extra.get("config", {})
    if task in RATES:
        config["learning_rate"] = RATES[task]
    if name == "remix":  # its first stage is as long a part of every run
        config["mixed_rounds"] = 2 * steps // 3
    return row | extra | {"config": config}


ROWS = {
    "on both tasks": on_common_tasks,
    "on tasks of their own": on_own_tasks,
    "on tasks of their own, for longer": on_own_tasks_for_longer,
}


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Interquartile means of the scores with intervals, best first, without runs that diverged: a
    figure for each task, and one over all tasks for the recipes of all."""
    tasks = {
        task: {n: s[np.isfinite(s)] for n, s in scores.items() if np.isfinite(s).any()}
        for task, scores in by_task(rows).items()
    }
    panels = {task: {n: _iqm([s]) for n, s in scores.items()} for task, scores in tasks.items()}
    if len(tasks) > 1:
        everywhere = set.intersection(*(set(by_name) for by_name in tasks.values()))
        if len(everywhere) > 1:
            both = {n: _iqm([by_name[n] for by_name in tasks.values()]) for n in sorted(everywhere)}
            panels = {"all tasks": both} | panels
    files = []
    for title, intervals in panels.items():
        if len(intervals) < 2:
            continue
        files.append(folder / f"scores-{title.replace(' ', '-')}{suffix}.png")
        ranked = dict(sorted(intervals.items(), key=lambda item: -item[1].estimate))
        figures.intervals({title: ranked}, files[-1], "accuracy in %, IQM")
    return files


def by_task(rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, np.ndarray]]:
    """Scores [seeds] by task and recipe, without recipes that had no signal to learn from."""
    tasks: dict[str, dict[str, np.ndarray]] = {}
    for label, records in rows.items():
        task, name = label.split(", ", 1)
        if records and not any(r["values"].get("no_signal") for r in records):
            scores = np.array([r["values"]["score"] for r in records])
            tasks.setdefault(task, {})[name] = scores
    return tasks


def _iqm(scores: list[np.ndarray]) -> statistics.Interval:
    return statistics.confidence_interval(scores, statistics.iqm)
