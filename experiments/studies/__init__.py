"""Experiments that are not an algorithm on a dataset: functions of settings and a seed that return
numbers. A table gives each of them rows of settings; a cell is one call in a job folder."""

import importlib
from dataclasses import dataclass
from typing import Any

from mbrl.errors import unknown_name

# name -> what it measures; the module of that name in this package has `measure`
STUDIES: dict[str, str] = {
    "adaptation": "an agent's scores in tasks that differ from the data",
    "bandit": "an arm without data: what long imagination without a penalty does, and Bayes' rule",
    "compounding": "how a model's error grows along its own predictions",
    "control_recipes": "a policy gradient of any recipe in a control task",
    "edge_of_reach": "values in a plane whose model is exact: what blows up, and what cures it",
    "evaluation_coverage": "intervals of off-policy evaluation against exact values",
    "few_steps": "quality of generated windows against the number of network evaluations",
    "guided_law": "samples of a guided diffusion against the law that they are meant to have",
    "horizons": "NEUBAY's rollout lengths, and its values against what is earned in the task",
    "language_recipes": "language models by every recipe, from the same warm starts",
    "language_schedulers": "which prompts get how many answers, at the same number of tokens",
    "language_tasks": "language models by rewards and by more demonstrations, in the same time",
    "overestimation": "values of a run on data against what its policy earns in the task",
    "fqe_ranking": "how well fitted Q evaluation ranks policies of known return",
    "recipe_cost": "what every recipe costs beside GRPO",
    "schedule_search": "schedules of few evaluations that a search finds, beside plain ones",
    "sequence_cost": "an update of a learner with memory against the length of its tape",
    "solver_orders": "error of solvers against steps where the flow is known, and the order of it",
    "staleness": "policy gradients of language models on conversations of earlier policies",
    "window_quality": "generated windows and imagined rollouts against the task and its policies",
    "penalty_calibration": "how well penalties rank a world model's true one-step errors",
}


@dataclass(frozen=True)
class Outcome:
    """Numbers by name, and curves by name (each a list of numbers of its own length)."""

    values: dict[str, float]
    curves: dict[str, list[float]]


def module(name: str) -> Any:
    """The module of a study: `VERSION`, `DEFAULTS`, `measure(settings, seed, folder)`, which finds
    in the job's own `folder` again what it wrote there before a crash, and `draw(rows, folder,
    mark)`, which draws the records of each row of a block into files whose stem ends with `mark`
    and returns these. It may have `needs(settings, seed, home)`, which describes under `home` the
    jobs that cells share and that must be finished before, and returns their folders by the names
    that `place` knows them by; and `ROWS`, functions that list the rows which a table asks for by
    name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    return importlib.import_module(f"experiments.studies.{name}")


def settings_of(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The study's defaults with `values` over them; an unknown one is an error."""
    defaults: dict[str, Any] = module(name).DEFAULTS
    for key in values:
        if key not in defaults:
            raise unknown_name(f"setting of {name}", key, defaults)
    return defaults | values


def rows_of(name: str, which: str) -> list[dict[str, Any]]:
    """The rows that the study itself lists by that name."""
    known: dict[str, Any] = getattr(module(name), "ROWS", {})
    if which not in known:
        raise unknown_name(f"list of rows of {name}", which, known)
    rows: list[dict[str, Any]] = known[which]()
    return rows
