"""The page about a run: scores, losses, reach and values, settings."""

import math
import shlex
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.reports.figures import Curve
from experiments.reports.page_parts import (
    facts,
    image,
    losses,
    rows_table,
    single_run,
    write_page,
)
from experiments.runs import folders, history, valuation, values
from experiments.runs.training import TrainingRun
from mbrl.records import Evaluations

# Panels of the report's second figure, where a run logged them.
WATCHED = (
    *("critic/loss", "critic/q_mean", "actor/entropy", "actor/alpha", "actor/loss", "loss"),
    *("policy/entropy", "policy/log_ratio", "policy/effective_samples"),
)


def write(folder: Path) -> Path:
    """The page of a run, with its figures beside it."""
    run = TrainingRun(folder).settings
    title = f"{run.algorithm} on {run.data}, seed {run.seed}"
    parts = [
        facts(_summary(folder)),
        *_before_you_deploy(folder),
        *_scores(folder),
        *losses(folder, WATCHED, unit_of(folder)),
        *_reach_and_values(folder),
        *_values(folder),
    ]
    return write_page(folder, title, parts)


def unit_of(folder: Path) -> str:
    """What a run counts: steps in a task, or updates on logged data."""
    return "steps" if TrainingRun(folder).settings.online else "updates"


def _summary(folder: Path) -> dict[str, Any]:
    run, manifest = TrainingRun(folder).settings, folders.read_json(folder / "manifest.json")
    unit = unit_of(folder)
    facts: dict[str, Any] = {unit: run.steps}
    if "rows" in manifest["data"]:
        facts["transitions"] = manifest["data"]["rows"]
    steps, score, normalised = history.scores(folder)
    if len(steps):
        returns = Evaluations.load(folder / "evaluations.npz").returns[-1]
        text = f"return {returns.mean():.1f} ± {returns.std():.1f} over {len(returns)} starts"
        if normalised:
            text = f"score {score[-1]:.1f}, {text}"
        at = unit.removesuffix("s")
        facts["last evaluation"] = f"{text}, at {at} {steps[-1]}"
        facts["best evaluation"] = f"{score.max():.1f}, at {at} {steps[score.argmax()]}"
    diverged = folder / folders.DIVERGED
    if diverged.exists():
        facts["state"] = f"diverged: {folders.read_json(diverged)['reason']}"
    elif not (folder / "result.json").exists():
        facts["state"] = "not finished"
    elif (folder / "selection.json").exists():
        choice = folders.read_json(folder / "selection.json")
        facts["chosen offline"] = f"the policy of update {choice['chosen']}"
        if "return_mean" in choice:
            facts["chosen offline"] += f", return {choice['return_mean']:.1f}"
    return facts


def _scores(folder: Path) -> list[str]:
    steps, score, normalised = history.scores(folder)
    if not len(steps):
        return []
    name = "normalised score" if normalised else "return"
    figures.curves(
        {"": {"": single_run(steps, score)}}, unit_of(folder), name, folder / "report-scores.png"
    )
    return ["<h2>Evaluations</h2>", image("report-scores", name)]


def _reach_and_values(folder: Path) -> list[str]:
    verdict = history.verdict(folder)
    if verdict is None:
        return []
    rows = history.diagnoses(folder)
    at = np.array([row["value/at"] for row in rows])

    def line(name: str) -> Curve:
        return single_run(at, np.array([row.get(name, np.nan) for row in rows]))

    panels = {
        "at data states": {
            "value": line("value/q"),
            "earned in the model": line("value/monte_carlo"),
        },
        "ends outside, share": {"": line("reach/outside")},
        "critics' spread": {
            "inside": line("reach/spread_inside"),
            "at the edge": line("reach/spread_edge"),
        },
        "effective penalty": {
            "inside": line("reach/penalty_inside"),
            "at the edge": line("reach/penalty_edge"),
        },
    }
    figures.curves(panels, unit_of(folder), "", folder / "report-reach.png")
    return [
        "<h2>Reach and values</h2>",
        f"<p><strong>{escape(verdict.sentence)}</strong></p>",
        image("report-reach", "values, reach, spread and penalty"),
    ]


def _values(folder: Path) -> list[str]:
    """Values at states of the data against what was earned there and what rewards allow."""
    measured = values.history(folder)
    if not measured:
        return []
    steps = np.array([step for step, _ in measured])

    def line(name: str) -> Curve:
        return single_run(steps, np.array([getattr(v, name) for _, v in measured]))

    lines = {"of the policy, by its critics": line("mean"), "earned in the log": line("logged")}
    lines |= {"most that rewards allow": line("high")}
    figures.curves({"": lines}, unit_of(folder), "discounted value", folder / "report-values.png")
    now = measured[-1][1]
    text = now.sentence or (
        f"values are possible: {now.mean:.4g} on average at states of the data, where "
        f"the logged return is {now.logged:.4g} and rewards allow {now.low:.4g} to {now.high:.4g}"
    )
    return [
        "<h2>Values</h2>",
        f"<p>{escape(text)}</p>",
        image("report-values", "mean value at states of the data against the logged return"),
    ]


def _before_you_deploy(folder: Path) -> list[str]:
    """What `value` wrote; where it was not run, how to."""
    title = "<h2>Before you deploy</h2>"
    if not (folder / valuation.FILE).exists():
        if TrainingRun(folder).settings.online:
            return []
        command = f"python -m experiments value {shlex.quote(str(folder))}"
        return [title, f"<p>Not valued yet: <code>{escape(command)}</code></p>"]
    content = folders.read_json(folder / valuation.FILE)
    logged, near = content["logged"], content["support"]
    head = ("estimate", "value", "more than the logged policy", "believed here")
    rows = [
        (
            e["method"],
            interval(e["value"], e["low"], e["high"]),
            interval(e["difference"], e["difference_low"], e["difference_high"]),
            "yes" if e["believed"] else f"no: {e['note']}",
        )
        for e in content["estimates"]
    ]
    notes = {
        "policy": f"of update {content['step']}",
        "valued on": f"{content['episodes']} episodes, {content['rows']} rows: {content['where']}",
        "logged return": f"{interval(*logged)}, discounted, as recorded",
        "intervals": f"{100 * content['confidence']:g}%, over episodes; gamma {content['gamma']:g}",
        "support": f"{near['outside']:.1%} of its actions are unlike any logged ones at like "
        f"observations ({near['logged_outside']:.1%} of the logged ones are)",
    }
    if content["critic"] is not None:
        low, high = content["limits"]
        notes["its own critic"] = (
            f"{content['critic']:.4g} at the starts; rewards allow {low:.4g} to {high:.4g}"
        )
    return [
        title,
        f"<p><strong>{escape(content['verdict']['sentence'])}</strong></p>",
        rows_table(head, rows),
        facts(notes),
    ]


def interval(value: float, low: float, high: float) -> str:
    """A value with its bounds; a dash where there is none."""
    return f"{value:.4g} [{low:.4g}, {high:.4g}]" if math.isfinite(value) else "-"
