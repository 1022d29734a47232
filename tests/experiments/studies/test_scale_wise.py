"""The study of windows from coarse to fine: a small cell, its fit kept, the figure."""

from pathlib import Path

from experiments.studies import scale_wise

SMALL = {"length": 8, "fit": 3, "more": 2, "windows": 20, "levels": 1, "batch": 4}


def test_a_cell_and_its_figure(tmp_path: Path) -> None:
    settings = scale_wise.DEFAULTS | SMALL
    outcome = scale_wise.measure(settings, 0, tmp_path)
    names = ("begun", *scale_wise.VARIANTS)
    assert set(outcome.values) == {
        "floor",
        *(f"{metric}_{name}" for metric in scale_wise.MEASURED for name in names),
    }
    assert outcome.values["mmd_begun"] > outcome.values["floor"]
    kept = (tmp_path / "fit.pt").stat().st_mtime_ns
    assert scale_wise.measure(settings, 0, tmp_path).values == outcome.values
    assert (tmp_path / "fit.pt").stat().st_mtime_ns == kept
    records = [{"values": outcome.values}, {"values": outcome.values}]
    (file,) = scale_wise.draw({"swing-up": records}, tmp_path, "-1")
    assert file.exists() and file.name == "scale-wise-1.png"
    assert scale_wise.draw({"swing-up": records[:1]}, tmp_path, "") == []
