"""The page about a run of a language model."""

from pathlib import Path

import numpy as np

from algorithms.language.evaluation import with_error
from experiments.reports import figures
from experiments.reports.figures import Curve
from experiments.reports.page_parts import facts, image, losses, single_run, write_page
from experiments.runs import folders
from experiments.runs import language as language_run
from mbrl.records import MetricsFile

WATCHED = (
    *("rollout/success", "rollout/mixed_groups", "rollout/length", "rollout/entropy"),
    *("policy/ratio_max", "policy/effective_samples", "policy/gradient_norm", "rollout/age"),
    *("imitation/loss",),
)


def write(folder: Path) -> Path:
    """The page of a run, with its figures beside it."""
    settings, config = language_run.read_settings(folder)
    name = getattr(config, "recipe", settings.learner)
    title = f"{name} on {config.task}, seed {settings.seed}"
    parts = [_summary(folder), *_accuracy(folder), *losses(folder, WATCHED)]
    return write_page(folder, title, parts)


def _summary(folder: Path) -> str:
    if not (folder / "result.json").exists():
        return facts({"state": "not finished"})
    result = folders.read_json(folder / "result.json")
    shown = {"steps": result["step"], "accuracy, trained levels": f"{result['accuracy']:.3f}"}
    for level in result["levels"]:
        more = {f"pass@{k}": v for k, v in level["passes"].items() if k != "1"}
        more |= {f"cons@{k}": v for k, v in level["agrees"].items() if k != "1"}
        text = ", ".join(f"{k} {v:.3f}" for k, v in more.items())
        value = with_error(level["accuracy"], level["error"])
        shown[f"level {level['level']}"] = f"{value}, {text}" if text else value
    return facts(shown)


def _accuracy(folder: Path) -> list[str]:
    """Accuracy on new problems, a line a level."""
    panels: dict[str, dict[str, Curve]] = {}
    rows = MetricsFile(folder / "evaluations.csv").rows()
    for level in dict.fromkeys(row["level"] for row in rows):
        own = [row for row in rows if row["level"] == level]
        panel = "trained levels" if own[0]["trained"] == "1" else "held-out levels"
        x = np.array([float(row["step"]) for row in own])
        y = np.array([float(row["accuracy"]) for row in own])
        panels.setdefault(panel, {})[f"level {level}"] = single_run(x, y)
    if not panels:
        return []
    figures.curves(panels, "steps", "accuracy", folder / "report-accuracy.png", top=1.0)
    return ["<h2>Accuracy on new problems</h2>", image("report-accuracy", "accuracy by level")]
