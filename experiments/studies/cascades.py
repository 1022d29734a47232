"""Domains in turn, in one order or the other, beside all at once and each alone: what is gained and
what is forgotten, from the same warm starts at the same number of sampled tokens."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.runs import folders
from experiments.runs.language import after_stages
from experiments.studies import Outcome, language_training

VERSION = 1
PARTS = ("brackets", "grid_world")
TASK = "+".join(PARTS)
LEVELS = [3, 4, 1003]  # of brackets 3 and 4, of grid_world 3
TOKENS = 200_000  # sampled by a run
DEFAULTS = language_training.DEFAULTS | {
    "task": TASK,
    "config": {"prompts": 16, "levels": LEVELS, "learning_rate": 6e-4},
    "shown": {"levels": LEVELS},
    "recipe": "grpo",
    "steps": 5000,  # more than any run has: the tokens end it
    "eval_problems": 200,  # of each level, after a stage
    "tokens": TOKENS,
}
needs = language_training.needs


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """As `language_training.measure`, and of each part, in percent: `before_` and `score_` (levels
    trained on, new problems), `gain_`, points, and `forgotten_`: by how many points the best before
    the last, warm start included, lies above the last. `gain_all` is their mean gain. Of a run that
    diverges `before_` alone are numbers."""
    outcome = language_training.measure(settings, seed, folder)
    start = folders.read_json(folder / "run" / "config.json")["language"]["start"]
    before = folders.read_json(Path(start) / "result.json")["parts"]
    scores = np.full((1, len(PARTS)), math.nan)
    if not math.isnan(outcome.values["score"]):  # a run that diverged has no result
        scores = 100 * after_stages(folder / "run").numpy()
    first = np.array([[100 * before[name] for name in PARTS]])
    whole = np.concatenate([first, scores])
    lost = whole[:-1].max(0) - whole[-1]
    values = dict(outcome.values)
    for k, name in enumerate(PARTS):
        values |= {
            f"before_{name}": float(whole[0, k]),
            f"score_{name}": float(whole[-1, k]),
            f"gain_{name}": float(whole[-1, k] - whole[0, k]),
            f"forgotten_{name}": float(lost[k]),
        }
    values["gain_all"] = float((whole[-1] - whole[0]).mean())
    return Outcome(values, outcome.curves)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """What each row gains on each part and forgets of it."""
    panels = {
        f"{name}: {kind}": panel
        for name in PARTS
        for kind in ("gain", "forgotten")
        if len(panel := figures.panel(rows, f"{kind}_{name}")) > 1
    }
    if not panels:
        return []
    path = folder / f"parts{suffix}.png"
    figures.intervals(panels, path, "points")
    return [path]


def _staged(label: str, *stages: str) -> dict[str, Any]:
    """A row of stages that share its tokens."""
    config = {"stages": list(stages), "stage_tokens": TOKENS // len(stages)}
    return {"label": label, "config": DEFAULTS["config"] | config}


def _rows() -> list[dict[str, Any]]:
    first, second = PARTS
    return [
        {"label": "blend"},
        _staged(f"{first}, then {second}", first, second),
        _staged(f"{second}, then {first}", second, first),
        _staged(f"{first} alone", first),
        _staged(f"{second} alone", second),
    ]


ROWS = {"domains": _rows}
