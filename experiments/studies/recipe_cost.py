"""Computing time of every recipe on a batch of token log-probs, relative to GRPO and to a training
step of a small language model in the same process."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.language.models.transformer import Transformer, TransformerConfig
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl import statistics
from mbrl.networks import adam
from mbrl.policy_gradient import RECIPES, Recipe, estimate, loss
from mbrl.types import Trajectories

VERSION = 2
DEFAULTS: dict[str, Any] = {
    "sequences": 512,
    "steps": 1024,
    "group": 8,  # sequences of a prompt
    "turn": 64,  # steps of a turn
    "rounds": 3,  # of which the fastest counts
    "model": {"width": 64, "layers": 2, "heads": 4, "hidden": 128},  # of the tables of language
    "tokens": 64,  # it tells apart
    "part": 16,  # sequences of its step that are timed; it does them part by part
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Processor seconds of the estimate (once a batch) and of loss and gradient (at every update),
    the fastest of a few rounds, all recipes in turn. `largest` and `median`: both together over
    GRPO's; `above_two`: recipes that take more than twice as long. `step_s`: log-probs, backward
    pass and optimiser step of the model on as many tokens; `share`, `share_largest`: what GRPO and
    the costliest recipe take, in percent of that. Curves, by recipe: the two times in
    milliseconds."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in RECIPES}
    g = torch.Generator().manual_seed(seed)
    shape = (settings["sequences"], settings["steps"])
    log_prob = (-1 - 0.1 * torch.rand(shape, generator=g)).requires_grad_()
    entropy = torch.rand(shape, generator=g)
    for _ in range(settings["rounds"]):
        for name, recipe in RECIPES.items():
            t = batch(recipe, settings, g)
            began = time.process_time()
            estimated = estimate(recipe, t)
            between = time.process_time()
            value, _ = loss(recipe, log_prob, t, estimated, entropy)
            if value.requires_grad:
                torch.autograd.grad(value, log_prob)
            seconds[name].append((between - began, time.process_time() - between))
    step = training_step(settings, g)
    best = {name: np.array(times).min(0) for name, times in seconds.items()}
    ratio = {name: float(b.sum() / best["grpo"].sum()) for name, b in best.items()}
    values = {
        "grpo_ms": 1000 * float(best["grpo"].sum()),
        "median": float(np.median(list(ratio.values()))),
        "largest": max(ratio.values()),
        "above_two": float(sum(r > 2 for r in ratio.values())),
        "step_s": step,
        "share": 100 * float(best["grpo"].sum()) / step,
        "share_largest": 100 * max(float(b.sum()) for b in best.values()) / step,
    }
    return Outcome(
        values, {name: [round(1000 * float(x), 2) for x in b] for name, b in best.items()}
    )


def training_step(settings: dict[str, Any], g: torch.Generator) -> float:
    """Processor seconds of the model's step on all sequences, from those of a part of them."""
    model = Transformer(settings["tokens"], TransformerConfig(**settings["model"]), g)
    optimiser = adam(model.parameters(), 1e-3)
    part = min(settings["part"], settings["sequences"])
    tokens = torch.randint(settings["tokens"], (part, settings["steps"] + 1), generator=g)
    seconds: list[float] = []
    for _ in range(settings["rounds"]):
        began = time.process_time()
        logits = model(tokens[:, :-1])
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        nll.backward()
        passed = time.process_time()
        optimiser.step()
        once = time.process_time() - passed
        seconds.append((passed - began) * settings["sequences"] / part + once)
    return min(seconds)


def batch(recipe: Recipe, settings: dict[str, Any], g: torch.Generator) -> Trajectories:
    """Random full sequences with the fields that the recipe needs."""
    rows, steps = settings["sequences"], settings["steps"]
    row, at = torch.arange(rows)[:, None], torch.arange(steps)[None]
    turn = (at // settings["turn"]).expand(rows, steps).contiguous()
    prompt = (row // settings["group"]).expand(rows, steps).contiguous()

    def uniform() -> Tensor:
        return torch.rand(rows, steps, generator=g)

    def named(kind: str) -> list[str]:
        return [need.split(".")[1] for need in recipe.needs if need.startswith(kind + ".")]

    segments = {"turn", *named("segments")}
    keys = {name for term in recipe.terms for name in term.key} | set(named("groups"))
    # Whatever else groups: half of a prompt's sequences, from turn to turn.
    part = prompt * 2 + row % 2
    finer = part * (int(turn.max()) + 1) + turn
    reward = torch.zeros(rows, steps)
    reward[:, -1] = (torch.rand(rows, generator=g) < 0.5).float()
    ends = torch.zeros(rows, steps, dtype=torch.bool)
    nothing = torch.zeros(rows, steps, 0)
    return Trajectories(
        nothing,
        turn,
        reward,
        nothing,
        ends,
        ends,
        ~ends,
        log_probs={k: -1 - 0.1 * uniform() for k in named("log_probs")},
        groups={"prompt": prompt} | dict.fromkeys(keys - {"prompt"} - segments, finer),
        segments=dict.fromkeys(segments, turn),
        signals={k: uniform() for k in named("signals")},
        entropy=uniform(),
        sum_prob_squared=uniform(),
    )


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The costliest recipes, over GRPO."""
    files = []
    for records in rows.values():
        curves = [r["curves"] for r in records]
        ratio = {n: np.array([sum(c[n]) / sum(c["grpo"]) for c in curves]) for n in curves[0]}
        worst = sorted(ratio, key=lambda n: -ratio[n].mean())[:25]
        intervals = {n: statistics.confidence_interval(ratio[n], statistics.mean) for n in worst}
        files.append(folder / f"cost{suffix}.png")
        figures.intervals({"estimate, loss and gradient": intervals}, files[-1], "times GRPO's")
    return files
