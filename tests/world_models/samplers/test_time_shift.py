"""The time-shift sampler against a scalar recursion for data of many independent entries."""

import torch
from torch import Tensor

from tests.world_models.samplers import gaussian
from world_models.samplers import DDIM, TimeShift, edm_levels


def unit_denoise(x: Tensor, sigma: Tensor) -> Tensor:
    """Of independent standard normal entries."""
    return x / (1 + sigma.square())[:, None]


def noise(levels: list[float], entries: int = 20_000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, entries, generator=generator, dtype=torch.double)
    x = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    return levels[0] * x


def test_without_a_window_it_is_ddim() -> None:
    levels = edm_levels(12)
    x = noise(levels, 3)
    for eta in (0.0, 1.0):
        generators = [torch.Generator().manual_seed(3) for _ in range(2)]
        found = TimeShift(window=0, eta=eta)(gaussian.denoise, x, levels, generators[0])
        expected = DDIM(eta)(gaussian.denoise, x, levels, generators[1])
        assert torch.allclose(found, expected, atol=1e-10)


def test_the_level_told_is_the_nearest_in_the_window() -> None:
    levels = [8.0, 4.0, 2.0, 1.0, 0.5, 0.0]
    sampler = TimeShift(window=2, cutoff=0.6, data_variance=1.0)
    unit = noise([1.0], 400)

    def told(variance: float, n: int) -> float:
        found = sampler.implied_level(unit * variance**0.5, n, levels)
        assert found.shape == (2,)
        return float(found[0])

    assert told(1 + 2.0**2, 2) == 2.0  # as due
    assert told(1 + 4.0**2, 2) == 4.0 and told(1 + 1.0**2, 2) == 1.0
    assert told(1 + 8.0**2, 2) == 4.0  # further is outside the window
    assert told(1.0, 3) == 0.5  # never 0
    assert told(1 + 8.0**2, 4) == 0.5  # below the cutoff
    assert told(1 + 4.0**2, 0) == 8.0  # the first call has nothing to go by
    rows = torch.stack([unit[0] * 17**0.5, unit[0] * 2**0.5])
    assert sampler.implied_level(rows, 2, levels).tolist() == [4.0, 1.0]  # each sample its own


def test_samples_follow_the_recursion_of_their_variance() -> None:
    """For x of variance v told s: v' = v (1 + (sigma' - sigma) s / (1 + s^2))^2."""
    levels, window, cutoff = edm_levels(20), 4, 0.1
    x = noise(levels)
    found = TimeShift(window, cutoff)(unit_denoise, x, levels, torch.Generator())
    variance = levels[0] ** 2
    for n in range(20):
        told = levels[n]
        if n > 0 and told > cutoff:
            near = [s for s in levels[max(0, n - 2) : n + 3] if s > 0]
            told = min(near, key=lambda s: abs(variance - 1 - s * s))
        variance *= (1 + (levels[n + 1] - levels[n]) * told / (1 + told**2)) ** 2
    assert torch.allclose(found.var(1, correction=0), torch.full((2,), variance).double())


def test_it_mends_the_variance_that_few_steps_lose() -> None:
    levels = edm_levels(20)
    x = noise(levels)

    def lost(window: int) -> float:
        found = TimeShift(window, cutoff=0.1)(unit_denoise, x, levels, torch.Generator())
        return abs(float(found.var(correction=0)) - 1.0)

    assert lost(2) < 0.6 * lost(0) and lost(4) < lost(2)
