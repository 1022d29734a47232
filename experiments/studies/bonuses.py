"""Exploration bonuses in mazes that are alike in a share: which novelty helps when. "A Study of
Global and Episodic Bonuses for Exploration in Contextual MDPs" (arXiv 2306.03236)."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.studies import Outcome, prerequisites
from mbrl import tasks
from mbrl.evaluation import evaluate
from mbrl.records import Evaluations
from mbrl.statistics import Interval, confidence_interval, mean
from mbrl.tasks.context_grid import ContextGrid

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "common": 1.0,  # share that the mazes have in common
    "size": 7,
    "contexts": 10,  # mazes
    "show_context": True,  # whether the observation tells the maze
    "bonus": {},  # fields of algorithms.control.bonuses.BonusConfig
    "position": True,  # whether the bonus sees row and column alone, or the whole observation
    "rounds": 80,  # of 16 episodes
    "episodes": 500,  # of the evaluation
}
COMMON = (1.0, 0.67, 0.33, 0.0)
COUNTED = ("global", "episodic", "product", "sum")


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train PPO with a bonus.

    `success`: per cent of 500 episodes of the last policy, which draws its actions, that reach the
    goal; `greedy`: of its greedy actions. `half`: rounds until half of the greedy episodes of an
    evaluation did, or all rounds. `spread`: the mean over rooms of the variance over mazes of the
    best value 0.99^d, d the steps of the shortest path.
    """
    size, contexts = settings["size"], settings["contexts"]
    name = f"ContextGrid-v0,size={size},contexts={contexts},common={settings['common']}"
    name += "" if settings["show_context"] else ",show_context=0"
    task = tasks.make(name)
    assert isinstance(task, ContextGrid)
    limit = task.spec.max_episode_steps
    assert limit is not None
    columns = list(range(2 * size)) if settings["position"] else []
    bonus = {"columns": columns} | settings["bonus"]
    run = {
        "algorithm": "policy_gradient",
        "data": name,
        "steps": settings["rounds"] * limit,
        "episodes": settings["episodes"],
        "config": {"recipe": "ppo", "group": 1, "bonus": bonus},
    }
    agent = prerequisites.agent(run, prerequisites.config(run), seed, folder / "run")
    drawn = evaluate(agent, task, settings["episodes"], deterministic=False)
    known = Evaluations.load(folder / "run" / "evaluations.npz")
    rounds = [step / limit for step in known.steps]
    greedy = [100 * float(r.mean()) for r in known.returns]
    values = {
        "success": 100 * float(drawn.mean()),
        "greedy": greedy[-1],
        "half": first_at(rounds, greedy, 50.0),
        "spread": float((0.99 ** task.distances().double()).var(0, correction=0).mean()),
    }
    return Outcome(values, {"round": rounds, "greedy": greedy})


def first_at(rounds: list[float], values: list[float], level: float) -> float:
    """The first of `rounds` with a value of at least `level`; the last where there is none."""
    return next((r for r, v in zip(rounds, values, strict=True) if v >= level), rounds[-1])


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Success by bonus, a panel for what mazes have in common."""
    panels: dict[str, dict[str, Interval]] = {}
    for label, records in rows.items():
        share, bonus = label.split(", ", 1)
        scores = np.array([record["values"]["success"] for record in records])
        if len(scores):
            panel = panels.setdefault(f"{float(share):.0%} in common", {})
            panel[bonus] = confidence_interval(scores, mean)
    if not panels:
        return []
    path = folder / f"bonuses{suffix}.png"
    figures.intervals(panels, path, "episodes that reach the goal, %")
    return [path]


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for common in COMMON:
        rows.append({"label": f"{common}, none, counts of positions", "common": common})
        for kind in COUNTED:
            text = f"{common}, {kind}, counts of positions"
            rows.append({"label": text, "common": common, "bonus": {"kind": kind}})
        for kind in COUNTED[:3]:
            text = f"{common}, {kind}, counts of observations"
            chosen = {"common": common, "bonus": {"kind": kind}, "position": False}
            rows.append({"label": text, **chosen})
        for kind in COUNTED[:3]:
            form = {"kind": kind, "novelty": "elliptical", "normalised": True}
            text = f"{common}, {kind}, elliptical"
            rows.append({"label": text, "common": common, "bonus": form})
    return rows


def learned() -> list[dict[str, Any]]:
    """Rows of novelty by a random network: RND, its product with both kinds of episodic novelty,
    and NovelD, where mazes have two thirds in common and nothing."""
    forms: dict[str, dict[str, Any]] = {
        "RND": {"kind": "global"},
        "RND times first visits": {"kind": "product"},
        "RND times E3B": {"kind": "product", "novelty": "elliptical"},
        "NovelD": {"kind": "noveld"},
    }
    return [
        {
            "label": f"{common}, {name}",
            "common": common,
            "bonus": {"random_network": True, "normalised": True} | form,
        }
        for common in (0.67, 0.0)
        for name, form in forms.items()
    ]


def never_again() -> list[dict[str, Any]]:
    """The rows of two shares, and those of a random network, in mazes so many that hardly one comes
    again, and that the observation does not tell."""
    rows = [r for r in _rows() if r["common"] in (0.67, 0.0)]
    rows = [r for r in rows if "observations" not in r["label"]] + learned()
    return [
        row | {"label": f"{row['label']}, new mazes", "contexts": 10_000, "show_context": False}
        for row in rows
    ]


ROWS = {
    f"common {common}": lambda common=common: [r for r in _rows() if r["common"] == common]
    for common in COMMON
} | {"random network": learned, "never again": never_again}
