"""BranchGRPO: chains that share what they begin with, and advantages of every step from the samples
below it: "BranchGRPO: Stable and Efficient GRPO with Structured Branching in Diffusion Models"
(arXiv 2509.06040), as in the authors' code (Fredreic1849/BranchGRPO,
fastvideo/train_branchgrpo_flux.py)."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from algorithms.diffusion_rl.chains import Fixed, Moves, move, pinned
from world_models.samplers.base import Denoiser, check_levels

Width = Literal["all", "best", "extremes"]
Draw = Callable[[Tensor], Tensor]  # standard normal draws like the argument


def grow(
    denoise: Denoiser,
    noise: Tensor,
    sigmas: Sequence[float],
    eta: float,
    splits: Sequence[int],
    draw: Draw,
    fixed: Fixed | None = None,
) -> tuple[Tensor, list[Moves]]:
    """Trees from `noise` [P, ...], one a prompt: before every step in `splits` each node becomes
    two, which differ by the noise of that step. Returns the leaves [P 2^n, ...], those of a prompt
    together, and the moves of every depth that draws noise, [P 2^k] each."""
    check_levels(sigmas)
    x = pinned(sigmas[0] * noise, fixed)
    depths: list[Moves] = []
    for step, (now, then) in enumerate(pairwise(sigmas)):
        if step in splits:
            twice = torch.arange(len(x), device=x.device).repeat_interleave(2)
            x, fixed = x[twice], fixed and fixed.rows(twice)
        x, made = move(denoise, x, draw(x), now, then, eta, fixed)
        if made is not None:
            depths.append(made)
    return x, depths


def node_advantages(reward: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Advantages [P, w] of the nodes of every depth from the rewards [P, leaves] of the trees'
    leaves: a node is worth the mean of the leaves below it, less the mean of its depth, over its
    sample deviation + 1e-8; 0 where the depth has one node or equal ones, or a deviation below
    1e-6."""
    advantages = []
    for width in widths:
        value = reward.unflatten(1, (width, -1)).mean(-1)
        if width == 1:
            advantages.append(torch.zeros_like(value))
            continue
        spread = value.std(1, keepdim=True)
        z = (value - value.mean(1, keepdim=True)) / (spread + 1e-8)
        alike = (value == value[:, :1]).all(1, keepdim=True)  # their mean may be rounded
        advantages.append(torch.where(alike | (spread < 1e-6), torch.zeros_like(z), z))
    return advantages


def depths_left_out(
    depths: Sequence[int], splits: Sequence[int], rounds: int, every: int
) -> set[int]:
    """The depths (1: what the first step reached) whose steps are not learned from after so many
    `rounds`: `depths`, a step nearer to the noise every `every` rounds (0: never), as long as all
    of them lie after the last split."""
    if not depths:
        return set()
    most = max(0, min(depths) - max(splits, default=0))
    moved = min(rounds // every, most) if every else 0
    return {depth - moved for depth in depths}


def always_learned(
    splits: Sequence[int],
    steps: int,
    prompts: int,
    width: Width,
    ratio: float,
    left_out: Sequence[int],
    every: int,
) -> bool:
    """Whether steps are learned from in every round: whether `kept_in_width` and `depths_left_out`
    together leave a depth that has an advantage, wherever what is left out has moved to."""
    widths = [2 ** sum(split < depth for split in splits) for depth in range(1, steps)]
    # A leaf has one advantage at all late depths: whatever it is, leaves are kept one after the
    # other, and so the same depths as where all are worth the same.
    kept = kept_in_width([torch.zeros(prompts, w) for w in widths], splits, width, ratio)
    pairs = enumerate(zip(widths, kept, strict=True), 1)
    learned = {depth for depth, (w, mask) in pairs if w > 1 and bool(mask.any())}
    moves = range(max(left_out, default=0) + 1)
    return all(learned - depths_left_out(left_out, splits, k * every, every) for k in moves)


def kept_in_width(
    advantages: Sequence[Tensor], splits: Sequence[int], width: Width, ratio: float
) -> list[Tensor]:
    """[P, w] bool for the nodes of every depth with `advantages` [P, w]: which steps into them are
    learned from. Of the steps after the last split `best` keeps the share `ratio` with the largest
    advantages in every branch, at least one: as all steps of a branch then have one advantage, the
    first ones. `extremes` keeps that share of all prompts' steps, half of them the best, half the
    worst, at least two. Other steps are all kept."""
    kept = [torch.ones_like(a, dtype=torch.bool) for a in advantages]
    first = max(splits, default=-1) + 1
    late = advantages[first:]
    if width == "all" or not late:
        return kept
    flat = torch.stack(list(late), -1)  # [P, leaves, T]
    if width == "best":
        order = flat.argsort(dim=-1, descending=True, stable=True)
        chosen = order[..., : max(1, int(flat.shape[-1] * ratio))]
        mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(-1, chosen, True)
    else:
        order = flat.flatten().argsort(descending=True, stable=True)
        count = max(2, int(flat.numel() * ratio))
        chosen = torch.cat([order[: count // 2], order[len(order) - (count - count // 2) :]])
        mask = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        mask[chosen] = True
        mask = mask.view(flat.shape)
    kept[first:] = list(mask.unbind(-1))
    return kept
