"""The study of language tasks: its figures."""

import math
from pathlib import Path
from typing import Any

import pytest

from experiments.reports import figures
from experiments.studies import language_tasks


def _record(points: int, gain: float) -> dict[str, Any]:
    values = {"score": 50 + gain, "gain": gain, "gain_other": gain, "steps": 10.0}
    step = [float(k) for k in range(points)]
    return {"values": values, "curves": {"step": step, "score": step, "score_other": step}}


def test_figures_leave_out_runs_that_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their curves end early, and they gain no number."""
    monkeypatch.setattr(figures, "save", lambda figure, path: None)
    lost, good = _record(2, math.nan), _record(3, 4.0)
    rows = {"sorting, grpo": [good, lost], "sorting, rloo": [lost, lost]}
    assert len(language_tasks.draw(rows, tmp_path, "")) == 3
    assert (tmp_path / "gains.csv").read_text().splitlines()[1:] == [
        'trained levels,"sorting, grpo",4,nan,nan',
        'other levels,"sorting, grpo",4,nan,nan',
    ]
    assert "rloo" not in (tmp_path / "trained.csv").read_text()
    assert language_tasks.draw({"sorting, rloo": [lost]}, tmp_path, "-2") == []
