"""Figures in one style, readable in greyscale and with colour blindness."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mbrl.errors import optional_packages
from mbrl.statistics import Interval, Profile, confidence_interval
from mbrl.statistics import mean as statistic_mean
from world_models.diagnostics import Calibration, KStepError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours; with markers and dashes beside them no figure needs colour to be read.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"),
    *("#7f7f7f", "#882255"),
)
MARKERS = "osD^vP*Xh"
FEW = 4  # seeds of which each has its own thin line: an interval of so few is wider than the panel
DASHES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)), ":")
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.dpi": 120,
}


@contextmanager
def drawing() -> Iterator[Any]:
    """`matplotlib.pyplot`, without a display and in this library's style. Raises `MissingPackage`
    where the extra `plots` is not installed."""
    with optional_packages("plots", "figures"):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    with plt.rc_context(STYLE):
        yield plt


def model_inspection(
    error: KStepError, cover: Calibration, ranks: dict[str, float], where: str, path: Path
) -> None:
    """Three panels: error against steps, calibration, rank correlations."""
    with drawing() as plt:
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6))
        steps = np.arange(1, len(error.median) + 1)
        left.fill_between(steps, error.low, error.high, color=COLOURS[0], alpha=0.25, lw=0)
        left.plot(steps, error.median, color=COLOURS[0], marker="o", ms=3)
        left.set(xlabel="steps", ylabel="error / deviation of the data", yscale="log")
        left.set_title(
            f"open-loop error\nmedian and quartiles, {counted(error.windows)} windows", fontsize=10
        )
        middle.plot([0, 1], [0, 1], color="#666666", ls="--", lw=1)
        middle.plot(cover.levels, cover.observed, color=COLOURS[1], marker="s", ms=4)
        middle.set(xlabel="central interval of the model", ylabel="share of targets inside")
        middle.set_title(f"calibration\nmean gap {cover.error:.3f}", fontsize=10)
        names = list(ranks)
        values = [0.0 if np.isnan(ranks[n]) else ranks[n] for n in names]
        right.barh(range(len(names)), values, color=COLOURS[2])
        right.set_yticks(range(len(names)), [n.replace("_", " ") for n in names], fontsize=9)
        right.set(xlabel="Spearman rank correlation", xlim=(min(0.0, *values) - 0.05, 1.0))
        right.set_title("disagreement against one-step error", fontsize=10)
        figure.suptitle(f"World model on {where}", fontsize=11)
        figure.tight_layout()
        save(figure, path)


def counted(windows: np.ndarray) -> str:
    """How many there are, of fewest to most steps where that differs."""
    first, last = int(windows[0]), int(windows[-1])
    return str(first) if first == last else f"{first} to {last}"


def save(figure: "Figure", path: Path) -> None:
    """Write the figure in the format of the file's name, and close it; a PNG with 256 colours, a
    third of the full size."""
    import matplotlib.pyplot as plt
    from PIL import Image

    if path.suffix != ".png":
        figure.savefig(path)
        plt.close(figure)
        return
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    plt.close(figure)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, format="PNG", optimize=True, dpi=(figure.dpi, figure.dpi))


@dataclass(frozen=True)
class Curve:
    """Values [K] at `x` [K] with their intervals, NaN bounds where there are none, and the values
    of `each` seed [seeds, K] where these are known at the same `x`."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    each: np.ndarray | None = None

    @property
    def few(self) -> np.ndarray:
        """The lines [seeds, K] of seeds that are too few for a band; none of one seed."""
        seeds = 0 if self.each is None else len(self.each)
        return self.each if self.each is not None and 1 < seeds <= FEW else np.empty((0, 0))


def curve(x: np.ndarray, values: np.ndarray) -> Curve:
    """Mean over seeds of `values` [seeds, K] with its 95 % interval (Student's t)."""
    return replace(_curve(x, values.T), each=values)


def panel(rows: Mapping[str, Sequence[Any]], name: str) -> dict[str, Interval]:
    """The mean of a value of every row's records with its interval, of rows with two records or
    more of which none is infinite or missing."""
    each = {n: np.array([r["values"][name] for r in records]) for n, records in rows.items()}
    return {
        label: confidence_interval(values, statistic_mean)
        for label, values in each.items()
        if len(values) > 1 and np.isfinite(values).all()
    }


def pointwise(values: Mapping[float, Sequence[float] | np.ndarray]) -> Curve:
    """The same from values at each point, whose number may differ between points."""
    return _curve(np.array(list(values)), values.values())


def _curve(x: np.ndarray, values: Iterable[Sequence[float] | np.ndarray]) -> Curve:
    """A gap where a value is no number: the mean of the others would be of other seeds."""
    gap = Interval(np.nan, np.nan, np.nan)
    intervals = [
        confidence_interval(np.asarray(v), statistic_mean) if np.isfinite(v).all() else gap
        for v in values
    ]
    mean, low, high = np.array(intervals).reshape(-1, 3).T
    return Curve(x, mean, low, high)


def by_label(
    rows: dict[str, list[dict[str, Any]]],
    x: Callable[[dict[str, Any]], Sequence[float] | np.ndarray],
    y: Callable[[dict[str, Any]], Sequence[float] | np.ndarray],
) -> dict[str, dict[str, Curve]]:
    """The curve of each row's records, one a seed: a panel for what stands before the first comma
    of a row's label, a line for what stands after it. `x` and `y` tell the points of a record;
    those whose y is no number in one of them are left out, and x is the mean over them."""
    panels: dict[str, dict[str, Curve]] = {}
    for label, records in rows.items():
        panel, _, line = label.partition(", ")
        values = np.array([y(record) for record in records])
        kept = np.isfinite(values).all(0)
        where = np.array([x(record) for record in records]).mean(0)
        panels.setdefault(panel, {})[line] = curve(where[kept], values[:, kept])
    return panels


def column(name: str) -> Callable[[dict[str, Any]], list[float]]:
    """The curve of that name of a record."""

    def values_of(record: dict[str, Any]) -> list[float]:
        values: list[float] = record["curves"][name]
        return values

    return values_of


def learning_curves(panels: dict[str, dict[str, Curve]], path: Path, unit: str = "updates") -> None:
    """Mean score over seeds: a panel for each dataset, a line for each algorithm."""
    curves(panels, unit, "normalised score", path, top=100)


def curves(
    panels: dict[str, dict[str, Curve]],
    xlabel: str,
    ylabel: str,
    path: Path,
    *,
    top: float | None = None,
) -> None:
    """A panel a title, a line a name (empty: not in the legend), with a band that is its 95 %
    interval; of up to FEW seeds a thin line each in its place. With `top`, panels show 0 to `top`
    at least, and a line there. The data are written first, also where nothing can be drawn."""
    points = [
        (title, *point, seeds)
        for title, lines in panels.items()
        for name, c in lines.items()
        for point, seeds in zip(_points(name, c), _seeds(c), strict=True)
    ]
    _data(path, ("panel", "name", "x", "mean", "low", "high", "seeds"), points)
    names = sorted({name for lines in panels.values() for name in lines}, key=_first_seen(panels))
    columns = 3 if len(panels) % 4 and len(panels) % 3 == 0 else min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (6, 4) if len(panels) == 1 else (3.1 * columns, 2.5 * rows + 0.6)
    with drawing() as plt:
        figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
        for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
            for name in names:
                if name in lines:
                    every = max(1, len(lines[name].x) // 12)
                    _line(axes, names.index(name), name, lines[name], every)
            means = np.concatenate([v for c in lines.values() for v in (c.mean, c.few.ravel())])
            if top is not None:
                axes.axhline(top, color="#666666", ls=":", lw=1)
                means = np.append(means, [0, top])
            _limit(axes, means)
            axes.set_title(title, fontsize=9)
            axes.tick_params(labelsize=8)
            locator = plt.MaxNLocator(5, steps=[1, 2, 5, 10])  # more would touch
            axes.xaxis.set_major_locator(locator)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel(ylabel, fontsize=9)
        for axes in grid[-1]:
            axes.set_xlabel(xlabel, fontsize=9)
        _shared_legend(figure, grid.flat)
        save(figure, path)


def profiles(by_name: dict[str, Profile], title: str, path: Path) -> None:
    """Share of runs above each score with 95 % bands, a line for each algorithm."""
    with drawing() as plt:
        figure, axes = plt.subplots(figsize=(6.4, 4.2))
        for index, (name, p) in enumerate(by_name.items()):
            every = max(1, len(p.thresholds) // 8)
            _line(axes, index, name, Curve(*p), every)
        axes.set(xlabel="normalised score", ylabel="share of runs above", ylim=(-0.02, 1.02))
        axes.set_title(title, fontsize=10)
        _shared_legend(figure, [axes])
        save(figure, path)
    points = [row for name, p in by_name.items() for row in _points(name, Curve(*p))]
    _data(path, ("name", "score", "share", "low", "high"), points)


def intervals(
    panels: dict[str, dict[str, Interval]], path: Path, unit: str = "normalised score"
) -> None:
    """Estimates with intervals: a panel for each statistic, a row for each algorithm, empty in the
    panels that lack it."""
    names = list(dict.fromkeys(name for by_name in panels.values() for name in by_name))
    with drawing() as plt:
        labels = 0.08 * max(map(len, names))  # inches
        size = (3.0 * len(panels) + labels + 0.4, 0.32 * len(names) + 1.1)
        figure, grid = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
        for axes, (title, by_name) in zip(grid[0], panels.items(), strict=True):
            for row, name in enumerate(names):
                if name not in by_name:
                    continue
                at, colour = by_name[name], COLOURS[row % len(COLOURS)]
                axes.plot([at.low, at.high], [row, row], color=colour, lw=5, alpha=0.45)
                axes.plot(at.estimate, row, color="black", marker="|", ms=12, mew=2)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(unit, fontsize=9)
        grid[0, 0].set_yticks(range(len(names)), names)
        grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
        figure.tight_layout()
        save(figure, path)
    rows = [(t, n, *interval) for t, by_name in panels.items() for n, interval in by_name.items()]
    _data(path, ("statistic", "name", "estimate", "low", "high"), rows)


def against_hyperparameter(
    curves: dict[str, Curve], hyperparameter: str, path: Path, ylabel: str
) -> None:
    """Score (or another quantity) against the values of one hyperparameter, a line for each
    dataset."""
    with drawing() as plt:
        figure, axes = plt.subplots(figsize=(6, 4))
        for index, (name, c) in enumerate(curves.items()):
            _line(axes, index, name, c)
        xs = np.concatenate([c.x for c in curves.values()])
        if xs.min() > 0 and xs.max() / xs.min() >= 20:
            axes.set_xscale("log")
            # The values themselves: a logarithmic axis would crowd its minor labels.
            at = sorted({float(x) for line in curves.values() for x in line.x})
            axes.set_xticks(at, labels=[f"{x:g}" for x in at])
            axes.minorticks_off()
        axes.set(xlabel=hyperparameter, ylabel=ylabel)
        _shared_legend(figure, [axes])
        save(figure, path)
    points = [row for name, c in curves.items() for row in _points(name, c)]
    _data(path, ("name", hyperparameter, "mean", "low", "high"), points)


def scatter(
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]],
    xlabel: str,
    ylabel: str,
    path: Path,
) -> None:
    """Points x [N], y [N]: a panel for each title, six in a line; a marker for each name."""
    with drawing() as plt:
        across = min(len(panels), 6)
        down = -(-len(panels) // across)
        size = (3.4 * across, 3.6 * down)
        figure, grid = plt.subplots(down, across, figsize=size, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes, (title, groups) in zip(grid.flat, panels.items(), strict=False):
            for index, (name, (x, y)) in enumerate(groups.items()):
                colour, marker = COLOURS[index % len(COLOURS)], marker_of(index)
                axes.scatter(x, y, s=22, color=colour, marker=marker, alpha=0.8, lw=0, label=name)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(xlabel, fontsize=9)
            axes.tick_params(labelsize=8)
        for axes in grid[:, 0]:
            axes.set_ylabel(ylabel, fontsize=9)
        _shared_legend(figure, grid.flat[: len(panels)])
        save(figure, path)
    rows = [
        (title, name, a, b)
        for title, groups in panels.items()
        for name, (x, y) in groups.items()
        for a, b in zip(x, y, strict=True)
    ]
    _data(path, ("panel", "name", "x", "y"), rows)


def marker_of(index: int) -> str:
    """The marker of a line: those past the last colour, which have a colour again, have another."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def _line(axes: Any, index: int, name: str, c: Curve, every: int = 1) -> None:
    """One line with its band or the lines of its seeds, in a colour, marker and dash pattern of
    its own."""
    colour = COLOURS[index % len(COLOURS)]
    if len(c.few):
        axes.plot(c.x, c.few.T, color=colour, alpha=0.4, lw=0.6)
    else:
        axes.fill_between(c.x, c.low, c.high, color=colour, alpha=0.13, lw=0)
    axes.plot(
        c.x,
        c.mean,
        color=colour,
        marker=marker_of(index),
        ls=DASHES[index % len(DASHES)],
        ms=4,
        lw=1.4,
        markevery=every,
        label=name,
    )


def _limit(axes: Any, means: np.ndarray) -> None:
    """Fit the panel to the means that are numbers; wide intervals of few seeds may leave it."""
    means = means[np.isfinite(means)]
    if not len(means):
        return
    low, high = float(means.min()), float(means.max())
    margin = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _shared_legend(figure: Any, axes: Iterable[Any]) -> None:
    """One legend of all named lines below the panels, where it covers no line."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    fit = int(figure.get_figwidth() / (0.5 + 0.085 * longest))  # inches of a handle and letters
    columns = max(1, min(len(handles), 5, fit))
    inches = 0.25 * math.ceil(len(handles) / columns) + 0.1 * bool(handles)
    figure.tight_layout(rect=(0, inches / figure.get_figheight(), 1, 1))
    if handles:
        figure.legend(
            handles.values(), handles, loc="lower center", ncol=columns, frameon=False, fontsize=9
        )


def _first_seen(panels: dict[str, dict[str, Curve]]) -> Any:
    order = [name for curves in panels.values() for name in curves]
    return order.index


def _points(name: str, c: Curve) -> list[tuple[str | float, ...]]:
    return [(name, *values) for values in zip(c.x, c.mean, c.low, c.high, strict=True)]


def _seeds(c: Curve) -> list[str]:
    """What the lines of few seeds have at each point of a curve."""
    return [" ".join(f"{v:.6g}" for v in values) for values in c.few.T] or [""] * len(c.x)


def _data(path: Path, head: tuple[str, ...], rows: Iterable[Sequence[str | float]]) -> None:
    """Write the data of a figure beside it."""
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        for row in rows:
            writer.writerow([v if isinstance(v, str) else f"{v:.6g}" for v in row])
