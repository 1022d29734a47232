"""The study of generators trained by reward: a small cell, going on, the figures."""

from pathlib import Path
from typing import Any

import pytest

from experiments.studies import diffusion_rl as study
from mbrl.errors import ConfigError

TINY: dict[str, Any] = study.DEFAULTS | {
    "length": 8,
    "model": {"width": 8, "levels": 2, "updates": 30},
    "conditional": 5,
    "tuning": {"prompts": 2, "group": 2, "steps": 3, "minibatches": 1},
    "evaluations": 60,
    "windows": 16,
}


def test_a_cell_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    outcome = study.measure(TINY, 0, tmp_path / "cell")
    curves = outcome.curves
    assert len({len(c) for c in curves.values()}) == 1 and curves["evaluations"][0] == 0
    assert curves["evaluations"][-1] >= 60
    assert outcome.values["gain"] == pytest.approx(
        curves["return"][-1] - curves["return"][0], abs=0.01
    )
    assert outcome.values["logged"] < 0 and outcome.values["error"] > 0
    more = study.measure(TINY | {"evaluations": 120}, 0, tmp_path / "cell")
    assert more.curves["return"][: len(curves["return"])] == curves["return"]
    rows = {f"pendulum, {name}": [{"curves": curves}] * 2 for name in ("chains", "branches")}
    files = study.draw(rows, tmp_path, "-2")
    assert [f.name for f in files] == ["diffusion-rl-return-2.png", "diffusion-rl-error-2.png"]
    assert all(f.exists() for f in files)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="evaluations"):
        study.check(TINY | {"evaluations": 0})
    with pytest.raises(ConfigError, match="'metod'"):
        study.check(TINY | {"tuning": {"metod": "chains"}})
