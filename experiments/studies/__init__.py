"""Studies: experiments other than an algorithm on a dataset. A study is a function of settings and
a seed that returns numbers; a table lists rows of settings, and a cell is one call."""

import importlib
from dataclasses import dataclass
from typing import Any

from mbrl.errors import unknown_name

# name -> what it measures; the module of that name in this package has `measure`
STUDIES: dict[str, str] = {
    "robust": "robust learning in a small decision process that shifts towards failure",
    "adaptation": "an agent's scores in tasks that differ from the data",
    "abstention": "when a classifier names one label, several or none: conformal and learned",
    "bandit": "an arm without data: long rollouts without a penalty, and Bayesian agents",
    "bonuses": "exploration bonuses in mazes that are alike in a share",
    "bandit_replay": "contextual bandit learners on the log of a recommendation experiment",
    "cascading": "lists of items in a session whose clicks move the user's state",
    "compounding": "how a model's error grows along its own predictions",
    "cascades": "domains in turn, all at once, and alone: what is gained and forgotten",
    "contextual_bandits": "contextual bandit learners where regret is exact, with late feedback",
    "contrast": "what batches say of other actions than the policy's, and what critics make of it",
    "control_recipes": "a policy gradient of any recipe in a control task",
    "curricula": "teachers of students that differ: learning progress, and past students",
    "design_search": "searches over the design choices of offline model-based learning",
    "learned_ends": "ends of imagined episodes learned from the flags of a log",
    "masked_diffusion": "a masked diffusion model of text, decoded in several ways and trained",
    "rare_windows": "windows that are rare in the data, by minority guidance",
    "steered_windows": "search at sampling time for windows that earn much",
    "diffusion_rl": "a generator of windows trained by the task's own rewards",
    "edge_of_reach": "overestimated values in a plane with an exact model, and remedies",
    "evaluation_coverage": "intervals of off-policy evaluation against exact values",
    "expressive": "scores, modes and cost of policies that can have several modes",
    "few_steps": "quality of generated windows against the number of network evaluations",
    "finetuning": "a policy of one task that goes on in another: scores, limits, jitter",
    "goals": "learners of goals in mazes and with blocks to push, beside the scripted ways",
    "guided_law": "samples of a guided diffusion against their exact distribution",
    "hints": "recipes for what a model cannot sample: hints, prefixes, repairs, teachers",
    "horizons": "rollout lengths of NEUBAY, and its values against returns in the task",
    "imagined": "imagined rows that may be wrong beside real ones, with filters",
    "known_behaviour": "off-policy estimators on policies that recorded NeoRL-2, with known noise",
    "language_real": "pretrained language models trained on rewards, before and after",
    "language_recipes": "language models trained by every recipe from the same warm starts",
    "language_schedulers": "schedulers of rollouts over prompts, at the same number of tokens",
    "language_tasks": "language models trained on rewards or further demonstrations",
    "objectives": "searches of settings for several objectives, by hypervolume",
    "offline_to_online": "scores when a run leaves logged data for the task: switch, dip, end",
    "online": "scores against steps of algorithms that learn in a task from nothing",
    "open_bandit": "off-policy estimators on a logged recommendation experiment",
    "overestimation": "values of a run against the return of its policy in the task",
    "temporal_abstraction": "codes that steer a sequence model, learned from sparse rewards",
    "verdicts": "how often a policy said to be better than the logged one is better",
    "fqe_ranking": "how well fitted Q evaluation ranks policies of known return",
    "randomness": "offline learning where actions, time, observations or rewards are random",
    "recipes_powered": "recipes at many rounds, each with a rate of its own",
    "recovery": "recovery and correction beside demonstrations and corrections alone",
    "recipe_cost": "computing time of every recipe relative to GRPO",
    "scale_wise": "windows from coarse to fine, and refinement on own coarse windows",
    "schedule_search": "searched schedules of few evaluations beside plain ones",
    "sequence_cost": "time of a recurrent learner's update against its sequence length",
    "solver_orders": "error and order of solvers against steps for a known flow",
    "solve_choice": "what `solve` chooses from the log, beside what it could have chosen",
    "simple_reward": "a simple product against a shaped sum as a driver's reward, by minibatch",
    "precision": "a language model that samples, or samples and learns, in few bits",
    "swarm": "language models of several sizes that learn from each other's answers",
    "staleness": "policy gradients of language models on conversations of earlier policies",
    "systems": "parts of training systems with artificial latency, and simulated ones",
    "window_quality": "generated windows and imagined rollouts against the task and its policies",
    "penalty_calibration": "how well penalties rank a world model's true one-step errors",
}


@dataclass(frozen=True)
class Outcome:
    """Numbers by name, and curves by name (each a list of numbers of its own length)."""

    values: dict[str, float]
    curves: dict[str, list[float]]


def module(name: str) -> Any:
    """The module of a study: `VERSION`, `DEFAULTS`, `measure(settings, seed, folder)`, which goes
    on from what it wrote into the job's `folder` before a crash, and `draw(rows, folder, suffix)`,
    which draws the records of each row of a block and returns the files, whose stems end with
    `suffix`. It may have `needs(settings, seed, home)`, which describes under `home` the jobs that
    cells share and need, and returns their folders by name (see `place`); `ROWS`, functions that
    list rows which a table asks for by name; and `ANY_PRECISION`, True where all of a cell follows
    the table's `matmul_precision`."""
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


def takes_precision(name: str) -> bool:
    """Whether cells of the study may run in another precision of products than the highest: those
    of a study that starts runs do not all follow it."""
    return bool(getattr(module(name), "ANY_PRECISION", False))


def rows_of(name: str, which: str) -> list[dict[str, Any]]:
    """The rows that the study itself lists by that name."""
    known: dict[str, Any] = getattr(module(name), "ROWS", {})
    if which not in known:
        raise unknown_name(f"list of rows of {name}", which, known)
    rows: list[dict[str, Any]] = known[which]()
    return rows
