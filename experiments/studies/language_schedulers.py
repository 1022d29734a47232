"""Schedulers of answers over prompts, and other kinds of rounds, beside uniform sampling at the
same number of sampled tokens."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures, papers
from experiments.studies import language_training
from mbrl import statistics
from mbrl.policy_gradient.schedulers import SCHEDULERS

VERSION = 1
DEFAULTS = language_training.DEFAULTS | {
    "steps": 120_000,
    "tokens": 120_000,
}  # whichever comes first
needs, measure = language_training.needs, language_training.measure

TASK = "grid_world"  # of several turns, so that horizons and partial conversations make sense
PENALTIES = "calculator"  # the task with the signal that grpo_roc reads
# In every row alike: few problems, so that each comes again some times.
SAME = {"pool": 100, "prompts": 16, "learning_rate": 6e-4}
# Kinds of rounds that are no scheduler; in halves: of the groups, of an answer.
ROUNDS: dict[str, dict[str, Any]] = {
    "scaling_inter": {"horizon": [8, 14, 20], "horizon_every": 15},
    "exit": {"starts_share": 0.5},
    "pivot_rl": {"pivots": 100},
    "arrol": {"prune_at": 10},
    "prompt_augmentation": {"templates": 8},
}
OWN: dict[str, dict[str, Any]] = {
    "dars": {"scheduler_settings": ["std=True"]},  # GRPO's scale
    "difficulty_targeted": {"scheduler_settings": ["references=4"]},  # half of such a small round
}
# Spread answers when a trained model is used, not in training.
AT_TEST = ("pets_allocation", "pets_allocation_online")
WITH_FILE = ("v0",)  # needs a value model that was pretrained


def all_schedulers() -> list[dict[str, Any]]:
    """A row for uniform sampling, then one for each component of `list schedulers` that acts in
    training on the multi-turn task."""
    names = [
        n for n in papers.all_schedulers() if n not in ("grpo_roc_scheduler", *AT_TEST, *WITH_FILE)
    ]
    return [_row(TASK, name) for name in names]


def with_penalties() -> list[dict[str, Any]]:
    return [_row(PENALTIES, name) for name in ("uniform", "grpo_roc_scheduler")]


def _row(task: str, name: str) -> dict[str, Any]:
    own = {"scheduler": name} | OWN.get(name, {}) if name in SCHEDULERS else ROUNDS[name]
    known = papers.all_schedulers()[name]
    note = " (reconstructed)" if known.mark == "reconstructed" else ""
    label = f"{task}, {name}{note}"
    return {"label": label, "task": task, "config": SAME | own}


ROWS = {"all schedulers": all_schedulers, "with penalties": with_penalties}


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Accuracy and share of groups with signal, best accuracy first, without runs that diverged."""
    done = {
        label.split(", ", 1)[1]: kept
        for label, records in rows.items()
        if (kept := [r for r in records if np.isfinite(r["values"]["score"])])
    }
    done = dict(sorted(done.items(), key=lambda item: -_mean(item[1], "score").estimate))
    panels = {
        title: {name: _mean(records, key) for name, records in done.items()}
        for key, title in (("score", "accuracy in %"), ("signal", "share of groups with signal"))
    }
    path = folder / f"schedulers{suffix}.png"
    figures.intervals(panels, path, "mean over seeds")
    return [path]


def _mean(records: list[dict[str, Any]], key: str) -> statistics.Interval:
    return statistics.confidence_interval(
        np.array([r["values"][key] for r in records]), statistics.mean
    )
