"""Writes `rliable.json`, what the `rliable` package gives for a fixed table of scores.

    python -m venv env && env/bin/pip install rliable==1.2.0 "pandas<3"
    env/bin/python tests/mbrl/recorded/make_rliable.py

(arch, which rliable resamples with, does not import with pandas 3.)
"""

import json
from importlib import metadata
from pathlib import Path

import numpy as np
from rliable import library, metrics

THRESHOLDS = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
REPETITIONS = 20_000


def table(seed: int, seeds: int, tasks: int, shift: float) -> np.ndarray:
    """Tasks of different level and spread, scores rounded so that some tie."""
    generator = np.random.default_rng(seed)
    level, spread = np.linspace(10, 100, tasks), np.linspace(20, 5, tasks)
    return np.round(level + shift + spread * generator.standard_normal((seeds, tasks)))


def aggregates(scores: np.ndarray) -> np.ndarray:
    return np.array(
        [
            metrics.aggregate_iqm(scores),
            metrics.aggregate_mean(scores),
            metrics.aggregate_median(scores),
            metrics.aggregate_optimality_gap(scores, gamma=100.0),
        ]
    )


def improvement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([metrics.probability_of_improvement(a, b)])


def main() -> None:
    a, b = table(0, 10, 7, 0.0), table(1, 6, 7, 5.0)
    np.random.seed(0)  # noqa: NPY002 (rliable draws from numpy's global generator)
    point, interval = library.get_interval_estimates({"a": a, "b": b}, aggregates, reps=REPETITIONS)
    profile, band = library.create_performance_profile({"a": a}, THRESHOLDS, reps=REPETITIONS)
    better, better_interval = library.get_interval_estimates(
        {"b,a": [b, a]}, improvement, reps=REPETITIONS
    )
    packages = ("rliable", "arch", "numpy", "scipy")
    names = ["iqm", "mean", "median", "optimality_gap"]
    recorded = {
        "versions": {name: metadata.version(name) for name in packages},
        "repetitions": REPETITIONS,
        "scores": {"a": a.tolist(), "b": b.tolist()},
        "aggregates": {k: dict(zip(names, point[k].tolist(), strict=True)) for k in "ab"},
        "intervals": {k: dict(zip(names, interval[k].T.tolist(), strict=True)) for k in "ab"},
        "thresholds": THRESHOLDS,
        "profile": profile["a"].tolist(),
        "profile_band": band["a"].T.tolist(),
        "improvement_of_b": float(better["b,a"][0]),
        "improvement_interval": better_interval["b,a"][:, 0].tolist(),
    }
    path = Path(__file__).with_name("rliable.json")
    path.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
