"""Feynman-Kac correctors against products, powers and tilts of Gaussians in closed form."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mbrl.errors import ConfigError
from tests.world_models.samplers import gaussian
from world_models.samplers import FeynmanKac, edm_levels, systematic

PRECISION = torch.linalg.inv(gaussian.COVARIANCE)
OTHER_MEAN, OTHER_VARIANCE, WIDE = torch.tensor([0.0, 0.5, 1.5]).double(), 0.5, 4.0
TILTED, PULL = 1.0, 4.0  # r(x) = -PULL / 2 (x_0 - TILTED)^2
LEVELS = edm_levels(150, sigma_max=4.0, sigma_min=0.02)


def other(x: Tensor, sigma: Tensor) -> Tensor:
    share = OTHER_VARIANCE / (OTHER_VARIANCE + sigma.square()[:, None])
    return OTHER_MEAN + share * (x - OTHER_MEAN)


def wide(x: Tensor, sigma: Tensor) -> Tensor:
    return OTHER_MEAN + WIDE / (WIDE + sigma.square()[:, None]) * (x - OTHER_MEAN)


def reward(x: Tensor) -> Tensor:
    return -0.5 * PULL * (x[:, 0] - TILTED).square()


def gauss(precision: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    covariance = torch.linalg.inv(precision)
    return covariance @ linear, covariance


def law(name: str, sigma: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the law asked for, of data noised to `sigma` (tilt aside)."""
    eye = torch.eye(3).double()
    own = torch.linalg.inv(gaussian.COVARIANCE + sigma**2 * eye)
    if name == "data":
        return gauss(own, own @ gaussian.MEAN)
    if name == "annealed":
        return gauss(2 * own, 2 * own @ gaussian.MEAN)
    if name == "flattened":
        return gauss(0.7 * own, 0.7 * own @ gaussian.MEAN)
    if name == "tilted":
        pull = torch.zeros(3, 3).double()
        pull[0, 0] = 2 * PULL / (1 + sigma**2)  # the tilt of 2, as it grows
        return gauss(own + pull, own @ gaussian.MEAN + pull[0] * TILTED)
    a, b, variance = (1.0, 1.0, OTHER_VARIANCE) if name == "product" else (1.3, -0.3, WIDE)
    theirs = eye / (variance + sigma**2)
    return gauss(a * own + b * theirs, a * own @ gaussian.MEAN + b * theirs @ OTHER_MEAN)


SETTINGS = {
    "annealed": FeynmanKac(exponent=2.0),
    "flattened": FeynmanKac(exponent=0.7),
    "product": FeynmanKac(experts=((other, 1.0),)),
    "guided": FeynmanKac(exponent=1.3, experts=((wide, -0.3),)),
    "tilted": FeynmanKac(reward=reward, tilt=2.0),
}
RUNS, PARTICLES = 6, 1500


def moments(name: str, corrected: bool) -> Tensor:
    """Weighted first and second moments [RUNS, 3 + 9], each run from its own noise. Particles
    begin at the exact law of the first level, so that the process alone is looked at; of a tilted
    law, at the data's."""
    sampler = dataclasses.replace(SETTINGS[name], corrected=corrected)
    mean, covariance = law("data" if name == "tilted" else name, LEVELS[0])
    root = torch.linalg.cholesky(covariance)
    rows = []
    for run in range(RUNS):
        generator = torch.Generator().manual_seed(run)
        z = torch.randn(PARTICLES, 3, generator=generator, dtype=torch.double)
        x = (mean + z @ root.T) * sampler.total**0.5  # which the sampler divides by
        found = sampler.particles(gaussian.denoise, x, LEVELS, generator)
        w = found.log_weights.exp()
        assert float(w.sum()) == pytest.approx(1.0)
        first = (w[:, None] * found.x).sum(0)
        rows.append(torch.cat([first, ((w[:, None] * found.x).T @ found.x).flatten()]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", SETTINGS)
def test_weighted_moments_are_those_of_the_law(name: str) -> None:
    mean, covariance = law(name)
    exact = torch.cat([mean, (covariance + torch.outer(mean, mean)).flatten()])
    found = moments(name, corrected=True)
    error = found.std(0) / RUNS**0.5
    assert ((found.mean(0) - exact).abs() < 4.5 * error + 0.012).all()


@pytest.mark.parametrize("name", ["annealed", "product", "tilted"])
def test_without_weights_the_guided_process_is_biased(name: str) -> None:
    mean, covariance = law(name)
    exact = torch.cat([mean, (covariance + torch.outer(mean, mean)).flatten()])
    found = moments(name, corrected=False)
    error = found.std(0) / RUNS**0.5
    away = ((found.mean(0) - exact).abs() / error).max()
    assert away > 8


def test_one_law_with_exponent_1_needs_no_weights() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).double()
    found = FeynmanKac().particles(gaussian.denoise, x, LEVELS, torch.Generator())
    assert torch.allclose(found.log_weights.exp(), torch.full((50,), 0.02).double())
    assert found.effective == pytest.approx(50)


def test_particles_begin_at_the_law_that_noise_has_under_all_exponents() -> None:
    """N(0, sigma^2)^b is N(0, sigma^2 / b): here b is 2.5."""
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
    seen: list[Tensor] = []

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(x)
        return gaussian.denoise(x, sigma)

    sampler = FeynmanKac(exponent=1.5, experts=((other, 1.0),))
    sampler.particles(denoise, x, LEVELS, torch.Generator())
    assert torch.allclose(seen[0], x / 2.5**0.5) and len(seen) == 150


@pytest.mark.parametrize("high", [1.0, 2.0])
def test_a_tilt_is_exact_from_a_low_first_level_too(high: float) -> None:
    """Data N(0, 1), r = -(x - 1)^2 / 2 with tilt 4: N(0.8, 0.2). At a first level of 1 the tilt is
    half of what it comes to."""

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1.0 + sigma.square()[:, None])

    sampler = FeynmanKac(reward=lambda x: -0.5 * (x[:, 0] - 1.0).square(), tilt=4.0)
    levels, means, variances = edm_levels(100, sigma_max=high, sigma_min=0.01), [], []
    for run in range(8):
        generator = torch.Generator().manual_seed(run)
        x = (1 + high**2) ** 0.5 * torch.randn(4000, 1, generator=generator).double()
        found = sampler.particles(denoise, x, levels, generator)
        w, x = found.log_weights.exp(), found.x[:, 0]
        means.append(float(w @ x))
        variances.append(float(w @ (x - means[-1]).square()))
    assert np.mean(means) == pytest.approx(0.8, abs=3 * stats.sem(means) + 0.006)
    assert np.mean(variances) == pytest.approx(0.2, abs=3 * stats.sem(variances) + 0.006)


@torch.no_grad()
def test_without_a_tilt_few_steps_keep_the_deviation() -> None:
    """Twenty steps on unit Gaussians; the plain Euler-Maruyama step leaves 1.22, DDPM's 0.82."""

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1.0 + sigma.square()[:, None])

    levels = edm_levels(20, sigma_max=20.0)
    generator = torch.Generator().manual_seed(0)
    x = levels[0] * torch.randn(20_000, 1, generator=generator, dtype=torch.double)
    found = FeynmanKac().particles(denoise, x, levels, generator)
    assert float(found.x.std()) == pytest.approx(1.0, abs=0.02)


def test_moves_before_a_step_are_refused() -> None:
    x, generator = torch.zeros(4, 3).double(), torch.Generator()
    with pytest.raises(ConfigError, match="as a reward"):
        FeynmanKac()(gaussian.denoise, x, LEVELS, generator, before=lambda x, n, s: x)


def test_systematic_resampling_keeps_to_the_weights() -> None:
    weights = torch.tensor([0.5, 0.26, 0.2, 0.04, 0.0]).double()
    total: Counter[int] = Counter()
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        drawn = Counter(systematic(weights.log(), generator).tolist())
        assert all(abs(drawn[i] - 5 * float(w)) < 1 for i, w in enumerate(weights))
        total += drawn
    for i, w in enumerate(weights.tolist()):
        assert total[i] / 2000 == pytest.approx(w, abs=0.03)


def test_samples_are_drawn_from_the_particles() -> None:
    x = 4.0 * torch.randn(300, 3, generator=torch.Generator().manual_seed(0)).double()
    sampler = SETTINGS["product"]
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    found = sampler(gaussian.denoise, x, LEVELS, generators[0])
    particles = sampler.particles(gaussian.denoise, x, LEVELS, generators[1])
    chosen = systematic(particles.log_weights, generators[1])
    assert torch.equal(found, particles.x[chosen])
    assert sampler.evaluations(10) == 20


@pytest.mark.parametrize(
    "settings",
    [
        {"exponent": 0.0},
        {"experts": ((other, -1.0),)},
        {"noise": 0.0},
        {"resample_below": 1.5},
        {"tilt": 1.0},
        {"reward": reward},
    ],
)
def test_impossible_settings(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FeynmanKac(**settings)  # type: ignore[arg-type]
