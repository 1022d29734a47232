"""Published scores in datasets/published against the files that they were computed from."""

import os
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from mbrl.data.cards import cards_dir, find_card

RUNS = Path(os.environ.get("LONGREACH_DATA", "")) / "neorl2/published"
NAMES = {"td3_bc": "td3bc"}


@pytest.mark.skipif(not RUNS.is_dir(), reason="the benchmark's run files are not here")
def test_neorl2_scores_are_those_of_the_best_setting_in_the_run_files():
    values = tomllib.loads((cards_dir() / "published/neorl2.toml").read_text())
    card, checked = find_card("neorl2"), 0
    for algorithm, scores in values["scores"].items():
        for data, (mean, spread) in scores.items():
            task = data.split("/")[1]
            runs = pd.read_csv(RUNS / f"{task}-{NAMES.get(algorithm, algorithm)}.csv")
            low, high = card.environments[task].reference_returns
            runs["score"] = 100 * (runs["Reward_Mean_Env"] - low) / (high - low)
            settings = [
                name
                for name in runs.columns
                if name.startswith("hparams/")
                and runs[name].nunique(dropna=False) > 1
                and not any(word in name for word in ("path", "seed", "time"))
            ]
            best = runs.groupby(settings, dropna=False)["score"].agg(["mean", "std"])
            best = best.dropna().sort_values("mean").iloc[-1]
            assert mean == pytest.approx(best["mean"], abs=0.006)
            assert spread == pytest.approx(best["std"], abs=0.006)
            checked += 1
    assert checked == 24
