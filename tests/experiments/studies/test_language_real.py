"""The study of pretrained models: its intervals, a small cell, and what it says is missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from algorithms.language.tasks import text_task
from experiments import studies
from experiments.runs import folders, study
from experiments.studies import language_real
from experiments.tables import plan, table
from mbrl.data.locate import data_home
from mbrl.errors import MissingDataError

SMALL: dict[str, Any] = {
    "model": {"end": "<s>"},
    "config": {"prompts": 2, "group": 2, "turn_tokens": 24},
    "other": [3],
    "steps": 2,
    "problems": 5,
    "samples": 1,
}


def test_the_interval_of_an_accuracy_is_wilsons_or_students() -> None:
    """Wilson's for 15 of 50, from its formula; Student's where a problem has several answers."""
    n, p, z = 50, 0.3, stats.norm.ppf(0.975)
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    mean, low, high = language_real.accuracy(np.array([1.0] * 15 + [0.0] * 35))
    assert (mean, low, high) == pytest.approx((p, middle - half, middle + half))
    rates = np.array([0.5, 1.0, 0.0, 0.5])
    mean, low, high = language_real.accuracy(rates)
    half = stats.t.ppf(0.975, 3) * stats.sem(rates)
    assert (mean, low, high) == pytest.approx((0.5, max(0.5 - half, 0.0), min(0.5 + half, 1.0)))


def test_a_missing_model_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="language fetch-smollm2"):
        language_real.model_folder("SmolLM2-135M-Instruct")
    with pytest.raises(MissingDataError, match="write it there by `save_pretrained`"):
        language_real.model_folder("own")


def test_every_row_of_the_table_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_real, "model_folder", lambda name: tmp_path / name)
    cells = table.all_cells(plan.load("language-real"))
    assert len(cells) == 12 and all(cell.row.seconds for cell in cells)
    for cell in cells:
        settings = cell.key["settings"]
        config = language_real._config(settings)
        assert config.recipe == settings["recipe"] and settings["problems"] >= 200
        levels = set(config.levels or text_task(config.task).trained)
        assert settings["other"] and not levels & set(settings["other"])


@pytest.mark.skipif(
    not (data_home() / "lm" / "stories260K-hf").is_dir(), reason="no stories260K-hf"
)
def test_a_cell_measures_before_and_after(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    cell = tmp_path / "cell"
    study.create("language_real", studies.settings_of("language_real", SMALL), 0, cell)
    study.StudyCell(cell).resume()
    result = folders.read_json(cell / "result.json")
    values, curves = result["values"], result["curves"]
    assert values["gain"] == pytest.approx(values["after"] - values["before"], abs=1e-3)
    for name in ("before", "after", "before_other", "after_other"):
        assert values[f"{name}_low"] <= values[name] <= values[f"{name}_high"]
    assert values["sampling"] > 0 and values["training"] > 0 and values["memory"] > 100
    assert values["samples"] == 8 and curves["step"] == [1.0, 2.0]
    assert not (cell / "run" / "model").exists()
    rows = {"stories260K, GRPO": [{"values": values, "curves": curves}]}
    assert all(file.is_file() for file in language_real.draw(rows, tmp_path, ""))
