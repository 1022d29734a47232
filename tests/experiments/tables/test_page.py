"""Figures and the page of a table: every number drawn stands beside it, styles never repeat."""

import csv
import statistics
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from experiments.reports import figures
from experiments.tables import page, plan, render, summary, table_figures
from mbrl.statistics import Interval
from tests.experiments.tables.test_table import SMALL, written_records


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
    kinds = [figures.MARKERS[i % len(figures.MARKERS)] for i in range(9)]
    assert len(set(kinds)) == 9 and len(set(figures.COLOURS)) >= 9


def test_data_stand_beside_each_figure(tmp_path: Path) -> None:
    curve = figures.Curve(*(np.array([1.0, 2.0]) + i for i in range(4)))
    figures.learning_curves({"a": {"x": curve, "y": curve}}, tmp_path / "curves.png")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.mode == "P" and image.info["dpi"][0] > 100  # few colours, in full resolution
    figures.against_hyperparameter({"a": curve}, "eta", tmp_path / "knob.png", "score")
    figures.intervals({"mean": {"x": Interval(1.0, 0.5, 1.5)}}, tmp_path / "intervals.png")
    rows = list(csv.reader((tmp_path / "curves.csv").open()))
    assert rows[0] == ["panel", "name", "x", "mean", "low", "high"] and len(rows) == 5
    assert rows[1] == ["a", "x", "1", "2", "3", "4"]
    assert list(csv.reader((tmp_path / "knob.csv").open()))[2] == ["a", "2", "3", "4", "5"]
    text = (tmp_path / "intervals.csv").read_text()
    assert text.splitlines()[1] == "mean,x,1,0.5,1.5"
    assert all((tmp_path / f"{n}.png").stat().st_size > 3000 for n in ("curves", "knob"))


@pytest.mark.parametrize(
    ("panels", "columns", "rows"),
    [(2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 4, 2), (6, 3, 2), (9, 3, 3), (10, 4, 3), (12, 4, 3)],
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


class Reader(HTMLParser):
    """Checks that tags close and collects cells and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs)["src"])
        if tag == "td":
            self.cells.append("")
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


def test_the_page_holds_the_numbers_and_the_figures(tmp_path: Path) -> None:
    text = SMALL.replace('"Small"', '"A <b> & c"')
    (tmp_path / "small.toml").write_text(text)
    small = plan.load(str(tmp_path / "small.toml"))
    written_records(small, tmp_path)
    result = summary.collect(small, tmp_path, {}, {})
    files = table_figures.draw(result, tmp_path)
    assert {f.name for f in files} == {"curves.png", "curves-2.png"}
    reader = Reader()
    content = page.html(result, files)
    reader.feed(content)
    assert reader.open == [] and "A &lt;b&gt; &amp; c" in content
    assert reader.cells[0] == "21.0 ± 1.4best 61.0 · chosen 51.0"
    assert reader.pictures == ["curves.png", "curves-2.png"]
    assert "<h2>Curves, block 2</h2>" in content
    other = page.html(result, [tmp_path / "guided-mean.png", tmp_path / "guided-mean-2.png"])
    assert "<h2>Guided mean</h2>" in other and "<h2>Guided mean, block 2</h2>" in other
    assert "by seed 0: 20.0, 1: 22.0" in content and "20 updates, 3 s a run" in content


def test_equal_numbers_have_no_deviation() -> None:
    """Whose mean is rounded, so that each seems to lie off it."""
    equal, apart = np.array([0.09467] * 3), np.array([1.0, 2.0, 4.0])
    assert equal.std(ddof=1) > 0 and render.deviation(equal) == 0.0
    assert render.deviation(apart) == pytest.approx(statistics.stdev(apart))
