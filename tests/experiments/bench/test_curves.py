"""Cost against size, and the memory of a workload."""

import json
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.bench import memory
from experiments.bench.curves import AXES, draw


def test_curves_are_measured_recorded_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    out, figure = tmp_path / "r.json", tmp_path / "r.png"
    arguments = ["bench", "--quick", "--curves", "--out", str(out), "--figure", str(figure)]
    assert main(arguments) == 0
    record = json.loads(out.read_text())
    assert list(record["curves"]) == list(AXES) and record["workloads"] == {}
    for axis, measured in record["curves"].items():
        assert list(measured["curves"]) == [line.name for line in AXES[axis].lines]
        for costs in measured["curves"].values():
            assert len(costs) == len(measured["sizes"]) and min(costs) > 0
    assert not any(here.iterdir())  # nothing but what was asked for is written
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert "EDAC 2x256" in capsys.readouterr().out


def test_a_single_axis_is_one_panel(tmp_path: Path) -> None:
    draw({"rows": {"sizes": [10, 100], "curves": {"x": [1.0, 2.0]}}}, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 0


@pytest.mark.long
def test_memory_is_that_of_a_process_that_does_nothing_else() -> None:
    """The larger dataset of the whole workload shows, whatever this process holds."""
    small = memory.peak_of("td3_bc_small", 0.05, quick=True)
    held = bytearray(500_000_000)  # of this process, not of the other
    held[::4096] = b"x" * len(held[::4096])
    large = memory.peak_of("td3_bc_small", 0.05, quick=False)
    data = 200_000 * 4 * (2 * 17 + 6 + 1) / 2**20  # MB
    assert data / 2 < large - small < 400
    with pytest.raises(RuntimeError, match="stopped in its own process"):
        memory.peak_of("no_such_workload", 0.05, quick=True)
