"""What a unit of work costs against the size of what does it: critics, width, members, horizon,
seeds and rows."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from algorithms import ALGORITHMS
from experiments.bench.peer_programs import Step, window
from experiments.bench.workloads import SPEC, dataset, ensemble_epoch, rollouts, soft_config
from experiments.settings import build_config
from mbrl.many import fit_many
from mbrl.types import Dataset
from world_models.rollout import RolloutConfig

Axis = Literal["critics", "width", "members", "horizon", "seeds", "rows"]
WINDOWS = 3
STATES = 1_000  # that a rollout begins from
SMALL, LARGE = (64, 64), (256, 256)


@dataclass(frozen=True)
class Line:
    """One curve: `build(size, quick)` gives a step and how many units it does."""

    name: str
    build: Callable[[int, bool], tuple[Step, int]]


@dataclass(frozen=True)
class Curves:
    """The curves of one axis, at `sizes` of it (few of them, and small, where `quick`)."""

    label: str
    unit: str
    sizes: tuple[int, ...]
    lines: tuple[Line, ...]


def _critics(eta: float, hidden: Sequence[int]) -> Callable[[int, bool], tuple[Step, int]]:
    return lambda size, quick: _updates("edac", _rows_of(quick), soft_config(size, eta, hidden))


def _width(algorithm: str) -> Callable[[int, bool], tuple[Step, int]]:
    def build(size: int, quick: bool) -> tuple[Step, int]:
        if algorithm == "sac":
            return _updates("edac", _rows_of(quick), soft_config(2, 0.0, (size, size)))
        return _updates(algorithm, _rows_of(quick), {"hidden": [size, size]})

    return build


def _rows_of(quick: bool) -> Dataset:
    return dataset(2_000 if quick else 200_000)


def _updates(algorithm: str, data: Dataset, values: dict[str, Any]) -> tuple[Step, int]:
    """Batches and updates alone: nothing is logged or saved."""
    agent = ALGORITHMS[algorithm][0](SPEC, build_config(algorithm, values))
    agent.prepare(data, lambda metrics: None)
    return lambda: agent.update(agent.next_batch()), 1


def _rows(size: int, quick: bool) -> tuple[Step, int]:
    return _updates("td3_bc", dataset(size), {"hidden": list(SMALL)})


def _members(size: int, quick: bool) -> tuple[Step, int]:
    return ensemble_epoch(size, (32, 32) if quick else (200,) * 4, 2_000 if quick else 10_000)


def _horizon(penalised: bool) -> Callable[[int, bool], tuple[Step, int]]:
    def build(size: int, quick: bool) -> tuple[Step, int]:
        extra: Any = {"penalty": "max_aleatoric", "penalty_weight": 1.0} if penalised else {}
        step, count = rollouts(RolloutConfig(size, **extra), STATES)(quick, Path())
        return step, count // size // STATES

    return build


def _seeds(workers: int | None) -> Callable[[int, bool], tuple[Step, int]]:
    def build(size: int, quick: bool) -> tuple[Step, int]:
        data, updates = _rows_of(quick), 5 if quick else 100
        config = build_config("iql", {"hidden": list(LARGE)})
        agents = [ALGORITHMS["iql"][0](SPEC, config, seed=seed) for seed in range(size)]
        return lambda: fit_many(agents, data, updates, workers=workers), updates

    return build


AXES: dict[Axis, Curves] = {
    "critics": Curves(
        "critics",
        "ms an update",
        (2, 5, 10, 20, 50),
        (
            Line("SAC-N 2x64", _critics(0.0, SMALL)),
            Line("SAC-N 2x256", _critics(0.0, LARGE)),
            Line("EDAC 2x64", _critics(1.0, SMALL)),
            Line("EDAC 2x256", _critics(1.0, LARGE)),
        ),
    ),
    "width": Curves(
        "width of two hidden layers",
        "ms an update",
        (32, 64, 128, 256, 512),
        tuple(Line(name, _width(name)) for name in ("sac", "td3_bc", "iql")),
    ),
    "members": Curves(
        "members of 4x200 SiLU",
        "ms an update of the fit",
        (1, 3, 7, 14, 28),
        (Line("ensemble fit", _members),),
    ),
    "horizon": Curves(
        "steps of a rollout",
        "ms for a thousand states",
        (1, 2, 5, 10, 20),
        (
            Line("one member a state", _horizon(False)),
            Line("7 members and penalty", _horizon(True)),
        ),
    ),
    "seeds": Curves(
        "agents side by side (IQL 2x256)",
        "ms for an update of each",
        (1, 2, 4),
        (Line("one thread", _seeds(1)), Line("a thread a processor", _seeds(None))),
    ),
    "rows": Curves(
        "rows of the dataset",
        "ms an update",
        (1_000, 10_000, 100_000, 1_000_000),
        (Line("TD3+BC 2x64", _rows),),
    ),
}


def measure_curves(
    axes: Sequence[Axis], seconds: float, quick: bool, console: Console
) -> dict[Axis, Any]:
    """Milliseconds a unit by axis, curve and size: medians of three windows of `seconds`."""
    record: dict[Axis, Any] = {}
    for axis in axes:
        sizes = AXES[axis].sizes[:2] if quick else AXES[axis].sizes
        record[axis] = {"sizes": list(sizes), "curves": {}}
        for line in AXES[axis].lines:
            console.print(f"{axis}: {line.name}", style="dim")
            costs = [_cost(line, size, 0.02 if quick else seconds, quick) for size in sizes]
            record[axis]["curves"][line.name] = costs
    return record


def _cost(line: Line, size: int, seconds: float, quick: bool) -> float:
    step, count = line.build(size, quick)
    step()
    rates = [window(step, count, seconds) for _ in range(WINDOWS)]
    return 1e3 / statistics.median(rates)


def draw(record: dict[Axis, Any], path: Path) -> None:
    """A panel for each axis of `record`, both scales logarithmic."""
    from experiments.reports.figures import COLOURS, DASHES, MARKERS, drawing, save

    with drawing() as plt:
        from matplotlib.ticker import LogLocator

        columns = min(3, len(record))
        lines = -(-len(record) // columns)
        figure, grid = plt.subplots(
            lines, columns, figsize=(4 * columns, 3.2 * lines), squeeze=False
        )
        for panel in grid.flat[len(record) :]:
            panel.set_visible(False)
        for panel, (axis, measured) in zip(grid.flat, record.items(), strict=False):
            for index, (name, costs) in enumerate(measured["curves"].items()):
                panel.plot(
                    measured["sizes"],
                    costs,
                    color=COLOURS[index],
                    marker=MARKERS[index],
                    ls=DASHES[index],
                    ms=4,
                    label=name,
                )
            panel.set(xscale="log", yscale="log", xlabel=AXES[axis].label, ylabel=AXES[axis].unit)
            panel.set_xticks(measured["sizes"], [f"{size:,}" for size in measured["sizes"]])
            panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            panel.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
            panel.minorticks_off()
            every = [cost for costs in measured["curves"].values() for cost in costs]
            panel.set_ylim(min(every) / 1.5, max(every) * 1.5)
            panel.legend(fontsize=8, frameon=False)
        figure.tight_layout()
        save(figure, path)
