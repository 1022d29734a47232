"""Chains of denoising steps with their densities: the sampler DDIM with fresh noise, whose every
step is a draw from a normal distribution around a mean that the denoiser gives."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from world_models.samplers.base import Denoiser, at, check_levels
from world_models.samplers.one_step import fresh_noise


class Fixed(NamedTuple):
    """Entries of samples that are given, such as the state that a window begins in: `mask` [...],
    True where they are, and `values` [B, ...]."""

    mask: Tensor
    values: Tensor

    def rows(self, index: Tensor) -> "Fixed":
        return Fixed(self.mask, self.values[index])


def require_fixed(fixed: Fixed, count: int, shape: tuple[int, ...]) -> None:
    """Raise `ConfigError` unless these are given entries of `count` samples of `shape`, which
    leave some to be drawn."""
    mask, values = fixed
    if mask.dtype != torch.bool or mask.shape != shape or values.shape != (count, *shape):
        raise ConfigError(
            f"fixed entries have a mask of {mask.dtype} {tuple(mask.shape)} and values "
            f"{tuple(values.shape)}; give torch.bool {shape}, True where an entry is given, and "
            f"{(count, *shape)}"
        )
    if bool(mask.all()):
        raise ConfigError("fixed entries are all there are; leave some that a chain draws")


class Moves(NamedTuple):
    """Denoising steps: from `x` at level `now` to `reached` at level `then`, whose log-density was
    `log_prob` [M] when they were drawn (the mean over entries that are not fixed), and their
    `advantage` [M]. `x`, `reached` [M, ...]; `now`, `then` [M]; `free` [...]: 1 where an entry is
    not fixed, else 0."""

    x: Tensor
    reached: Tensor
    now: Tensor
    then: Tensor
    log_prob: Tensor
    advantage: Tensor
    free: Tensor

    def select(self, rows: Tensor) -> "Moves":
        return self.map(lambda value: value[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> "Moves":
        """All but `free` changed by a function of [M, ...]."""
        changed = {n: change(v) for n, v in self._asdict().items() if n != "free"}
        return self._replace(**changed)


def like(level: Tensor, x: Tensor) -> Tensor:
    """Numbers [M] in the shape in which they multiply x [M, ...]."""
    return level.view(-1, *[1] * (x.ndim - 1))


def distribution(denoise: Denoiser, moves: Moves, eta: float) -> tuple[Tensor, Tensor]:
    """Mean [M, ...] and deviation [M] of the steps under `denoise`, with gradients in it: those of
    DDIM (arXiv 2010.02502, eq. 12 and 16) in the scale of x."""
    fresh = eta * moves.then * (1.0 - (moves.then / moves.now).square()).sqrt()
    keep = like((moves.then.square() - fresh.square()).sqrt() / moves.now, moves.x)
    return torch.lerp(denoise(moves.x, moves.now), moves.x, keep), fresh


def density(reached: Tensor, mean: Tensor, spread: Tensor, free: Tensor) -> Tensor:
    """[M]: the mean over free entries of the normal log-density of `reached` [M, ...] around
    `mean`, with deviations `spread` [M]. A mean, not a sum, so that ratios of two denoisers do not
    grow with the size of a sample; ranges of clips are meant for it (1e-3 and less)."""
    s = like(spread, reached)
    each = -0.5 * ((reached - mean) / s).square() - s.log() - 0.5 * math.log(2.0 * math.pi)
    return mean_of(each, free)


def divergence(mean: Tensor, other: Tensor, spread: Tensor, free: Tensor) -> Tensor:
    """[M]: the mean over free entries of the KL divergence between two steps of one deviation."""
    return mean_of(0.5 * ((mean - other) / like(spread, mean)).square(), free)


def mean_of(each: Tensor, free: Tensor) -> Tensor:
    return (each * free).flatten(1).sum(1) / free.sum()


def log_prob(denoise: Denoiser, moves: Moves, eta: float) -> Tensor:
    """Log-densities [M] of the moves under `denoise`, with gradients in it."""
    mean, spread = distribution(denoise, moves, eta)
    return density(moves.reached, mean, spread, moves.free)


def sample(
    denoise: Denoiser,
    noise: Tensor,
    fresh: Tensor,
    sigmas: Sequence[float],
    eta: float,
    fixed: Fixed | None = None,
) -> tuple[Tensor, list[Moves]]:
    """Samples [B, ...] from standard normal `noise` [B, ...] and the draws of every step, `fresh`
    [T, B, ...]; and the moves [B] of every step that drew something (all but the last, to level 0),
    without advantages. Fixed entries have their values at every level. Raises `ConfigError` for
    levels that do not fall."""
    check_levels(sigmas)
    x = pinned(sigmas[0] * noise, fixed)
    steps: list[Moves] = []
    for step, (now, then) in enumerate(pairwise(sigmas)):
        x, made = move(denoise, x, fresh[step], now, then, eta, fixed)
        if made is not None:
            steps.append(made)
    return x, steps


def move(
    denoise: Denoiser,
    x: Tensor,
    fresh: Tensor,
    now: float,
    then: float,
    eta: float,
    fixed: Fixed | None,
) -> tuple[Tensor, Moves | None]:
    """Where a step leads, and the step itself; None of one that draws nothing."""
    spread = fresh_noise(now, then, eta)
    mean = torch.lerp(denoise(x, at(x, now)), x, math.sqrt(then**2 - spread**2) / now)
    reached = pinned(mean + spread * fresh, fixed)
    if spread == 0.0:
        return reached, None
    free = torch.ones_like(x[0]) if fixed is None else (~fixed.mask).to(x)
    own = density(reached, mean, at(x, spread), free)
    made = Moves(x, reached, at(x, now), at(x, then), own, torch.zeros_like(own), free)
    return reached, made


def pinned(x: Tensor, fixed: Fixed | None) -> Tensor:
    """`x` with its fixed entries at their values."""
    return x if fixed is None else torch.where(fixed.mask, fixed.values, x)


def joined(parts: Sequence[Moves]) -> Moves:
    """Moves of several steps as one."""
    names = [n for n in Moves._fields if n != "free"]
    return parts[0]._replace(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names})
