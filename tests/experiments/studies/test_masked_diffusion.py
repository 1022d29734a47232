"""The study of masked diffusion: a small cell, going on, the figure."""

from pathlib import Path
from typing import Any

import pytest

from experiments.studies import masked_diffusion as study
from mbrl.errors import ConfigError

TINY: dict[str, Any] = study.DEFAULTS | {
    "task": "brackets",
    "level": 3,
    "model": {"width": 16, "layers": 1, "heads": 2, "hidden": 32},
    "shown": 20,
    "decoding": {"ascending": True},
    "tuning": {"prompts": 2, "group": 2, "epochs": 2},
    "evaluations": 100,
    "problems": 20,
}


def test_a_cell_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    outcome = study.measure(TINY, 0, tmp_path / "cell")
    curves = outcome.curves
    assert curves["evaluations"][0] == 0 and curves["evaluations"][-1] >= 100
    assert outcome.values["passes"] == 4 and outcome.values["length"] >= 0
    assert 0 <= outcome.values["solved"] <= 100
    more = study.measure(TINY | {"evaluations": 200}, 0, tmp_path / "cell")
    assert more.curves["solved"][: len(curves["solved"])] == curves["solved"]
    rows = {f"brackets, {name}": [{"curves": curves}] * 2 for name in ("a", "b")}
    files = study.draw(rows, tmp_path, "")
    assert [f.name for f in files] == ["masked-diffusion.png"] and files[0].exists()


def test_without_rewards_there_is_no_figure(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    outcome = study.measure(TINY | {"evaluations": 0}, 0, tmp_path / "cell")
    assert outcome.values["solved"] == outcome.values["solved_before"]
    assert study.draw({"brackets, a": [{"curves": outcome.curves}]}, tmp_path, "") == []


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="guessing"):
        study.check(TINY | {"task": "guessing"})
    with pytest.raises(ConfigError, match="level 99"):
        study.check(TINY | {"level": 99})
    with pytest.raises(ConfigError, match=r"steps is 99"):
        study.check(TINY | {"decoding": {"steps": 99}})
