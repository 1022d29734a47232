"""The workload of `bench` that samples windows, and how many products it takes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.bench.peer_programs import Step
from experiments.settings import preset_config
from mbrl.types import Spec
from world_models import DiffusionConfig, TrajectoryDiffusion
from world_models.samplers import SAMPLERS, edm_levels

WIDE = DiffusionConfig(width=128)  # the network of the recorded figure
SMALL: DiffusionConfig = preset_config("pgd", "pendulum/medium").model  # of local datasets
TOGETHER = 32  # windows


def sampling(
    spec: Spec, config: DiffusionConfig, sampler: str, steps: int
) -> tuple[Callable[[bool, Path], tuple[Step, int]], Callable[[bool], float]]:
    """What builds the workload, `TOGETHER` windows at a time, and the GFLOP of a window's products;
    both take whether the workload is to be quick. The model is not fitted, as its samples do not
    matter."""

    def model(quick: bool) -> TrajectoryDiffusion:
        width = 8 if quick else config.width
        made = TrajectoryDiffusion(spec, dataclasses.replace(config, width=width, updates=1))
        made.updates = 1
        return made

    def build(quick: bool, folder: Path) -> tuple[Step, int]:
        made, draw = model(quick), torch.Generator().manual_seed(0)
        how, levels = SAMPLERS[sampler](), edm_levels(2 if quick else steps)
        return lambda: made.windows(TOGETHER, draw, sampler=how, sigmas=levels), TOGETHER

    def work(quick: bool) -> float:
        made = model(quick)
        x = torch.zeros(1, config.length, made.tokens.size, requires_grad=True)  # by PyTorch
        with FlopCounterMode(display=False) as counter:
            made.denoise(x, torch.ones(1))
        evaluations = SAMPLERS[sampler]().evaluations(2 if quick else steps)
        return 1e-9 * float(counter.get_total_flops()) * evaluations

    return build, work
