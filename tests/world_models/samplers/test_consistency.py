"""Distillation and fine-tuning of few-step samplers, on Gaussian data where the exact consistency
function is known."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mbrl.errors import ConfigError
from mbrl.networks import MLP
from tests.world_models.samplers import gaussian, mixture
from world_models.samplers import (
    Consistency,
    DistillationConfig,
    Euler,
    consistency_function,
    distil,
    edm_levels,
    finetune_by_mmd,
    mmd_squared,
    radial_kernel,
)
from world_models.samplers.consistency import teacher_step

DEVIATION = 0.5


class Network(nn.Module):
    """x [B, D] and c [B] to [B, D]."""

    def __init__(self, size: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.net = MLP(size + 1, (32, 32), size, generator=generator).double()

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([x, c[:, None]], 1))
        return out


def narrow(x: Tensor, sigma: Tensor) -> Tensor:
    """The denoiser of N(1, 0.5^2) in one dimension."""
    return 1.0 + DEVIATION**2 / (DEVIATION**2 + sigma.square()[:, None]) * (x - 1.0)


def end_of_path(x: Tensor, sigma: Tensor, low: float) -> Tensor:
    """Where its probability flow takes x down to level `low`."""
    factor = ((DEVIATION**2 + low**2) / (DEVIATION**2 + sigma.square())).sqrt()
    return 1.0 + (x - 1.0) * factor[:, None]


def test_a_consistency_function_is_the_identity_at_the_lowest_level() -> None:
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double()
    low = torch.full((5,), 0.01).double()
    assert torch.allclose(consistency_function(Network(2), x, low, 0.01), x)
    sigma = torch.full((5,), 3.0).double()
    found = consistency_function(Network(2), x, sigma, 0.01, deviation=0.7)
    raw = Network(2)(x / math.sqrt(9 + 0.49), sigma.log() / 4)
    skip = 0.49 / (2.99**2 + 0.49)
    assert torch.allclose(found, skip * x + 0.7 * 2.99 / math.sqrt(9 + 0.49) * raw)


CONFIG = DistillationConfig(
    levels=12,
    sigma_max=5.0,
    sigma_min=0.02,
    updates=900,
    batch_size=64,
    learning_rate=3e-3,
    deviation=DEVIATION,
)


def test_distillation_finds_the_end_of_the_path() -> None:
    generator = torch.Generator().manual_seed(0)
    data = 1.0 + DEVIATION * torch.randn(4000, 1, generator=generator, dtype=torch.double)
    student = distil(narrow, Network(1), data, CONFIG, generator)
    for sigma in (0.2, 1.0, 4.0):
        level = torch.full((500,), sigma).double()
        x = data[:500] + sigma * torch.randn(500, 1, generator=generator, dtype=torch.double)
        found = consistency_function(student, x, level, 0.02, DEVIATION)
        exact = end_of_path(x, level, 0.02)
        assert float((found - exact).square().mean().sqrt()) < 0.12
    spread = (DEVIATION**2 + 25.0) ** 0.5
    x = 1.0 + spread * torch.randn(4000, 1, generator=generator, dtype=torch.double)

    def law(x: Tensor, sigma: Tensor) -> Tensor:
        return consistency_function(student, x, sigma, 0.02, DEVIATION)

    for levels in ([5.0, 0.0], [5.0, 0.7, 0.0]):
        found = Consistency()(law, x, levels, generator)
        assert float(found.mean()) == pytest.approx(1.0, abs=0.1)
        assert float(found.std()) == pytest.approx(DEVIATION, abs=0.1)


def test_a_stochastic_teacher_gives_the_mean_of_its_paths() -> None:
    """With all noise fresh and squared error in effect, f is the posterior mean, which has less
    spread than the data: a student of noisy teachers needs more than one step."""
    generator = torch.Generator().manual_seed(0)
    data = 1.0 + DEVIATION * torch.randn(4000, 1, generator=generator, dtype=torch.double)
    settings = {**vars(CONFIG), "teacher": "sde", "eta": 1.0}
    student = distil(narrow, Network(1), data, DistillationConfig(**settings), generator)
    level = torch.full((500,), 2.0).double()
    x = data[:500] + 2.0 * torch.randn(500, 1, generator=generator, dtype=torch.double)
    found = consistency_function(student, x, level, 0.02, DEVIATION)
    assert float((found - narrow(x, level)).abs().mean()) < 0.5 * float(
        (found - end_of_path(x, level, 0.02)).abs().mean()
    )


@pytest.mark.parametrize("substeps", [1, 4])
def test_teachers_follow_the_flow_and_keep_the_law(substeps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 1.0 + (DEVIATION**2 + 1.0) ** 0.5 * torch.randn(
        20_000, 1, generator=generator, dtype=torch.double
    )
    ode = DistillationConfig(substeps=substeps)
    end = teacher_step(narrow, x, 1.0, 0.6, ode, generator)
    exact = 1.0 + (x - 1.0) * ((DEVIATION**2 + 0.36) / (DEVIATION**2 + 1.0)) ** 0.5
    assert float((end - exact).abs().max()) < 0.05 / substeps**2
    sde = DistillationConfig(teacher="sde", eta=0.8, substeps=substeps)
    end = teacher_step(narrow, x, 1.0, 0.6, sde, generator)
    assert float(end.var()) == pytest.approx(DEVIATION**2 + 0.36, rel=0.12 / substeps + 0.03)
    again = teacher_step(narrow, x, 1.0, 0.6, sde, generator)
    assert not torch.allclose(end, again)


def test_consistency_of_a_denoiser_forgets_its_noise() -> None:
    levels = edm_levels(6)
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double()
    generator = torch.Generator().manual_seed(2)
    found = Consistency()(gaussian.denoise, x, levels, generator)
    generator = torch.Generator().manual_seed(2)
    for now, then in itertools.pairwise(levels):
        x = gaussian.denoise(x, torch.full((3,), now).double())
        if then > 0:
            x = x + then * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    assert torch.allclose(found, x)


@pytest.mark.parametrize("kernel", [radial_kernel(0.5, 2.0), "cubic"])
def test_the_discrepancy_is_that_of_a_loop(kernel: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 2, generator=generator).double() for n in (4, 5))

    def similar(a: Tensor, b: Tensor) -> float:
        if kernel == "cubic":
            return (float(a @ b) / 2 + 1) ** 3
        d = float((a - b).square().sum())
        return (math.exp(-d / (2 * 0.25)) + math.exp(-d / 8)) / 2

    own = sum(similar(x[i], x[j]) for i in range(4) for j in range(4) if i != j) / 12
    theirs = sum(similar(y[i], y[j]) for i in range(5) for j in range(5) if i != j) / 20
    both = sum(similar(a, b) for a in x for b in y) / 20
    assert float(mmd_squared(x, y, kernel)) == pytest.approx(own + theirs - 2 * both)


def test_the_discrepancy_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(300):
        x, y = torch.randn(2, 8, 1, generator=generator).double()
        found.append(float(mmd_squared(x, y, radial_kernel(1.0))))
    values = torch.tensor(found)
    assert abs(float(values.mean())) < 4 * float(values.std()) / 300**0.5


def test_fine_tuning_mends_a_chain_of_few_steps() -> None:
    """Five Euler steps on two modes; a correction to the exact denoiser is learned."""
    levels = edm_levels(5, sigma_max=5.0, sigma_min=0.1)
    correction = Network(2)
    with torch.no_grad():
        correction.net.layers[-1].weight.zero_()
        correction.net.layers[-1].bias.zero_()

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        inside = x / (1 + sigma.square()).sqrt()[:, None]
        return mixture.denoise(x, sigma) + correction(inside, sigma.log() / 4)

    generator = torch.Generator().manual_seed(0)
    which = (torch.rand(4000, generator=generator) < 0.3).long()
    data = mixture.CENTRES[which] + mixture.DEVIATION * torch.randn(
        4000, 2, generator=generator, dtype=torch.double
    )
    kernel = radial_kernel(0.2, 0.6, 2.0)

    def discrepancy() -> float:
        draw = torch.Generator().manual_seed(5)
        x = levels[0] * torch.randn(1500, 2, generator=draw, dtype=torch.double)
        with torch.no_grad():
            return float(mmd_squared(Euler()(denoise, x, levels, draw), data[:1500], kernel))

    before = discrepancy()
    finetune_by_mmd(
        denoise,
        list(correction.parameters()),
        Euler(),
        levels,
        data,
        kernel,
        generator,
        updates=150,
        batch_size=96,
        learning_rate=2e-3,
    )
    assert discrepancy() < 0.3 * before


@pytest.mark.parametrize(
    "settings",
    [
        {"substeps": 0},
        {"levels": 1},
        {"sigma_min": 90.0},
        {"eta": 2.0},
        {"ema": 1.0},
        {"teacher": "heun"},
        {"learning_rate": -1.0},
    ],
)
def test_impossible_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DistillationConfig(**settings)


def test_a_discrepancy_needs_two_samples_of_each() -> None:
    with pytest.raises(ConfigError, match="there are 1 and 3 samples"):
        mmd_squared(torch.zeros(1, 2), torch.zeros(3, 2), "cubic")
