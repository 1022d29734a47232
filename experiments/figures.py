"""Figures: one style, readable in grey and by colour-blind eyes."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from world_models.diagnostics import Calibration, KStepError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.dpi": 120,
}


def model_inspection(
    error: KStepError, cover: Calibration, ranks: dict[str, float], where: str, path: Path
) -> None:
    """Three panels: error against steps, calibration, rank correlations."""
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6))
        steps = np.arange(1, len(error.median) + 1)
        left.fill_between(steps, error.low, error.high, color=COLOURS[0], alpha=0.25, lw=0)
        left.plot(steps, error.median, color=COLOURS[0], marker="o", ms=3)
        left.set(xlabel="steps", ylabel="error / deviation of the data", yscale="log")
        left.set_title(
            f"open-loop error\nmedian and quartiles, {error.windows} windows", fontsize=10
        )
        middle.plot([0, 1], [0, 1], color="#666666", ls="--", lw=1)
        middle.plot(cover.levels, cover.observed, color=COLOURS[1], marker="s", ms=4)
        middle.set(xlabel="central interval of the model", ylabel="share of targets inside")
        middle.set_title(f"calibration\nmean gap {cover.error:.3f}", fontsize=10)
        names = list(ranks)
        values = [0.0 if np.isnan(ranks[n]) else ranks[n] for n in names]
        right.barh(range(len(names)), values, color=COLOURS[2])
        right.set_yticks(range(len(names)), [n.replace("_", " ") for n in names], fontsize=9)
        right.set(xlabel="Spearman rank correlation", xlim=(min(0.0, *values) - 0.05, 1.0))
        right.set_title("disagreement against one-step error", fontsize=10)
        figure.suptitle(f"World model on {where}", fontsize=11)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def learning_curves(
    curves: dict[str, tuple[np.ndarray, np.ndarray]], title: str, path: Path
) -> None:
    """Mean score over seeds with the range of the seeds; `curves` maps a name to steps [K] and
    scores [seeds, K]. The data stand beside the figure as CSV."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3.8))
        lines = ["name,step,mean,low,high"]
        markers = "osD^vP"
        for index, (name, (steps, scores)) in enumerate(curves.items()):
            colour, mean = COLOURS[index % len(COLOURS)], scores.mean(0)
            low, high = scores.min(0), scores.max(0)
            axes.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
            axes.plot(steps, mean, color=colour, marker=markers[index % 6], ms=4, label=name)
            lines += [
                f"{name},{s},{m:.6g},{lo:.6g},{hi:.6g}"
                for s, m, lo, hi in zip(steps, mean, low, high, strict=True)
            ]
        axes.axhline(100, color="#666666", ls="--", lw=1)
        axes.set(xlabel="updates", ylabel="normalised score", title=title)
        axes.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)
        path.with_suffix(".csv").write_text("\n".join(lines) + "\n")
