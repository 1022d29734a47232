"""Computing time of an update of a recurrent learner against the length of its sequence."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic, RecurrentLearnerConfig
from experiments.reports import figures
from experiments.settings import merge, preset
from experiments.studies import Outcome
from mbrl import config as configs
from mbrl import data
from mbrl.sequences import SequenceBuffer

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "data": "swingup/medium-replay",  # whose episodes are on the tape
    "learner": {},  # settings over those of NEUBAY's preset
    "lengths": [256, 512, 1024, 2048, 4096, 8192],  # positions of a tape
    "repeats": 5,  # updates of each, of which the fastest counts
}


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Processor milliseconds of an update at every length, all lengths in turn.

    `ms_short`, `ms_long`: at the least and the greatest length; `position_us`: microseconds that a
    position more costs, by a straight line through all; `exponent`: slope of log time against log
    length over the upper half of the lengths, 1 where cost is linear.
    """
    dataset, seconds = data.load(settings["data"]), []
    buffer = SequenceBuffer(dataset.spec, 2 * len(dataset), 0.99)
    for begin, end in dataset.transitions.episodes():
        rows = dataset.transitions.select(torch.arange(begin, end))
        obs = torch.cat([rows.obs, rows.next_obs[-1:]])
        real = torch.ones(end - begin, dtype=torch.bool)
        buffer.append(obs, rows.action, rows.reward, rows.terminated, real)
    values = merge(preset("neubay", settings["data"])["config"]["learner"], settings["learner"])
    draw = torch.Generator().manual_seed(seed)
    config = configs.from_dict(RecurrentLearnerConfig, values)
    learner = RecurrentActorCritic(dataset.spec, config, torch.device("cpu"), draw)
    for _ in range(settings["repeats"] + 1):  # the first one warms up
        seconds.append([_once(learner, buffer, n, draw) for n in settings["lengths"]])
    lengths, best = np.array(settings["lengths"], dtype=float), np.array(seconds[1:]).min(0)
    half = len(lengths) // 2
    slope = np.polyfit(np.log(lengths[half:]), np.log(best[half:]), 1)[0]
    return Outcome(
        {
            "ms_short": 1000 * float(best[0]),
            "ms_long": 1000 * float(best[-1]),
            "position_us": 1e6 * float(np.polyfit(lengths, best, 1)[0]),
            "exponent": float(slope),
        },
        {"length": lengths.tolist(), "ms": [float(f"{1000 * s:.4g}") for s in best]},
    )


def _once(
    learner: RecurrentActorCritic, buffer: SequenceBuffer, length: int, draw: torch.Generator
) -> float:
    tape = learner.draw(buffer.sample(length, draw), draw)
    began = time.process_time()
    learner.update(tape)
    return time.process_time() - began


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Milliseconds against length."""
    panels = figures.by_label(rows, figures.column("length"), figures.column("ms"))
    path = folder / f"sequence-cost{suffix}.png"
    figures.curves(panels, "positions of a tape", "milliseconds of an update", path)
    return [path]
