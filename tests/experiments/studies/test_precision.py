"""The study of precisions: its rows, a small cell, the figure."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.language.settings import LanguageConfig
from experiments.settings import merge
from experiments.studies import language_training, precision
from mbrl import config as configs

SMALL = {
    "model": {"transformer": {"width": 16, "layers": 1, "heads": 2, "hidden": 16}},
    "until": 1e-9,
    "steps": 2,
    "problems": 2,
    "samples": 1,
}


def test_rows_are_settings_that_there_are() -> None:
    rows = precision.modes()
    assert len(rows) == len({row["label"] for row in rows}) == 10
    for row in rows:
        given = {"recipe": row.get("recipe", "grpo")}
        configs.from_dict(LanguageConfig, merge(given, row["config"]))


def test_a_cell_says_how_far_learning_is_from_sampling(tmp_path: Path, quick_starts: None) -> None:
    shape = {"prompts": 2, "group": 2, "minibatches": 1, "levels": [1]}
    for name, few, zero in (("alone", {}, False), ("both", {"training_precision": "int3"}, True)):
        config = shape | {"sampling_precision": "int3"} | few
        settings = precision.DEFAULTS | SMALL | {"task": "addition", "config": config}
        values = precision.measure(settings, 0, tmp_path / name).values
        assert (values["gap"] < 1e-4) == zero and (values["kl"] < 1e-6) == zero
        assert 0 <= values["deployed"] <= 100


def test_a_run_that_diverges_has_no_accuracy(
    tmp_path: Path, quick_starts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the checkpoint before its first step."""
    config = {"prompts": 2, "group": 2, "levels": [1], "sampling_precision": "int3"}
    settings = precision.DEFAULTS | SMALL | {"task": "addition", "config": config}
    language_training.finished(language_training.warm_start(settings, 0, tmp_path))
    monkeypatch.setattr("mbrl.callbacks.LIMIT", 1e-9)  # of any metric
    values = precision.measure(settings, 0, tmp_path).values
    names = ("score", "deployed", "gain_deployed", "kl", "gap")
    assert np.isnan([values[name] for name in names]).all() and 0 <= values["before"] <= 100


def test_the_figure(tmp_path: Path) -> None:
    records = [{"values": {"gain_deployed": x, "kl": x}} for x in (1.0, 2.0)]
    (file,) = precision.draw({"full precision": records, "int4: both": records}, tmp_path, "-1")
    assert file.exists() and file.name == "precision-1.png"
    assert precision.draw({"full precision": records[:1]}, tmp_path, "") == []
