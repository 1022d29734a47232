"""Policy gradients of language models on conversations of earlier policies."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.studies import language_training

VERSION = 1
SAME = {"prompts": 16, "minibatches": 4}
DEFAULTS = language_training.DEFAULTS | {"config": SAME}
needs, measure = language_training.needs, language_training.measure

AGES = (0, 4, 16, 64)  # updates between sampling and learning, whole rounds of four
CHOSEN = {
    "grpo": "GRPO",
    "dual_clip_grpo": "GRPO dual clip",
    "truncated_is_grpo": "TIS",
    "minpro": "MinPRO",
    "topr": "TOPR",
    "vcpo": "VCPO",
    "areal": "decoupled PPO",
}
SHOWN = {
    "score": "accuracy in %",
    "tail": "share of tokens twice or half as likely",
    "effective": "share of effective samples",
}


def ages() -> list[dict[str, Any]]:
    """A row for every recipe and age."""
    return [
        {
            "label": f"{title}, {age} updates",
            "recipe": name,
            "config": SAME | {"staleness": age},
        }
        for name, title in CHOSEN.items()
        for age in AGES
    ]


ROWS = {"every age": ages}


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Score, ratio tail and effective samples against the age of the data, a line for each
    recipe."""
    lines: dict[str, dict[float, list[dict[str, Any]]]] = {}
    for label, records in rows.items():
        line, age = label.split(", ")
        lines.setdefault(line, {})[float(age.split(" ")[0])] = records
    panels = {title: {n: _line(at, key) for n, at in lines.items()} for key, title in SHOWN.items()}
    path = folder / f"staleness{suffix}.png"
    figures.curves(panels, "updates between sampling and learning", "", path)
    return [path]


def _line(at: dict[float, list[dict[str, Any]]], key: str) -> figures.Curve:
    ages = sorted(at)
    seeds = min(len(at[age]) for age in ages)  # an unfinished table has whole seeds
    values = [[at[age][i]["values"][key] for age in ages] for i in range(seeds)]
    return figures.curve(np.array(ages), np.array(values))
