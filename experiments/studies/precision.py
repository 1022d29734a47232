"""Sampling in few bits, and learning in full precision or in the same bits. "Jet-RL: Enabling
On-Policy FP8 Reinforcement Learning with Unified Training and Rollout Precision Flow", arXiv
2601.14243."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.language.models.quantised import Precision, in_precision
from experiments.reports import figures
from experiments.runs import language as language_run
from experiments.studies import Outcome, language_training
from mbrl.records import MetricsFile

VERSION = 1
SAME = {"prompts": 16, "learning_rate": 6e-4}
DEFAULTS = language_training.DEFAULTS | {"config": SAME}
needs = language_training.needs
FORMATS: tuple[Precision, ...] = ("fp8", "int4", "int3")
SHOWN = {"gain_deployed": "gain in points, as deployed", "kl": "divergence a token"}
APART = {"kl": "rollout/precision_kl", "gap": "rollout/precision_gap"}


def modes() -> list[dict[str, Any]]:
    """A row for full precision, and three for every number format: sampling alone, the same with
    truncated importance weights, and both."""
    rows: list[dict[str, Any]] = [{"label": "full precision", "config": SAME}]
    for few in FORMATS:
        alone = SAME | {"sampling_precision": few}
        both = alone | {"training_precision": few}
        rows += [
            {"label": f"{few}: sampling", "config": alone},
            {"label": f"{few}: sampling, TIS", "config": alone, "recipe": "truncated_is_grpo"},
            {"label": f"{few}: both", "config": both},
        ]
    return rows


ROWS = {"modes": modes}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """As `language_training`, and in percent `deployed`, the accuracy of the last model in the
    sampler's precision, and `gain_deployed`, its difference to the warm start in that precision;
    `kl` and `gap`, how far what learns is from the sampler: means of the last tenth of the rounds
    (0 in full precision). A run that diverges has neither accuracy."""
    outcome = language_training.measure(settings, seed, folder)
    run, values = folder / "run", dict(outcome.values)
    chosen, config = language_run.read_settings(run)
    few, after = config.sampling_precision, math.nan
    before = _deployed(language_run.load(Path(str(chosen.start))), settings, few)
    if not math.isnan(values["score"]):  # the checkpoint of a run that diverged is an earlier one
        after = _deployed(language_run.load(run), settings, few)
    values |= {"deployed": after, "gain_deployed": after - before}
    rows = MetricsFile(run / "metrics.csv").rows()
    last = rows[-max(1, len(rows) // 10) :]
    for name, metric in APART.items():
        values[name] = float(np.mean([float(row.get(metric) or 0) for row in last] or [np.nan]))
    return Outcome({k: float(f"{v:.6g}") for k, v in values.items()}, outcome.curves)


def _deployed(agent: Any, settings: dict[str, Any], precision: Precision) -> float:
    return language_training.accuracy(agent, settings, in_precision(agent.model, precision))


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The accuracy of what is deployed, and how far learning is from sampling, for each row."""
    panels = {
        title: panel for name, title in SHOWN.items() if len(panel := figures.panel(rows, name)) > 1
    }
    if not panels:
        return []
    path = folder / f"precision{suffix}.png"
    figures.intervals(panels, path, "")
    return [path]
