"""Real rows for some goals, imagined rows that may be wrong for others: what the imagined ones add,
and what filters take back of their faults. ImagineBench (arXiv 2505.10010) asks this of rows that a
language model imagines; here a perturbed model of a grid does, so that faults have a rate."""

from pathlib import Path
from typing import Any

import torch

from algorithms import ALGORITHMS
from experiments.reports import figures
from experiments.settings import build_config
from experiments.studies import Outcome
from experiments.studies.goal_grid import LEVELS, GoalGrid, Rates, record, success
from mbrl.data.sources import with_source
from mbrl.errors import unknown_name
from mbrl.types import Dataset
from world_models.imagined_filter import score_imagined

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "algorithm": "discrete_iql",  # or bc, discrete_cql
    "config": {},  # settings of it
    "source": "real",  # or imagined, oracle: real rows of the goals that are imagined otherwise
    "rate": 0.0,  # of each fault
    "faults": ["teleport", "missing", "label"],  # or some of them
    "filter": "none",  # or consistency, disagreement
    "share": 0.5,  # of the rows drawn that are of the second source
    "episodes": 300,  # of each level
    "noise": 0.3,  # share of uniform actions in them
    "updates": 3000,
    "pairs": 500,  # starts and goals of an evaluation
}
FAULTS = ("teleport", "missing", "label")
SOURCES = ("real", "imagined", "oracle")
ALGORITHM_NAMES = ("bc", "discrete_cql", "discrete_iql")
RATES = (0.0, 0.1, 0.3, 0.5)
FILTERS = ("consistency", "disagreement")
NETWORKS = {"hidden": [64, 64], "learning_rate": 1e-3, "batch_size": 128}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train on the rows of the sources and act greedily.

    `train`, `easy` and `hard` are per cent of starts and goals of a level whose goal is reached;
    `path` is that of hard goals with each success weighted by the length of the shortest path over
    that taken. Of imagined rows, in per cent: `kept`, those that the filter keeps; `wrong`, the
    wrong ones among these; `caught`, those dropped among the wrong ones.
    """
    grid = GoalGrid()
    rows, about = dataset(grid, settings, seed)
    name = settings["algorithm"]
    config = build_config(name, NETWORKS | {"gamma": 0.95} | settings["config"])
    agent: Any = ALGORITHMS[name][0](rows.spec, config, seed=seed)
    agent.fit(rows, settings["updates"], callbacks=[])
    results = {level: success(grid, agent.policy, level, settings["pairs"]) for level in LEVELS}
    values = {level: reached for level, (reached, _) in results.items()}
    return Outcome(values | {"path": results["hard"][1]} | about, {})


def dataset(
    grid: GoalGrid, settings: dict[str, Any], seed: int
) -> tuple[Dataset, dict[str, float]]:
    """The rows that a cell learns from and what is known of the imagined ones. The real rows of a
    seed are the same whatever the second source is."""
    if settings["source"] not in SOURCES:
        raise unknown_name("source", settings["source"], SOURCES)
    for fault in settings["faults"]:
        if fault not in FAULTS:
            raise unknown_name("fault", fault, FAULTS)
    episodes, noise = settings["episodes"], settings["noise"]
    real, _ = record(grid, ("train",), episodes, noise, torch.Generator().manual_seed(seed))
    if settings["source"] == "real":
        return real, {}
    draws = torch.Generator().manual_seed(seed + 7_001)
    if settings["source"] == "oracle":
        other, _ = record(grid, ("easy", "hard"), episodes, noise, draws)
        return with_source(real, other, settings["share"]), {}
    rates = Rates(**dict.fromkeys(settings["faults"], settings["rate"]))
    other, wrong = record(grid, ("easy", "hard"), episodes, noise, draws, rates)
    keep = torch.ones_like(wrong)
    if settings["filter"] != "none":
        keep = score_imagined(real, other, settings["filter"]).keep
    about = {
        "kept": 100 * float(keep.double().mean()),
        "wrong": 100 * float((wrong & keep).sum() / keep.sum().clamp_min(1)),
    }
    if bool(wrong.any()):
        about["caught"] = 100 * float((wrong & ~keep).sum() / wrong.sum())
    return with_source(real, other, settings["share"], keep), about


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Success on hard goals against the rate of faults: a panel an algorithm, a line a source; the
    sources without faults stand at every rate. Nothing where one rate alone was measured."""
    if not any(" at 0.0" in label for label in rows):
        return []
    rated: dict[str, dict[str, dict[float, list[float]]]] = {}
    for label, records in rows.items():
        panel, line = label.split(", ", 1)
        name, _, rate = line.partition(" at ")
        at = rated.setdefault(panel, {}).setdefault(name, {})
        for where in [float(rate)] if rate else [0.0, 0.5]:
            at[where] = [record["values"]["hard"] for record in records]
    panels = {
        panel: {name: figures.pointwise(at) for name, at in lines.items()}
        for panel, lines in rated.items()
    }
    file = folder / f"hard{suffix}.png"
    figures.curves(panels, "rate of each fault", "success on hard goals, %", file, top=100)
    return [file]


def _sources() -> list[dict[str, Any]]:
    """Every algorithm on the real rows, with the oracle's, and with imagined rows at every rate,
    as they are and filtered."""
    rows: list[dict[str, Any]] = []
    for name in ALGORITHM_NAMES:
        rows += [
            {"label": f"{name}, {text}", "algorithm": name, "source": source}
            for source, text in (("real", "real rows"), ("oracle", "real rows of all goals"))
        ]
        for kind in ("none", *FILTERS):
            text = "imagined" if kind == "none" else f"imagined {kind}"
            chosen = {"algorithm": name, "source": "imagined", "filter": kind}
            rows += [{"label": f"{name}, {text} at {p}", **chosen, "rate": p} for p in RATES]
    return rows


def _filtered() -> list[dict[str, Any]]:
    """The rows of one algorithm with imagined rows that have faults: the data are those of all."""
    return [r for r in _sources() if r["algorithm"] == "discrete_iql" and r.get("rate", 0) > 0]


def _faults() -> list[dict[str, Any]]:
    """One fault alone at the rate 0.5, as it is and filtered."""
    return [
        {
            "label": f"{name} {fault}, {text}",
            "algorithm": name,
            "source": "imagined",
            "rate": 0.5,
            "faults": [fault],
            "filter": kind,
        }
        for name in ("bc", "discrete_iql")
        for fault in ("teleport", "missing", "label")
        for kind, text in (("none", "imagined"), ("consistency", "imagined consistency"))
    ]


ROWS = {"sources": _sources, "filtered": _filtered, "faults": _faults}
