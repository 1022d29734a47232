"""The study of minority guidance on windows: a small cell and its figures."""

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.studies import prerequisites
from experiments.studies import rare_windows as study
from mbrl import data, tasks
from mbrl.errors import ConfigError

TINY: dict[str, Any] = study.DEFAULTS | {
    "length": 8,
    "model": {"width": 8, "levels": 2, "updates": 30, "steps": 4},
    "classifier": {"levels": 3, "updates": 20, "hidden": [8]},
    "windows": 12,
}


def test_a_cell_has_a_number_a_level(tmp_path: Path) -> None:
    outcome = study.measure(TINY, 0, tmp_path / "cell")
    assert outcome.curves["level"] == [-1.0, 0.0, 1.0, 2.0]
    assert outcome.values["share_top"] == outcome.curves["share"][3]
    assert outcome.values["share"] == outcome.curves["share"][2]
    assert outcome.values["error_plain"] == outcome.curves["error"][0]
    assert -1.0 <= outcome.values["related"] <= 1.0
    files = study.draw({"swing-up, 1": [{"curves": outcome.curves}] * 2}, tmp_path, "")
    assert [f.name for f in files] == ["rare-windows-share.png", "rare-windows-error.png"]


def test_logged_windows_have_no_error_and_their_rewards(tmp_path: Path) -> None:
    model = prerequisites.generator_of_windows(TINY, 0, tmp_path / "model")
    rows = data.load(TINY["data"])
    windows = study.logged(model, rows.transitions, torch.Generator().manual_seed(0))
    assert study.error_of(model, windows[:50], tasks.make_for(rows.spec)) < 1e-6
    mean = float(study.worth(model, windows).mean()) / TINY["length"]
    assert mean == pytest.approx(float(rows.transitions.reward.mean()), abs=0.05)


def test_one_logged_window_in_twenty_is_rare() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    bar = torch.quantile(values, study.RARE)
    assert study.share_above(values, bar) == pytest.approx(5.0, abs=0.1)
    assert study.share_above(values + 1.0, bar) > 15.0


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="noise"):
        study.check(TINY | {"noise": 0.0})
    with pytest.raises(ConfigError, match="'level'"):
        study.check(TINY | {"classifier": {"level": 3}})
