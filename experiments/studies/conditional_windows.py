"""Windows that begin in given observations: the generator, fitted on for it, and the starts that
are learned from and those that are kept for judging."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from algorithms.diffusion_rl import Fixed, fit_conditional
from experiments.studies import prerequisites
from mbrl import checkpoint, data, tasks
from mbrl.config import Count, Several
from mbrl.tasks.base import Task
from mbrl.types import Transitions
from world_models.trajectory_diffusion import TrajectoryDiffusion
from world_models.windows import window_rows

# Settings of every study of such windows.
DEFAULTS: dict[str, Any] = {
    "data": "pendulum/medium-replay",
    "length": 16,  # observations of a window
    "model": {"width": 32, "levels": 2, "updates": 5000},  # over those of PGD's preset
    "conditional": 20_000,  # updates more, with the first observation given
}
RANGES: dict[str, Any] = {"length": Several, "conditional": Count}
JUDGED = 0.2  # share of the rows in which only evaluations begin


class ConditionalWindows(NamedTuple):
    """`network` denoises windows whose first observations are given; `learn` [N, L, F] are
    standardised windows from four in five rows, `judge` has some from the others, with these
    observations fixed."""

    generator: TrajectoryDiffusion
    network: nn.Module
    task: Task
    learn: Tensor
    judge: Fixed


def conditional_windows(
    settings: dict[str, Any], seed: int, folder: Path, count: int
) -> ConditionalWindows:
    """The generator fitted in `folder`, where the conditional network is kept, too, with `count`
    starts for judging (fewer where the data have fewer)."""
    generator = prerequisites.generator_of_windows(settings, seed, folder)
    rows = data.load(settings["data"])
    learn, judge = starts(generator, rows.transitions, seed, count)
    path = folder / f"conditional-{settings['conditional']}.pt"
    network = generator.average
    if path.exists():
        network.load_state_dict(checkpoint.load(path)["network"])
    else:
        draw = torch.Generator().manual_seed(seed + 5)
        network = fit_conditional(network, learn, judge.mask, settings["conditional"], draw)
        checkpoint.save(path, {"network": network.state_dict()})
    return ConditionalWindows(generator, network, tasks.make_for(rows.spec), learn, judge)


def starts(
    generator: TrajectoryDiffusion, rows: Transitions, seed: int, count: int
) -> tuple[Tensor, Fixed]:
    """Windows of `ConditionalWindows`: `learn` and `judge`."""
    tokens: Tensor = generator.tokens.normaliser(generator.tokens.raw(rows))
    index = window_rows(rows, generator.config.length, 1)
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed + 7))
    held = max(1, int(JUDGED * len(index)))
    learn = tokens[index[order[held:]]]
    judge = tokens[index[order[:held][:count]]]
    return learn, Fixed(given(generator), judge)


def given(generator: TrajectoryDiffusion) -> Tensor:
    """Which entries [L, F] of a window are given: its first observation."""
    shape = (generator.config.length, generator.tokens.size)
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[0, : generator.spec.obs_dim] = True
    return mask
