"""The figures of a table, drawn from its records."""

from pathlib import Path

import numpy as np

from experiments import studies
from experiments.reports import figures
from experiments.reports.figures import Curve
from experiments.tables import records
from experiments.tables.plan import Column
from experiments.tables.summary import BlockSummary, Entry, Summary
from mbrl import statistics

LEVELS = np.linspace(-20, 120, 57)  # scores of a performance profile


def draw(summary: Summary, folder: Path) -> list[Path]:
    """Draw the figures of the finished cells into `folder`; returns the files."""
    files = []
    for number, block in enumerate(summary.blocks):
        suffix = "" if number == 0 else f"-{number + 1}"
        if block.block.study is not None:
            files += _study(block.block.study, block, folder, suffix)
            continue
        panels = _curves(block)
        if panels:
            path = folder / f"curves{suffix}.png"
            if block.units == {"score"}:
                figures.learning_curves(panels, path)
            else:
                figures.curves(panels, "updates", block.unit, path)
            files.append(path)
        columns = [c for c in block.block.columns if block.complete(c)]
        if columns and len(block.block.rows) > 1:
            files += _aggregates(block, columns, folder, suffix)
    if summary.plan.swept is not None:
        files += _sweep(summary, folder)
    return files


def _study(name: str, block: BlockSummary, folder: Path, suffix: str) -> list[Path]:
    """The study's own figures of the records of each row."""
    first = block.block.columns[0]
    rows = {row.label: block.entry(row, first).records for row in block.block.rows}
    done = {label: known for label, known in rows.items() if known}
    files: list[Path] = studies.module(name).draw(done, folder, suffix) if done else []
    return files


def _curves(block: BlockSummary) -> dict[str, dict[str, Curve]]:
    panels: dict[str, dict[str, Curve]] = {}
    for row in block.block.rows:
        entries = {c.label: block.entry(row, c) for c in block.block.columns}
        lines = {
            name: _curve(entry)
            for name, entry in entries.items()
            if entry.last and entry.records[0]["steps"]
        }
        if lines:
            panels[row.label] = lines
    return panels


def _curve(entry: Entry) -> Curve:
    """Scores at the evaluations that all seeds have, since runs may end at different updates."""
    common = set.intersection(*(set(r["steps"]) for r in entry.records))
    steps = np.array([s for s in entry.records[0]["steps"] if s in common])
    each = [records.scores(r)[np.isin(r["steps"], steps)] for r in entry.records]
    return figures.curve(steps, np.array(each))


def _aggregates(
    block: BlockSummary, columns: list[Column], folder: Path, suffix: str
) -> list[Path]:
    scores = {c.label: block.scores(c) for c in columns}
    panels = {
        "interquartile mean": {n: statistics.confidence_interval(s) for n, s in scores.items()},
        "mean": {n: statistics.confidence_interval(s, statistics.mean) for n, s in scores.items()},
    }
    files = [folder / f"intervals{suffix}.png", folder / f"profiles{suffix}.png"]
    figures.intervals(panels, files[0])
    profiles = {n: statistics.performance_profile(s, LEVELS) for n, s in scores.items()}
    figures.profiles(profiles, f"{len(block.block.rows)} datasets", files[1])
    return files


def _sweep(summary: Summary, folder: Path) -> list[Path]:
    """Last score against the swept hyperparameter, with a line for each dataset."""
    swept = summary.plan.swept
    assert swept is not None
    block, curves = summary.blocks[0], {}
    values = dict(zip((c.label for c in block.block.columns), swept.values, strict=True))
    for row in block.block.rows:
        done = sorted(
            (c for c in block.block.columns if block.entry(row, c).last),
            key=lambda c: float(values[c.label]),
        )
        if done:
            x = np.array([float(values[c.label]) for c in done])
            rows = np.array([block.entry(row, c).interval for c in done]).T
            curves[row.label] = Curve(x, rows[0], rows[1], rows[2])
    if not curves:
        return []
    path = folder / "knob.png"
    figures.against_hyperparameter(curves, swept.name, path, block.unit)
    return [path]
