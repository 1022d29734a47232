"""G2RPO: the samples of a group differ by the noise of one step alone, and each is finished with
several numbers of steps: "G2RPO: Granular GRPO for Precise Reward in Flow Models" (arXiv
2510.01982), as in the authors' code (bcmi/Granular-GRPO, fastvideo/train_g2rpo_hps.py)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from algorithms.diffusion_rl.branches import Draw
from algorithms.diffusion_rl.chains import Fixed, Moves, move, pinned
from world_models.samplers.base import Denoiser, check_levels


def anchor(
    denoise: Denoiser, noise: Tensor, sigmas: Sequence[float], fixed: Fixed | None = None
) -> list[Tensor]:
    """The states [P, ...] at every level of a chain without fresh noise."""
    check_levels(sigmas)
    states = [pinned(sigmas[0] * noise, fixed)]
    zero = torch.zeros_like(noise)
    for now, then in pairwise(sigmas):
        states.append(move(denoise, states[-1], zero, now, then, 0.0, fixed)[0])
    return states


def spread_from(
    denoise: Denoiser,
    state: Tensor,
    now: float,
    then: float,
    eta: float,
    draw: Draw,
    fixed: Fixed | None = None,
) -> tuple[Tensor, Moves]:
    """Draws of one step from `state` [P G, ...], in which those of a group are alike. Raises
    `ValueError` for a step that draws nothing."""
    reached, made = move(denoise, state, draw(state), now, then, eta, fixed)
    if made is None:
        raise ValueError(f"the step from level {now:g} to {then:g} draws nothing")
    return reached, made


def finished(
    denoise: Denoiser,
    x: Tensor,
    sigmas: Sequence[float],
    granularity: int,
    fixed: Fixed | None = None,
) -> Tensor:
    """Samples from `x` at the first of the levels, without fresh noise, by every `granularity`-th
    of them; the last is always there."""
    zero = torch.zeros_like(x)
    for now, then in pairwise([*sigmas[:-1:granularity], sigmas[-1]]):
        x = move(denoise, x, zero, now, then, 0.0, fixed)[0]
    return x


def group_scores(reward: Tensor) -> Tensor:
    """[P, G]: (R - mean) / (sample deviation + 1e-8) of every group, 0 where all are equal."""
    alike = (reward == reward[:, :1]).all(1, keepdim=True)  # their mean may be rounded
    z = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-8)
    return torch.where(alike, torch.zeros_like(z), z)
