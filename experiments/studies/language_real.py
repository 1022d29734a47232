"""Pretrained language models from a folder, trained on rewards: held-out accuracy before and after
on the same problems, with intervals, and what it cost."""

import gc
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from algorithms.language.evaluation import answers, solved
from algorithms.language.policy_gradient import LanguageConfig
from experiments.reports import figures
from experiments.runs import folders
from experiments.runs import language as language_run
from experiments.runs.language import LanguageRun, LanguageSettings
from experiments.settings import merge
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl import statistics
from mbrl.data.locate import data_home
from mbrl.errors import MissingDataError
from mbrl.records import MetricsFile

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "folder": "stories260K-hf",  # below lm/ in the data folder
    "model": {},  # settings of the model beside its path
    "task": "story",
    "other": [],  # levels that are evaluated beside those trained on
    "recipe": "grpo",
    "config": {},  # settings of the learner over its defaults
    "steps": 60,  # rounds
    "problems": 200,  # of each level, held out
    "samples": 2,  # answers to each, sampled at temperature 1
}
HOW = {
    "SmolLM2-135M-Instruct": "python -m experiments language fetch-smollm2",
    "stories260K-hf": "export karpathy/tinyllamas stories260K as a Hugging Face folder there",
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Train by a recipe, and evaluate on the same held-out problems before and after.

    In percent, answers sampled at temperature 1: `before` and `after`, the accuracy on the levels
    that are trained on, `gain` in points, and `..._low`, `..._high`, their 95 % intervals over
    problems (Wilson's for accuracies with one answer to a problem, Student's over problems' means
    else; Student's over paired differences for the gain); the same `_other` for the other levels
    that are evaluated. `sampling` and `training`: tokens a second of processor time that a round
    after the last one samples (counted: those the model said), and that an update learns from
    (counted: those of prompts and answers, which all go through the model); `memory`: the
    process's largest resident set in MB. `signal`, `samples`: as in the other studies.
    """
    run = folder / "run"
    if not LanguageRun(run).described:
        config = _config(settings)
        language_run.create(_settings(settings, seed), config, run)
    rates = {"before": _before(settings, folder)}
    LanguageRun(run).finish()
    agent = language_run.load(run)
    rates["after"] = _rates(settings, agent)
    values: dict[str, float] = {}
    for suffix, levels in (("", agent.levels), ("_other", settings["other"])):
        if levels:
            values |= _compared(rates, [str(level) for level in levels], suffix)
    rows = MetricsFile(run / "metrics.csv").rows()
    success = [float(row["rollout/success"]) for row in rows]
    values |= {
        "signal": float(np.mean([float(row["rollout/mixed_groups"]) for row in rows])),
        "samples": float(len(rows) * agent.config.prompts * agent.config.group),
        **_speeds(agent),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    curves = {
        "step": [float(row["step"]) for row in rows],
        "success": [100 * value for value in success],
    }
    return Outcome({k: float(f"{v:.6g}") for k, v in values.items()}, curves)


def model_folder(name: str) -> Path:
    """The folder of a pretrained model. Raises `MissingDataError` with the way to get it."""
    path = data_home() / "lm" / name
    if not (path / "config.json").is_file():
        how = HOW.get(name, "write it there by `save_pretrained`")
        raise MissingDataError(f"{name} is not on this machine: {path} has no config.json. {how}")
    return path


def _config(settings: dict[str, Any]) -> LanguageConfig:
    model = settings["model"] | {"path": str(model_folder(settings["folder"]))}
    given = {"task": settings["task"], "recipe": settings["recipe"], "model": model}
    return configs.from_dict(LanguageConfig, merge(given, settings["config"]))


def _settings(settings: dict[str, Any], seed: int) -> LanguageSettings:
    return LanguageSettings(
        "policy_gradient",
        steps=settings["steps"],
        seed=seed,
        eval_every=0,
        final_problems=1,  # the study evaluates by itself, before and after alike
        final_samples=1,
        log_every=1,
        checkpoint_every=0,
        checkpoint_seconds=600.0,
        save_model=False,
        tensorboard=False,
    )


def _before(settings: dict[str, Any], folder: Path) -> dict[str, list[float]]:
    """The rates of the model before training, kept in `folder`."""
    file = folder / "before.json"
    if not file.exists():
        config = _config(settings)
        agent = language_run.new_learner(_settings(settings, 0), config)
        folders.write_json(file, _rates(settings, agent))
        del agent
        gc.collect()
    rates: dict[str, list[float]] = folders.read_json(file)
    return rates


def _rates(settings: dict[str, Any], agent: Any) -> dict[str, list[float]]:
    """By level, of each problem the share of answers that are right."""
    rates = {}
    for level in (*agent.levels, *settings["other"]):
        parts = answers(
            agent.model,
            agent.codec,
            agent.task,
            level,
            problems=settings["problems"],
            samples=settings["samples"],
            turn_tokens=agent.config.turn_tokens,
            rows_at_once=agent.config.rows_at_once,
        )
        rates[str(level)] = solved(parts, settings["samples"]).mean(1).tolist()
    return rates


def _compared(
    rates: dict[str, dict[str, list[float]]], levels: list[str], suffix: str
) -> dict[str, float]:
    """Accuracies, their difference and their intervals in percent, over the problems of `levels`
    together."""
    before, after = (
        np.concatenate([rates[when][level] for level in levels]) for when in ("before", "after")
    )
    intervals = {
        "before": accuracy(before),
        "after": accuracy(after),
        "gain": statistics.confidence_interval(after - before, statistics.mean),
    }
    return {
        f"{name}{suffix}{end}": 100 * value
        for name, interval in intervals.items()
        for end, value in zip(("", "_low", "_high"), interval, strict=True)
    }


def accuracy(rates: np.ndarray) -> statistics.Interval:
    """The mean of the shares `rates` [problems] of right answers, with its 95 % interval: Wilson's
    where each share is of one answer (0 or 1), else Student's over problems, cut to 0 to 1."""
    if np.isin(rates, (0.0, 1.0)).all():
        wilson = stats.binomtest(int(rates.sum()), len(rates)).proportion_ci(method="wilson")
        return statistics.Interval(float(rates.mean()), wilson.low, wilson.high)
    mean, low, high = statistics.confidence_interval(rates, statistics.mean)
    return statistics.Interval(mean, max(low, 0.0), min(high, 1.0))


def _speeds(agent: Any) -> dict[str, float]:
    """Tokens a second of processor time in sampling a round and in one update. The agent has
    learned when this returns."""
    said, begin = agent.tokens["sampled"], time.process_time()
    rollouts = agent.collector.collect()
    sampling = (agent.tokens["sampled"] - said) / (time.process_time() - begin)
    agent.take_in(agent.with_old(rollouts))
    batch = agent.next_batch()
    begin = time.process_time()
    agent.update(batch)
    spent = time.process_time() - begin
    last = batch.rollouts.data.mask.cumsum(1).argmax(1)  # the step of the last token said
    return {"sampling": sampling, "training": float((last + 1).sum()) / spent}


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Success of the conversations of each round, and the gains on held-out problems."""
    files = [folder / f"{name}{suffix}.png" for name in ("success", "gains")]
    panels = figures.by_label(rows, figures.column("step"), figures.column("success"))
    figures.curves(panels, "round", "success in a round, in %", files[0])
    gains = {
        "levels trained on": {
            label: statistics.confidence_interval(
                np.array([r["values"]["gain"] for r in records]), statistics.mean
            )
            for label, records in rows.items()
        }
    }
    figures.intervals(gains, files[1], "gain in points, mean")
    return files
