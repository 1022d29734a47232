"""The search for schedules, on a mixture of Gaussians whose flow a fine integration gives."""

import math

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from world_models.samplers import (
    Choice,
    Heun,
    Schedule,
    SearchConfig,
    edm_levels,
    search,
    uniform_plan,
)
from world_models.samplers.plan import encoded, fit_predictor, known_methods, mutated

CENTRES, DEVIATION = torch.tensor([[-1.0, 0.5], [1.2, -0.3], [0.3, 1.5]]).double(), 0.15


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    """Of three equal Gaussians: each centre's posterior mean, by its share of x."""
    variance = (DEVIATION**2 + sigma.square())[:, None]
    away = (x[:, None] - CENTRES).square().sum(-1)
    share = torch.softmax(-0.5 * away / variance, 1)
    pulled = DEVIATION**2 / variance
    return share @ CENTRES * (1 - pulled) + pulled * x


def noise(seed: int, count: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 20.0 * torch.randn(count, 2, generator=generator, dtype=torch.double)


def error(schedule: Schedule, x: Tensor) -> float:
    exact = Heun()(denoise, x, edm_levels(400, sigma_max=20.0, sigma_min=0.01), torch.Generator())
    found = schedule.plan(denoise, x, schedule.sigmas, torch.Generator())
    return float((found - exact).square().sum(1).mean())


@pytest.fixture(scope="module")
def found() -> tuple[float, float, float, float]:
    """Errors of the schedule found with 5 evaluations and of the best plain method, on the noise
    of the search and on other noise."""
    x, y = noise(0), noise(1, 256)
    exact = Heun()(denoise, x, edm_levels(400, sigma_max=20.0, sigma_min=0.01), torch.Generator())

    def measure(schedule: Schedule) -> float:
        out = schedule.plan(denoise, x, schedule.sigmas, torch.Generator())
        return float((out - exact).square().sum(1).mean())

    generator = torch.Generator().manual_seed(0)
    config = SearchConfig(rounds=3, offspring=150, fit_steps=100)
    result = search(measure, 5, generator, config, sigma_max=20.0, sigma_min=0.01)
    plain = [s for s, _ in result.tried[: len(known_methods())]]
    best = min(plain, key=lambda s: error(s, x))
    assert result.value == min(v for _, v in result.tried)
    return result.value, error(best, x), error(result.schedule, y), error(best, y)


def test_the_schedule_found_is_no_worse_than_any_plain_method(
    found: tuple[float, float, float, float],
) -> None:
    assert found[0] <= found[1]


def test_it_is_better_on_other_noise_too(found: tuple[float, float, float, float]) -> None:
    assert found[2] < 0.8 * found[3]


def test_a_mutated_schedule_is_a_schedule() -> None:
    levels = tuple(edm_levels(6))
    schedule = Schedule(uniform_plan(6, Choice()), levels)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        changed = mutated(schedule, SearchConfig(mutation=0.5, jitter=1.0), generator)
        assert changed.sigmas[0] == levels[0] and changed.sigmas[-2:] == levels[-2:]
        assert all(a > b for a, b in zip(changed.sigmas, changed.sigmas[1:], strict=False))
        assert len(changed.sigmas) == 7
    assert changed != schedule


def test_the_predictor_learns_an_order_from_the_schedule() -> None:
    """A measure that only the second step's order decides."""
    generator = torch.Generator().manual_seed(0)
    start = Schedule(uniform_plan(4, Choice()), tuple(edm_levels(4)))
    config = SearchConfig(mutation=1.0, fit_steps=300)
    schedules = [mutated(start, config, generator) for _ in range(120)]
    tried = [(s, float(s.plan.choices[1].order)) for s in schedules]
    predictor = fit_predictor(tried[:80], config, generator)
    guess = predictor(torch.stack([encoded(s) for s, _ in tried[80:]]))[:, 0]
    value = torch.tensor([v for _, v in tried[80:]])
    pairs = value[:, None] > value[None, :]
    right = (guess[:, None] > guess[None, :])[pairs].float().mean()
    assert float(right) > 0.9


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="population is 0"):
        SearchConfig(population=0)


def test_schedules_that_diverge_are_the_worst() -> None:
    """A measure is NaN where samples are infinite: it is never the best, nor bred from."""

    def measure(schedule: Schedule) -> float:
        orders = [choice.order for choice in schedule.plan.choices]
        return math.nan if orders[0] == 1 or orders[-1] == 4 else float(sum(orders))

    config = SearchConfig(rounds=2, population=12, offspring=20, parents=2, fit_steps=5)
    found = search(measure, 3, torch.Generator().manual_seed(0), config)
    finite = [value for _, value in found.tried if math.isfinite(value)]
    assert len(finite) < len(found.tried) and found.value == min(finite)
