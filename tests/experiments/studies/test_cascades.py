"""The study of cascades: a small cell with what it gained and forgot, its rows, its figure."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.language.settings import LanguageConfig
from experiments.runs import folders
from experiments.studies import cascades, language_training
from mbrl.records import MetricsFile

SMALL = {
    "model": {"transformer": {"width": 16, "layers": 1, "heads": 2, "hidden": 16}},
    "until": 1e-9,  # the first look ends the warm start
    "tokens": 300,
    "problems": 2,
    "samples": 1,
    "eval_problems": 3,
}
CONFIG = {
    "prompts": 2,
    "group": 2,
    "levels": [3, 1003],
    "stages": ["grid_world", "brackets"],
    "stage_tokens": 100,
    "turn_tokens": 4,
}
SHOWN = {"levels": [3, 1003], "rows": 2}


def test_a_cell_says_what_was_gained_and_forgotten(tmp_path: Path, quick_starts: None) -> None:
    settings = cascades.DEFAULTS | SMALL | {"config": CONFIG, "shown": SHOWN}
    values = cascades.measure(settings, 0, tmp_path).values
    rows = MetricsFile(tmp_path / "run" / "evaluations.csv").rows()
    after = {int(r["level"]): 100 * float(r["accuracy"]) for r in rows}
    assert len(rows) == 10  # one evaluation: after the first stage
    end = folders.read_json(tmp_path / "run" / "result.json")["parts"]
    start = folders.read_json(tmp_path / "run" / "config.json")["language"]["start"]
    first = folders.read_json(Path(start) / "result.json")["parts"]
    for name, level in (("brackets", 3), ("grid_world", 1003)):
        a, b, c = 100 * first[name], after[level], 100 * end[name]
        assert values[f"gain_{name}"] == pytest.approx(c - a)
        assert values[f"forgotten_{name}"] == pytest.approx(max(a, b) - c)
    gains = [values[f"gain_{name}"] for name in cascades.PARTS]
    assert (
        values["gain_all"]
        == pytest.approx(sum(gains) / 2)
        == pytest.approx(values["gain"], rel=1e-4)
    )


@pytest.mark.long
def test_a_run_that_diverges_gains_and_forgets_no_number(
    tmp_path: Path, quick_starts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = cascades.DEFAULTS | SMALL | {"config": CONFIG, "shown": SHOWN}
    language_training.finished(language_training.warm_start(settings, 0, tmp_path))
    monkeypatch.setattr("mbrl.callbacks.LIMIT", 1e-9)  # of any metric
    values = cascades.measure(settings, 0, tmp_path).values
    measured = ("gain", "forgotten", "score")
    lost = [values[f"{kind}_{name}"] for kind in measured for name in cascades.PARTS]
    assert np.isnan([*lost, values["gain_all"]]).all()
    assert all(0 <= values[f"before_{name}"] <= 100 for name in cascades.PARTS)


def test_rows_have_the_same_tokens_in_all_arms() -> None:
    rows = cascades.ROWS["domains"]()
    assert [r["label"] for r in rows] == [
        "blend",
        "brackets, then grid_world",
        "grid_world, then brackets",
        "brackets alone",
        "grid_world alone",
    ]
    for row in rows:
        settings = cascades.DEFAULTS | row
        config = {k: tuple(v) if isinstance(v, list) else v for k, v in settings["config"].items()}
        made = LanguageConfig(task=settings["task"], recipe=settings["recipe"], **config)
        stages = max(1, len(made.stages))
        assert settings["tokens"] == cascades.TOKENS
        assert made.stages == () or made.stage_tokens * stages == cascades.TOKENS


def test_the_figure_has_panels_of_gains_and_of_what_was_forgotten(tmp_path: Path) -> None:
    values = [
        {f"{kind}_{part}": x for kind in ("gain", "forgotten") for part in cascades.PARTS}
        for x in (1.0, 2.0, 4.0)
    ]
    records = [{"values": v} for v in values]
    (file,) = cascades.draw({"blend": records, "brackets alone": records}, tmp_path, "-1")
    assert file.exists() and file.name == "parts-1.png"
    assert cascades.draw({"blend": records[:1]}, tmp_path, "") == []
