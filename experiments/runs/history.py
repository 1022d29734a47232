"""The metrics, scores and diagnoses that a run logged, and the verdict of the detector."""

import math
from pathlib import Path

import numpy as np

from algorithms.evaluation import diagnosis
from experiments.runs import folders
from mbrl.records import Evaluations, MetricsFile


def metrics(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Steps and values of every logged metric."""
    columns: dict[str, list[tuple[float, float]]] = {}
    for row in MetricsFile(folder / "metrics.csv").rows():
        for name, text in row.items():
            if text and name != "step":
                columns.setdefault(name, []).append((float(row["step"]), float(text)))
    return {name: tuple(np.array(pairs).T) for name, pairs in columns.items()}


def diagnoses(folder: Path) -> list[dict[str, float]]:
    """The diagnoses of reach and values that a model-based run logged, oldest first."""
    by_step: dict[float, dict[str, float]] = {}
    for row in MetricsFile(folder / "metrics.csv").rows():
        if row.get("value/at"):
            values = {name: float(text) for name, text in row.items() if text}
            by_step[values["value/at"]] = values
    return list(by_step.values())


def verdict(folder: Path) -> diagnosis.Verdict | None:
    """The detector's verdict on the run; None if the run logged no diagnosis."""
    rows = diagnoses(folder)
    return diagnosis.verdict(rows) if rows else None


def scores(folder: Path) -> tuple[np.ndarray, np.ndarray, bool]:
    """Steps of the evaluations, mean scores at them, and whether they are normalised (else they
    are returns). Empty arrays for a run without evaluations."""
    file = folder / "evaluations.npz"
    if not file.exists():
        return np.zeros(0), np.zeros(0), False
    evaluations = Evaluations.load(file)
    means = np.array([float(r.mean()) for r in evaluations.returns])
    spec = folders.read_json(folder / "manifest.json")["spec"]
    low, high = spec["reference_returns"] or (math.nan, math.nan)
    normalised = not math.isnan(low)
    return (
        np.array(evaluations.steps),
        (100 * (means - low) / (high - low) if normalised else means),
        normalised,
    )
