"""Parts of the studies of language models: a warm start that cells share, a run that starts from
it, and the accuracy of the model before and after."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.language.evaluation import evaluate
from algorithms.language.imitation import ImitationConfig
from algorithms.language.policy_gradient import LanguageConfig
from experiments.runs import folders
from experiments.runs import language as language_run
from experiments.runs.language import LanguageRun, LanguageSettings
from experiments.runs.study import shared_jobs
from experiments.settings import merge
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl.errors import DivergenceError
from mbrl.records import MetricsFile

DEFAULTS: dict[str, Any] = {
    "task": "addition",
    "model": {"transformer": {"width": 64, "layers": 2, "heads": 4, "hidden": 128}},
    "learner": "policy_gradient",  # or imitation: further demonstrations
    "recipe": "grpo",
    "config": {},  # settings of the learner over its defaults
    "steps": 60,  # rounds of a policy gradient, updates of imitation
    "tokens": 0,  # sampled tokens after which a run ends; 0: after its rounds
    "looks": 0,  # evaluations during training, with 50 problems of each level
    "until": 0.3,  # accuracy at which the warm start ends
    "expert": 0,  # updates by which demonstrations make an expert of the warm start; 0: none
    "problems": 200,  # of each level, held out, after the last step
    "samples": 2,  # answers to each
    "device": "cpu",
}
MOST = 5000  # updates of a warm start that does not reach its accuracy
MEANS = {  # of a metric over the rounds
    "signal": "rollout/mixed_groups",
    "tail": "behaviour/tail",
    "effective": "behaviour/effective",
}


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    return {"start": warm_start(settings, seed, home)}


def warm_start(settings: dict[str, Any], seed: int, home: Path) -> Path:
    """The folder under `home` of the warm start that cells of a task, model and seed share. It is
    described there if it is missing."""
    shown = settings.get("shown", {})  # further settings of the demonstrations
    given = {"task": settings["task"], "model": settings["model"]}
    config = configs.from_dict(ImitationConfig, given | shown)
    warm = LanguageSettings(
        "imitation",
        steps=MOST,
        seed=seed,
        device=settings["device"],
        until=settings["until"],
        eval_every=50,
        final_problems=settings["problems"],
        log_every=100,
        checkpoint_every=0,
        tensorboard=False,
    )
    description = [dataclasses.asdict(warm), configs.to_dict(config)]
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:10]
    folder = (home / "starts" / f"{settings['task']}-{seed}-{digest}").resolve()
    if not LanguageRun(folder).described:
        language_run.create(warm, config, folder)
    return folder


def _finished_warm_start(settings: dict[str, Any], seed: int, folder: Path) -> Path:
    """The finished warm start of the cell in `folder`: the shared one, or one of its own."""
    return finished(shared_jobs(folder).get("start") or warm_start(settings, seed, folder))


def finished(start: Path) -> Path:
    """The folder of a warm start, which is finished first."""
    LanguageRun(start).finish()
    return start


def accuracy(agent: Any, settings: dict[str, Any], model: Any = None) -> float:
    """In percent, of the agent's model or of another `model`, on new problems of the trained
    levels."""
    scores = evaluate(
        agent.model if model is None else model,
        agent.codec,
        agent.task,
        agent.levels,
        problems=settings["problems"],
        samples=settings["samples"],
    )
    return 100 * float(np.mean([score.accuracy for score in scores]))


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train from the warm start, and evaluate on problems that neither was trained on.

    In percent: `before` and `score`, the accuracy of the warm start and of the last model on new
    problems of the trained levels, `gain` their difference in points; the same `_other` of the
    levels that are not trained on (NaN where there are none). `steps` and `samples` are rounds and
    conversations of a policy gradient, updates and demonstrations of imitation; `tokens` those that
    were learned from, `sampled` those that the model said. Means over rounds of a policy gradient,
    NaN for imitation: `signal`, the share of groups with right and wrong answers; `tail`, the share
    of tokens that are twice or half as likely at the round's last update as when they were sampled,
    or beyond; `effective`, the share of effective samples of the conversations' weights there.
    `no_signal` is there, and 1, where all advantages were 0 or a signal of the recipe was constant.
    A run that diverges has no accuracy.
    """
    start, run = _finished_warm_start(settings, seed, folder), folder / "run"
    if not LanguageRun(run).described:
        config = _config(settings, start, folder)
        language_run.create(_settings(settings, seed, start), config, run)
    before, after = folders.read_json(start / "result.json"), _result(run)
    values: dict[str, float] = {}
    for suffix, key in (("", "accuracy"), ("_other", "accuracy_other_levels")):
        a, b = (math.nan if r[key] is None else 100 * r[key] for r in (before, after))
        values |= {f"before{suffix}": a, f"score{suffix}": b, f"gain{suffix}": b - a}
    values["steps"] = float(after["step"])
    return Outcome(
        {k: _rounded(v) for k, v in (values | _usage(settings, run)).items()}, _curves(run)
    )


def _result(run: Path) -> dict[str, Any]:
    """The result of `run`, which is finished first; only the steps of one that diverged."""
    try:
        LanguageRun(run).resume(quiet=True)
    except DivergenceError:  # the result of this cell; another attempt would diverge too
        steps = len(MetricsFile(run / "metrics.csv").rows())
        return {"accuracy": None, "accuracy_other_levels": None, "step": steps}
    return folders.read_json(run / "result.json")


def _settings(settings: dict[str, Any], seed: int, start: Path) -> LanguageSettings:
    evaluations = settings["looks"]
    return LanguageSettings(
        settings["learner"],
        steps=settings["steps"],
        seed=seed,
        device=settings["device"],
        start=str(start),
        tokens=settings["tokens"] or None,
        eval_every=max(1, settings["steps"] // evaluations) if evaluations else 0,
        eval_problems=settings.get("eval_problems", 50),
        final_problems=settings["problems"],
        final_samples=settings["samples"],
        log_every=1,
        checkpoint_every=0,
        tensorboard=False,
    )


def _config(settings: dict[str, Any], start: Path, folder: Path) -> Any:
    given = {"task": settings["task"], "model": settings["model"]}
    if settings["learner"] == "imitation":
        return configs.from_dict(ImitationConfig, merge(given, settings["config"]))
    given["recipe"] = settings["recipe"]
    if settings["expert"]:
        given["expert"] = str(_expert(settings, start, folder / "expert") / "checkpoint.pt")
    return configs.from_dict(LanguageConfig, merge(given, settings["config"]))


def _expert(settings: dict[str, Any], start: Path, folder: Path) -> Path:
    """The folder of a model that is trained further on demonstrations."""
    known, config = language_run.read_settings(start)
    if not LanguageRun(folder).described:
        chosen = dataclasses.replace(
            known, steps=settings["expert"], until=None, start=str(start), final_problems=1
        )
        language_run.create(dataclasses.replace(chosen, eval_every=0), config, folder)
    LanguageRun(folder).finish()
    return folder


def _usage(settings: dict[str, Any], run: Path) -> dict[str, float]:
    """Samples, tokens and means over rounds, from the metrics of a run that logs every step."""
    rows, (_, config) = MetricsFile(run / "metrics.csv").rows(), language_run.read_settings(run)
    if settings["learner"] == "imitation":
        tokens = sum(float(row["imitation/tokens"]) for row in rows)
        used = {"samples": float(len(rows) * config.rows), "tokens": tokens, "sampled": 0.0}
        return used | dict.fromkeys(MEANS, math.nan)
    last = rows[-1] if rows else {"tokens/trained": 0, "tokens/sampled": 0}
    silent = {"no_signal": 1.0} if float(last.get("rollout/no_signal") or 0) else {}
    used = {
        "samples": float(len(rows) * config.prompts * config.group),
        "tokens": float(last["tokens/trained"]),
        "sampled": float(last["tokens/sampled"]),
    }
    means = {
        k: float(np.mean([float(row[name]) for row in rows] or [np.nan]))
        for k, name in MEANS.items()
    }
    return used | means | silent


def _curves(run: Path) -> dict[str, list[float]]:
    """Accuracy in percent, on trained and on other levels, at each evaluation."""
    rows = MetricsFile(run / "evaluations.csv").rows()
    curves: dict[str, list[float]] = {"step": [], "score": [], "score_other": []}
    for step in dict.fromkeys(row["step"] for row in rows):
        curves["step"].append(float(step))
        for name, trained in (("score", "1"), ("score_other", "0")):
            at = [
                float(r["accuracy"]) for r in rows if r["step"] == step and r["trained"] == trained
            ]
            curves[name].append(100 * float(np.mean(at)) if at else math.nan)
    return curves


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
