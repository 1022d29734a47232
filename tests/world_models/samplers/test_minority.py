"""Minority guidance on two Gaussians, the rarer of which is known."""

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from tests.world_models.samplers import mixture
from world_models.samplers import (
    DPMSolverPP,
    LevelConfig,
    MinorityGuidance,
    edm_levels,
    fit_levels,
    minority_score,
)

LEVELS = edm_levels(20, sigma_max=10.0, sigma_min=0.05)


def data(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    which = (torch.rand(count, generator=generator) < 0.3).long()
    noise = torch.randn(count, 2, generator=generator, dtype=torch.double)
    return mixture.CENTRES[which] + mixture.DEVIATION * noise


def test_the_score_is_the_mean_distance_to_the_denoised_sample() -> None:
    x = data(3)
    found = minority_score(mixture.denoise, x, 0.9, torch.Generator().manual_seed(1), repeats=2)
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(3).double()
    for _ in range(2):
        noisy = x + 0.9 * torch.randn(3, 2, generator=generator, dtype=torch.double)
        for row in range(3):
            back = mixture.denoise(noisy[row : row + 1], torch.tensor([0.9]).double())[0]
            total[row] += float(torch.dist(x[row], back)) / 2
    assert torch.allclose(found, total)


def test_the_rarer_mode_has_the_higher_score() -> None:
    x = data(2000)
    score = minority_score(mixture.denoise, x, 1.5, torch.Generator().manual_seed(1))
    rare = mixture.on_the_right(x) > 0
    assert float(score[rare].mean()) > 1.5 * float(score[~rare].mean())


@pytest.fixture(scope="module")
def shares() -> list[float]:
    """Share of the rarer mode without guidance, and at levels 0, 1 and 2 of three."""
    x, generator = data(3000), torch.Generator().manual_seed(2)
    score = minority_score(mixture.denoise, x, 1.5, generator, repeats=16)
    config = LevelConfig(levels=3, hidden=(64, 64), updates=600, learning_rate=3e-3)
    classifier = fit_levels(x, score, config, generator)
    noise = LEVELS[0] * torch.randn(800, 2, generator=generator, dtype=torch.double)
    laws = [mixture.denoise] + [
        MinorityGuidance(classifier, level).attach(mixture.denoise) for level in range(3)
    ]
    found = [DPMSolverPP()(law, noise, LEVELS, generator) for law in laws]
    return [float(mixture.on_the_right(f).mean()) for f in found]


def test_samples_become_rarer_with_the_level(shares: list[float]) -> None:
    """A third of the data is of level 2; the rarer mode, 0.3 of the data, nearly fills it."""
    assert shares[0] == pytest.approx(0.3, abs=0.06)
    assert shares[1] < 0.1 and shares[3] > 0.7
    assert shares[1] <= shares[2] < shares[3]


def test_guidance_by_an_exact_classifier_samples_its_class() -> None:
    """With p(right | x) in closed form at every noise, the denoiser becomes that of the right."""

    class Exact:
        levels = 2

        def logits(self, x: Tensor, sigma: Tensor) -> Tensor:
            variance = (mixture.DEVIATION**2 + sigma.square())[:, None]
            away = (x[:, None] - mixture.CENTRES).square().sum(-1)
            return mixture.SHARES.log() - 0.5 * away / variance

    guided = MinorityGuidance(Exact(), 1).attach(mixture.denoise)  # type: ignore[arg-type]
    x = 3.0 * torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).double()
    sigma = torch.tensor([0.05, 0.3, 1.0, 2.0, 5.0, 9.0]).double()
    pulled = (mixture.DEVIATION**2 / (mixture.DEVIATION**2 + sigma.square()))[:, None]
    expected = mixture.CENTRES[1] * (1 - pulled) + pulled * x
    assert torch.allclose(guided(x, sigma), expected, atol=1e-8)
    half = MinorityGuidance(Exact(), 1, weight=0.0)  # type: ignore[arg-type]
    assert torch.allclose(half.attach(mixture.denoise)(x, sigma), mixture.denoise(x, sigma))


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="levels is 1"):
        LevelConfig(levels=1)
    with pytest.raises(ConfigError, match="repeats is 0"):
        minority_score(mixture.denoise, data(2), 1.0, torch.Generator(), repeats=0)
    classifier = fit_levels(data(20), data(20)[:, 0], LevelConfig(updates=1), torch.Generator())
    with pytest.raises(ConfigError, match="level is 10"):
        MinorityGuidance(classifier, 10)
