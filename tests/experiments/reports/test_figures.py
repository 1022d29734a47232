"""Figures: every number drawn stands beside it, styles never repeat."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from experiments.reports import figures
from mbrl.statistics import Interval


def test_the_band_is_students_interval() -> None:
    values = np.random.default_rng(0).normal(size=(5, 2))
    result = figures.curve(np.array([1, 2]), values)
    low, high = stats.t.interval(0.95, 4, values.mean(0), stats.sem(values))
    # The bootstrap's standard error carries Monte-Carlo noise of about 1 %.
    assert result.low == pytest.approx(low, abs=0.05) and result.high == pytest.approx(
        high, abs=0.05
    )
    alone = figures.curve(np.array([1]), values[:1, :1])
    assert np.isnan(alone.low).all() and alone.mean == values[0, 0]


def test_no_two_of_nine_lines_look_alike() -> None:
    """Nor do they without colour: markers alone tell nine lines apart."""
    # Where a record has its own places on the axis, the curve stands at their mean.
    records = [
        {"x": [0.0, 1.0, 2.0], "y": [1.0, 2.0, np.nan]},
        {"x": [1.0, 3.0, 4.0], "y": [3.0, 4.0, 5.0]},
    ]
    panels = figures.by_label({"a, b": records}, lambda r: r["x"], lambda r: r["y"])
    assert panels["a"]["b"].x.tolist() == [0.5, 2.0] and panels["a"]["b"].mean.tolist() == [
        2.0,
        3.0,
    ]
    kinds = [figures.marker_of(i) for i in range(9)]
    assert len(set(kinds)) == 9 and len(set(figures.COLOURS)) >= 9


def test_lines_that_share_a_colour_have_markers_of_their_own() -> None:
    colours = len(figures.COLOURS)
    for index in range(3):
        alike = [figures.marker_of(index + colours * turn) for turn in range(3)]
        assert len(set(alike)) == 3


def test_data_stand_beside_each_figure(tmp_path: Path) -> None:
    curve = figures.Curve(*(np.array([1.0, 2.0]) + i for i in range(4)))
    figures.learning_curves({"a": {"x": curve, "y": curve}}, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.mode == "P" and image.info["dpi"][0] > 100  # few colours, in full resolution
    figures.against_hyperparameter({"a": curve}, "eta", tmp_path / "knob.png", "score")
    figures.intervals({"mean": {"x": Interval(1.0, 0.5, 1.5)}}, tmp_path / "intervals.png")
    rows = list(csv.reader((tmp_path / "curves.csv").open()))
    assert rows[0] == ["panel", "name", "x", "mean", "low", "high", "seeds"] and len(rows) == 5
    assert rows[1] == ["a", "x", "1", "2", "3", "4", ""]
    assert list(csv.reader((tmp_path / "knob.csv").open()))[2] == ["a", "2", "3", "4", "5"]
    text = (tmp_path / "intervals.csv").read_text()
    assert text.splitlines()[1] == "mean,x,1,0.5,1.5"
    assert all((tmp_path / f"{n}.png").stat().st_size > 3000 for n in ("curves", "knob"))


def test_a_name_that_a_panel_lacks_leaves_its_row_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an unfinished table, or where runs diverged."""
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.extend(figure.axes))
    at = Interval(1.0, 0.5, 1.5)
    panels = {"mean": {"x": at, "y": at}, "iqm": {"z": at, "y": at}}
    figures.intervals(panels, tmp_path / "intervals.png")
    rows = [sorted({float(line.get_ydata()[0]) for line in axes.lines}) for axes in drawn]
    assert rows == [[0.0, 1.0], [1.0, 2.0]]  # x, y and z
    assert [t.get_text() for t in drawn[0].get_yticklabels()] == ["x", "y", "z"]
    assert len((tmp_path / "intervals.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize(("seeds", "lines", "bands"), [(1, 1, 1), (2, 3, 0), (4, 5, 0), (5, 1, 1)])
def test_few_seeds_are_lines_and_many_a_band(
    seeds: int, lines: int, bands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the panel shows all of them."""
    values = np.arange(2.0 * seeds).reshape(seeds, 2) ** 2
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.extend(figure.axes))
    made = figures.curve(np.array([0.0, 1.0]), values)
    figures.curves({"": {"a": made}}, "x", "y", tmp_path / "a.png")
    (axes,) = drawn
    assert (len(axes.lines), len(axes.collections)) == (lines, bands)
    low, high = axes.get_ylim()
    shown = values if bands == 0 else made.mean
    assert low < shown.min() and shown.max() < high
    rows = list(csv.reader((tmp_path / "a.csv").open()))
    assert rows[2][-1] == (" ".join(f"{v:g}" for v in values[:, 1]) if bands == 0 else "")


@pytest.mark.parametrize(
    ("panels", "columns", "rows"),
    [
        (2, 2, 1),
        (4, 4, 1),
        (5, 4, 2),
        (6, 3, 2),
        *(
            pytest.param(*p, marks=pytest.mark.long)
            for p in ((3, 3, 1), (9, 3, 3), (10, 4, 3), (12, 4, 3))
        ),
    ],
)
def test_panels_stand_in_threes_where_they_come_in_threes(
    panels: int, columns: int, rows: int, tmp_path: Path
) -> None:
    path = tmp_path / "curves.png"
    line = figures.Curve(*(np.array([1.0, 2.0]) for _ in range(4)))
    figures.curves({str(i): {"x": line} for i in range(panels)}, "x", "y", path)
    with Image.open(path) as drawn:
        assert drawn.mode == "P"  # 256 colours
        assert drawn.width == round(columns * 3.1 * 120)
        legend = 120 * 0.6  # at least; legends make a figure taller
        assert drawn.height - rows * 2.5 * 120 - legend in range(120)
