"""A log with awkward columns, for tests: text, missing cells, units, named discrete actions."""

from pathlib import Path

import numpy as np
import pandas as pd

from mbrl.data import from_log, save_npz

COLUMNS = {
    "obs": ("heart_rate", "lactate", "ward"), "action": ("choice",), "reward": "gain",
    "episode": "patient", "order": "time", "missing": "impute",
    "units": ("heart_rate=1/min", "lactate=mmol/l"), "terminated": "last and died == 1",
}  # fmt: skip


def table(episodes: int = 60, steps: int = 10, seed: int = 0) -> pd.DataFrame:
    """Patients of `steps` rows each; a tenth of lactate is missing."""
    rng = np.random.default_rng(seed)
    n = episodes * steps
    who = np.repeat(np.arange(episodes), steps)
    lactate = rng.uniform(0.5, 4, n).round(3)
    lactate[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "patient": [f"P{w}" for w in who],
            "time": np.tile(np.arange(steps), episodes),
            "heart_rate": rng.normal(80, 5, n).round(2),
            "lactate": lactate,
            "ward": rng.choice(["ED", "ICU", "ward"], n),
            "choice": rng.choice(["wait", "treat", "send home"], n),
            "gain": rng.normal(size=n).round(3),
            "died": (who % 2 == 0).astype(int),
        }
    )


def imported(folder: Path, **options: int) -> Path:
    """The log as `data import` writes it."""
    return save_npz(from_log(table(**options), **COLUMNS), folder / "log.npz")
