"""Recipes for what a model cannot sample by itself, from warm starts that know how to read hints,
at the same number of sampled tokens."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.studies import Outcome, language_training
from mbrl.policy_gradient import RECIPES
from mbrl.records import MetricsFile
from mbrl.statistics import Interval, confidence_interval, mean

VERSION = 1
DEFAULTS = language_training.DEFAULTS | {
    "config": {"prompts": 16},
    "shown": {"hinted": 0.5},  # of the demonstrations of the warm start that a hint precedes
    "steps": 5000,  # more than any run has: the tokens end it
}
needs = language_training.needs

TOKENS = {"chain": 200_000, "calculator": 200_000, "grid_world": 100_000}  # sampled by a run
LEVELS: dict[str, list[int]] = {"calculator": [2], "grid_world": [3]}  # where not the task's own
ROWS_OF = {
    "chain": (
        "grpo",
        "prefix_rl",
        "scope",
        "adhint",
        "int_rl",
        "policy_rollout",
        "agent_rlvr",
        "cog_rethinker",
        "rltf_sd",
        "tt_opd",
        "openclaw_rl",
        "latr",
    ),
    "calculator": ("grpo", "fission_grpo", "cleaner"),
    "grid_world": ("grpo", "on_policy_distillation", "tcod"),
}
EXPERT = 200  # updates of demonstrations by which a warm start becomes an expert
MARK = " (reconstructed)"


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """As `language_training.measure`, and `acts`: the recipe's mechanism number, mean over rounds
    (NaN for a recipe that has none)."""
    outcome = language_training.measure(settings, seed, folder)
    rows = MetricsFile(folder / "run" / "metrics.csv").rows()
    acts = [float(row["rollout/acts"]) for row in rows if row.get("rollout/acts")]
    values = outcome.values | {"acts": float(np.mean(acts)) if acts else math.nan}
    return Outcome(values, outcome.curves)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Points gained on problems held out, a panel for each task."""
    panels: dict[str, dict[str, Interval]] = {}
    for label, records in rows.items():
        task, name = label.split(", ", 1)
        gains = np.array([record["values"]["gain"] for record in records])
        if len(gains) > 1 and np.isfinite(gains).all():
            panels.setdefault(task, {})[name] = confidence_interval(gains, mean)
    panels = {task: panel for task, panel in panels.items() if len(panel) > 1}
    if not panels:
        return []
    path = folder / f"gains{suffix}.png"
    figures.intervals(panels, path, "points gained over the warm start")
    return [path]


def _row(task: str, name: str) -> dict[str, Any]:
    note = MARK if RECIPES[name].mark == "reconstructed" else ""
    levels = LEVELS.get(task, [])
    row = {"label": f"{task}, {name}{note}", "task": task, "recipe": name, "tokens": TOKENS[task]}
    row["config"] = DEFAULTS["config"] | {"levels": levels}
    row["shown"] = DEFAULTS["shown"] | {"levels": levels}
    distils = task == "grid_world" and name != "grpo"
    return row | ({"expert": EXPERT} if distils else {})


def _rows(task: str) -> list[dict[str, Any]]:
    return [_row(task, name) for name in ROWS_OF[task]]


ROWS = {task: partial(_rows, task) for task in ROWS_OF}
