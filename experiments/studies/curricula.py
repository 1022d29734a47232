"""Curricula for students that differ: ALP-GMM, and AGAIN, which takes over from past students:
"Meta Automatic Curriculum Learning" (arXiv 2011.08463), in its toy space at a smaller size."""

import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from algorithms.curricula.again import AGAIN, AGAINConfig, PastStudent, curriculum
from algorithms.curricula.alp_gmm import ALPGMM
from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.competence_grid import CompetenceGrid, Oracle, Uniform
from mbrl.errors import optional_packages, unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "size": 6,  # cells a side
    "episodes": 18_000,  # of a student
    "before": 1800,  # of them before the test by which an expert is chosen
    "first": "corner",  # first cells of students: a corner, or any cell (any)
    "past": 16,  # students taught before
    "neighbours": 3,  # past students among whom the expert is chosen
    "rewards": 10,  # what variant "reward" compares
}
FIRST = ("corner", "any")
LOW, HIGH = (0.0, 0.0), (1.0, 1.0)
POINTS = 60  # of a curve
METHODS = ("random", "alp-gmm", "pool", "time", "reward", "random expert", "oracle")


class Teacher(Protocol):
    def sample(self) -> np.ndarray: ...
    def update(self, task: np.ndarray, reward: float) -> bool: ...


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Teach `past` students by ALP-GMM, then one new student by every method, from the same first
    cell. Per cent of the cells that are mastered at the end, by method."""
    if settings["first"] not in FIRST:
        raise unknown_name("kind of first cells", settings["first"], FIRST)
    with optional_packages("curricula", "fits of Gaussian mixtures"):
        from sklearn.exceptions import ConvergenceWarning
    draws = np.random.default_rng(50_000 + seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hundred steps of EM, as theirs
        past = [
            past_student(settings, draws, 1000 * (seed + 1) + k) for k in range(settings["past"])
        ]
        first = first_cell(settings, draws, settings["past"])
        curves = {method: taught(method, settings, first, past, seed, draws) for method in METHODS}
    values = {method: curve[-1] for method, curve in curves.items()}
    at = np.linspace(0, settings["episodes"], POINTS + 1)[1:]
    return Outcome(values, {"episode": [float(x) for x in at]} | curves)


def first_cell(settings: dict[str, Any], draws: np.random.Generator, count: int) -> tuple[int, int]:
    """The first cell of the student with this number."""
    last = settings["size"] - 1
    if settings["first"] == "corner":
        return ((0, 0), (last, 0), (0, last), (last, last))[count % 4]
    row, column = draws.integers(settings["size"], size=2)
    return int(row), int(column)


def past_student(settings: dict[str, Any], draws: np.random.Generator, seed: int) -> PastStudent:
    """A student taught by ALP-GMM."""
    student = CompetenceGrid(settings["size"], first_cell(settings, draws, seed % 1000))
    teacher = ALPGMM(LOW, HIGH, seed=seed)
    teach(teacher, student, settings["before"])
    early = student.tested()
    teach(teacher, student, settings["episodes"] - settings["before"])
    return PastStudent(early, student.tested(), curriculum(teacher, AGAINConfig().least_progress))


def teach(teacher: Teacher, student: CompetenceGrid, episodes: int) -> None:
    for _ in range(episodes):
        task = teacher.sample()
        teacher.update(task, student.train(task))


def taught(
    method: str,
    settings: dict[str, Any],
    first: tuple[int, int],
    past: list[PastStudent],
    seed: int,
    draws: np.random.Generator,
) -> list[float]:
    """Per cent of mastered cells at `POINTS` times of a new student."""
    student = CompetenceGrid(settings["size"], first)
    teacher: Any
    if method in ("random", "oracle"):
        teacher = Uniform(seed) if method == "random" else Oracle(student, seed)
    elif method == "alp-gmm":
        teacher = ALPGMM(LOW, HIGH, seed=seed)
    else:
        variant: Any = "reward" if method == "random expert" else method
        config = AGAINConfig(
            variant=variant, neighbours=settings["neighbours"], rewards=settings["rewards"]
        )
        teacher = AGAIN(LOW, HIGH, past, config, seed)
    taught = [student for student in past if student.stages]
    expert = taught[int(draws.integers(len(taught)))] if method == "random expert" else None
    curve, done = [], 0
    times = np.linspace(0, settings["episodes"], POINTS + 1)[1:].round().astype(int)
    for time in times:
        if isinstance(teacher, AGAIN) and done < settings["before"] <= time:
            teach(teacher, student, settings["before"] - done)
            done = settings["before"]
            teacher.test(student.tested(), expert)
        teach(teacher, student, int(time) - done)
        done = int(time)
        curve.append(student.mastered())
    return curve


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Mastered cells against episodes: a panel for the kind of students, a line a method."""
    panels = {
        label: {
            method: figures.curve(
                np.array(records[0]["curves"]["episode"]),
                np.array([record["curves"][method] for record in records]),
            )
            for method in METHODS
        }
        for label, records in rows.items()
        if records
    }
    if not panels:
        return []
    path = folder / f"curricula{suffix}.png"
    figures.curves(panels, "episodes", "cells mastered, %", path, top=100)
    return [path]
