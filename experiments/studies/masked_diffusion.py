"""A masked diffusion model of text: decoded in several ways, and trained by reward."""

import random
from pathlib import Path
from typing import Any

import torch

from algorithms.language.models.transformer import TransformerConfig
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem, TextTask
from algorithms.masked_diffusion import (
    DecodingConfig,
    Layout,
    MaskedFinetuning,
    MaskedFinetuningConfig,
    MaskedModel,
    MaskedModelConfig,
    fit,
    solved,
)
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.config import Count, CountOrZero, Positive

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "task": "sorting",
    "level": 4,  # of the problems shown, rewarded and judged
    "model": {"width": 64, "layers": 2, "heads": 4, "hidden": 172},
    "shown": 3000,  # updates on demonstrations
    "learning_rate": 2e-3,  # of them
    "decoding": {},  # settings of `DecodingConfig`, by which answers are decoded and judged
    "tuning": {},  # settings of `MaskedFinetuningConfig` but for decoding and levels
    "evaluations": 0,  # rows that go through the network in the training by reward; 0: none
    "problems": 500,  # held out, to judge by
}
EVALUATIONS = 8  # along the way, evenly


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit a model to demonstrations, train it by reward until `evaluations` rows have gone through
    the network, and judge it on problems that are held out.

    `solved` is the share of problems that one answer each solves, decoded by `decoding`;
    `solved_before` the same without training by reward; `passes` the passes of the network that an
    answer takes; `length` the mean number of characters of an answer.
    """
    check(settings)
    layout = Layout(text_task(settings["task"]))
    decoding = configs.from_dict(DecodingConfig, settings["decoding"])
    path = folder / "tuning.pt"
    content = checkpoint.load(path) if path.exists() else None
    tuning = MaskedFinetuning(
        shown(layout, settings, seed, content is None),
        layout,
        configs.from_dict(MaskedFinetuningConfig, given(settings)),
        seed=seed,
    )
    curves: dict[str, list[float]] = {"evaluations": [], "solved": []}
    if content is not None:
        tuning.load_state_dict(content["tuning"])
        curves = content["curves"]
    problems = held_out(layout.task, settings["level"], settings["problems"])

    def evaluate() -> None:
        curves["evaluations"].append(float(tuning.evaluations))
        curves["solved"].append(solved(tuning, decoding, problems, seed))
        checkpoint.save(path, {"tuning": tuning.state_dict(), "curves": curves})

    if not curves["solved"]:
        evaluate()
    every = settings["evaluations"] / EVALUATIONS
    while tuning.evaluations < settings["evaluations"]:
        tuning.update()
        if tuning.evaluations >= every * len(curves["solved"]):
            evaluate()
    values = {"solved": 100.0 * curves["solved"][-1], "solved_before": 100.0 * curves["solved"][0]}
    values["passes"] = float(len(decoding.counts(layout.answer)))
    answer = tuning.decode(
        layout.prompts(problems), decoding, torch.Generator().manual_seed(seed)
    ).answer
    values["length"] = sum(map(len, layout.texts(answer))) / len(problems)
    return Outcome(values, {k: [float(f"{v:.5g}") for v in c] for k, c in curves.items()})


def check(settings: dict[str, Any]) -> None:
    """Raise `ConfigError` for impossible settings."""
    ranges = {"level": Count, "shown": Count, "learning_rate": Positive}
    configs.check(settings, ranges | {"evaluations": CountOrZero, "problems": Count})
    layout = Layout(text_task(settings["task"]))
    configs.from_dict(DecodingConfig, settings["decoding"]).counts(layout.answer)
    configs.from_dict(MaskedFinetuningConfig, given(settings))
    configs.from_dict(TransformerConfig, settings["model"])
    layout.task.problem(settings["level"], random.Random(0))


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the training by reward, which samples at temperature 1."""
    own: dict[str, Any] = settings["tuning"]
    decoding = settings["decoding"] | {"temperature": 1.0}
    return {"decoding": decoding, "levels": [settings["level"]]} | own


def shown(layout: Layout, settings: dict[str, Any], seed: int, fitted: bool) -> MaskedModel:
    """The model after its demonstrations; not `fitted`, its first weights, for a state to go in."""
    config = MaskedModelConfig(configs.from_dict(TransformerConfig, settings["model"]))
    model = MaskedModel(layout, config, torch.Generator().manual_seed(seed))
    if fitted:
        rate, levels = settings["learning_rate"], (settings["level"],)
        fit(model, layout, settings["shown"], levels=levels, learning_rate=rate, seed=seed)
    return model


def held_out(task: TextTask, level: int, count: int) -> list[Problem]:
    rng = random.Random("judged")
    return [task.problem(level, rng, held_out=True) for _ in range(count)]


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Problems solved against rows that went through the network, where rewards were given."""
    trained = {k: v for k, v in rows.items() if len(v[0]["curves"]["evaluations"]) > 1}
    panels = figures.by_label(trained, figures.column("evaluations"), figures.column("solved"))
    if not panels:
        return []
    path = folder / f"masked-diffusion{suffix}.png"
    figures.curves(panels, "rows through the network", "share solved", path)
    return [path]
