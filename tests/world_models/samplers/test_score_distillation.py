"""Samples by optimisation, where the best place and the direction to it are known."""

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from tests.world_models.samplers import gaussian
from world_models.samplers import ScoreDistillation, edm_levels
from world_models.samplers.score_distillation import consistency_direction

LEVELS = edm_levels(10, sigma_max=10.0, sigma_min=0.02)


def start(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return LEVELS[0] * torch.randn(count, 3, generator=generator, dtype=torch.double)


def sampled(sampler: ScoreDistillation, x: Tensor, seed: int = 1) -> Tensor:
    return sampler(gaussian.denoise, x, LEVELS, torch.Generator().manual_seed(seed))


def test_the_direction_is_the_difference_of_two_denoised_values() -> None:
    """(D(z_t) - D(z_s)) / sigma_s, z_s from z_t by the explicit step of the probability flow."""
    generator = torch.Generator().manual_seed(0)
    y, noise = torch.randn(2, 5, 3, generator=generator, dtype=torch.double)
    low = torch.rand(5, generator=generator, dtype=torch.double) + 0.1
    high = low * 2.5
    found = consistency_direction(gaussian.denoise, y, noise, high, low)
    for row in range(5):
        t, s = high[row : row + 1], low[row : row + 1]
        above = y[row : row + 1] + t * noise[row]
        first = gaussian.denoise(above, t)
        slope = (above - first) / t
        second = gaussian.denoise(above + (s - t) * slope, s)
        assert torch.allclose(found[row], ((first - second) / s)[0], atol=1e-12)


def test_it_ends_where_the_density_is_highest() -> None:
    """For a Gaussian the direction is 0 at mean - sigma_t noise alone, so that the end is as near
    to the mean as the last levels are low; with the other sign it would leave for infinity."""
    x = start(50)
    ends = sampled(ScoreDistillation(updates=600), x)
    away = (ends - gaussian.MEAN).norm(dim=1)
    assert float(away.mean()) < 0.12 and float(away.max()) < 0.3  # what Adam lags behind
    fresh = sampled(ScoreDistillation(consistent=False, updates=600), x)
    assert float((fresh - gaussian.MEAN).norm(dim=1).mean()) < 1.0


def test_a_fixed_noise_makes_the_end_less_random() -> None:
    """With a ratio that is one number nothing but the start is random."""
    x = start(50)
    fixed = ScoreDistillation(updates=600, ratio=(2.0, 2.0))
    ends = torch.stack([sampled(fixed, x, seed) for seed in range(4)])
    fresh = ScoreDistillation(consistent=False, updates=600, ratio=(2.0, 2.0))
    others = torch.stack([sampled(fresh, x, seed) for seed in range(4)])
    assert float(ends.std(0).mean()) < 0.2 * float(others.std(0).mean())
    assert torch.equal(sampled(fixed, x), sampled(fixed, x))


@pytest.mark.parametrize("consistent", [True, False])
def test_evaluations_are_what_it_calls(consistent: bool) -> None:
    calls = 0

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return gaussian.denoise(x, sigma)

    sampler = ScoreDistillation(consistent, updates=7)
    sampler(denoise, start(3), LEVELS, torch.Generator().manual_seed(0))
    assert calls == sampler.evaluations(9)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"3\.0, 2\.0.*smaller"):
        ScoreDistillation(ratio=(3.0, 2.0))
    with pytest.raises(ConfigError, match="denoiser"):
        ScoreDistillation()(
            gaussian.denoise, start(1), LEVELS, torch.Generator(), before=lambda x, n, s: x
        )
