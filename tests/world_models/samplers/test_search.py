"""Tree search and budget forcing on two Gaussians whose tilted law is known."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from tests.world_models.samplers import gaussian, mixture
from world_models.samplers import (
    DDIM,
    BudgetForcing,
    DiffusionTree,
    FeynmanKac,
    Heun,
    denoiser_of_flow,
    edm_levels,
)
from world_models.samplers.tree import Node

LEVELS = edm_levels(12, sigma_max=10.0, sigma_min=0.05)


def noise(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return LEVELS[0] * torch.randn(count, 2, generator=generator, dtype=torch.double)


SHORT = [3.0, 0.8, 0.0]


def share_of_the_rarer(tilt: float, iterations: int) -> float:
    """With two steps, mean over four trees."""
    tree, shares = DiffusionTree(mixture.on_the_right, tilt, iterations, power=0.5), []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        shares.append(mixture.on_the_right(tree(mixture.denoise, noise(500), SHORT, generator)))
    return float(torch.cat(shares).mean())


def exact_share(tilt: float) -> float:
    """0.3 e^tilt / (0.7 + 0.3 e^tilt), with the shares of the sampler's own law."""
    generator = torch.Generator().manual_seed(9)
    x = SHORT[0] * torch.randn(100_000, 2, generator=generator, dtype=torch.double)
    rare = float(mixture.on_the_right(DDIM(1.0)(mixture.denoise, x, SHORT, generator)).mean())
    return rare * math.exp(tilt) / (1 - rare + rare * math.exp(tilt))


@pytest.mark.parametrize("tilt", [pytest.param(1.0, marks=pytest.mark.long), 2.5])
def test_a_tree_comes_to_sample_the_tilted_law(tilt: float) -> None:
    """Values of the few leaves below a node that looked bad stay too low, so trees are flat at
    first."""
    exact = exact_share(tilt)
    errors = [exact - share_of_the_rarer(tilt, iterations) for iterations in (60, 1000)]
    assert 0.0 < errors[1] < 0.7 * errors[0] and errors[1] < 0.08


def test_the_samples_of_a_tree_lie_on_the_modes() -> None:
    tree = DiffusionTree(mixture.on_the_right, 1.0, iterations=60)
    found = tree(mixture.denoise, noise(50), LEVELS, torch.Generator().manual_seed(0))
    away = torch.cdist(found, mixture.CENTRES).min(1).values
    assert float(away.max()) < 6 * mixture.DEVIATION


def test_a_searching_tree_finds_the_reward() -> None:
    def height(x: Tensor) -> Tensor:
        return x[:, 1]

    generator = torch.Generator().manual_seed(0)
    plain = DDIM(1.0)(mixture.denoise, noise(200), LEVELS, generator)
    for tree in (
        DiffusionTree(height, iterations=200, search=True),
        DiffusionTree(height, 20.0, iterations=200, search=True, exploration=0.3),
    ):
        found = tree(mixture.denoise, noise(20), LEVELS, generator)
        assert float(height(found).mean()) > float(height(plain).quantile(0.95))
        assert (height(found).diff() <= 0).all()  # best first
        assert len(found.unique(dim=0)) == 20
    few = DiffusionTree(height, iterations=2, search=True)(
        mixture.denoise, noise(5), LEVELS, generator
    )
    assert len(few) == 5 and torch.equal(few[0], few[len(few.unique(dim=0))])


def test_a_tree_ends_with_its_budget() -> None:
    calls = 0

    def counted(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal calls
        calls += len(x)
        return mixture.denoise(x, sigma)

    steps = len(LEVELS) - 1
    tree = DiffusionTree(mixture.on_the_right, iterations=10_000, budget=100)
    tree(counted, noise(5), LEVELS, torch.Generator().manual_seed(0))
    assert 100 <= calls <= tree.evaluations(steps) == 100 + steps - 1
    assert DiffusionTree(mixture.on_the_right, iterations=3).evaluations(steps) == 3 * steps


def test_values_are_backed_up_softly() -> None:
    tree = DiffusionTree(mixture.on_the_right, tilt=2.0)
    node = Node(None, children=[Node(None, value=v) for v in (0.0, 0.5, 2.0)])
    expected = math.log((1 + math.exp(1.0) + math.exp(4.0)) / 3) / 2.0
    assert tree._backed_up(node) == pytest.approx(expected)
    generator = torch.Generator().manual_seed(0)
    drawn = [node.children.index(tree._drawn(node, generator)) for _ in range(2000)]
    total = 1 + math.exp(1.0) + math.exp(4.0)
    for index, weight in enumerate((1.0, math.exp(1.0), math.exp(4.0))):
        assert drawn.count(index) / 2000 == pytest.approx(weight / total, abs=0.03)


def test_a_flow_becomes_its_denoiser() -> None:
    """Of Gaussian data: y_t = (1 - t) n + t x_0 has velocity E[x_0 - n | y], which is linear."""

    def velocity(y: Tensor, time: Tensor) -> Tensor:
        t = float(time[0])
        covariance = gaussian.COVARIANCE
        seen = t**2 * covariance + (1 - t) ** 2 * torch.eye(3).double()
        away = torch.linalg.solve(seen, (y - t * gaussian.MEAN).T).T
        return gaussian.MEAN + away @ (t * covariance) - (1 - t) * away

    x = 3.0 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    law = denoiser_of_flow(velocity)
    for sigma in (0.05, 1.0, 7.0):
        level = torch.full((5,), sigma).double()
        assert torch.allclose(law(x, level), gaussian.denoise(x, level), atol=1e-9)
    end = Heun()(law, x, [3.0, 1.0, 0.2, 0.0], torch.Generator())
    assert torch.isfinite(end).all()


def test_one_try_a_step_is_ddim() -> None:
    x = noise(8)
    found = BudgetForcing(mixture.on_the_right, quota=1)(
        mixture.denoise, x, LEVELS, torch.Generator().manual_seed(4)
    )
    expected = DDIM(1.0)(mixture.denoise, x, LEVELS, torch.Generator().manual_seed(4))
    assert torch.allclose(found, expected, atol=1e-10)


def test_tries_that_are_saved_roll_over_and_no_more() -> None:
    total = 0

    def counted(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal total
        total += len(x)
        return mixture.denoise(x, sigma)

    steps, quota = len(LEVELS) - 1, 3

    def tries(reward: object) -> int:
        nonlocal total
        total = 0
        sampler = BudgetForcing(reward, quota)  # type: ignore[arg-type]
        sampler(counted, noise(6), LEVELS, torch.Generator().manual_seed(0))
        assert total <= 6 * sampler.evaluations(steps)
        return total

    assert tries(lambda x: x[:, 0] * 0) == 6 * (1 + quota * (steps - 1))  # never better: all
    # Better at once in the first step alone: what it saved is tried in the second.
    once = iter([0.0, 1.0] + [0.0] * 1000)
    total = 0
    sampler = BudgetForcing(lambda x: x[:, 0] * 0 + next(once), quota)
    sampler(counted, noise(1), LEVELS, torch.Generator().manual_seed(0))
    assert total == 1 + quota * (steps - 1)
    growing = iter(range(10_000))
    assert tries(lambda x: x[:, 0] * 0 + next(growing)) == 6 * steps  # always better: one a step


def test_a_forbidden_end_is_still_a_sample() -> None:
    """Where every reward is minus infinity the first try is taken, as by DDIM."""
    forbidden = BudgetForcing(lambda x: torch.full_like(x[:, 0], -math.inf), quota=3)
    found = forbidden(mixture.denoise, noise(50), LEVELS, torch.Generator().manual_seed(0))
    away = torch.cdist(found, mixture.CENTRES).min(1).values
    assert float(away.max()) < 6 * mixture.DEVIATION


@pytest.mark.parametrize("kind", [BudgetForcing, DiffusionTree, FeynmanKac])
def test_a_reward_that_is_nan_for_some_is_refused(kind: Any) -> None:
    """Nothing is better or worse than NaN: a tree's last child was taken at every node, and the
    last of all particles."""

    def reward(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0.0, x[:, 0], torch.nan)

    tilt = {} if kind is BudgetForcing else {"tilt": 1.0}
    with pytest.raises(ConfigError, match="reward is NaN"):
        kind(reward=reward, **tilt)(mixture.denoise, noise(20), LEVELS, torch.Generator())


@pytest.mark.parametrize(
    "kind",
    [DiffusionTree, partial(DiffusionTree, search=True), FeynmanKac],
    ids=["tree", "search", "particles"],
)
def test_a_reward_that_forbids_everything_is_refused(kind: Any) -> None:
    """Weights were NaN, and all samples copies of the last one."""
    sampler = kind(reward=lambda x: torch.full_like(x[:, 0], -math.inf) + 0 * x[:, 0], tilt=1.0)
    with pytest.raises(ConfigError, match="reward is -inf for all"):
        sampler(mixture.denoise, noise(20), LEVELS, torch.Generator())


@pytest.mark.parametrize(("best", "tilt"), [(math.inf, 1.0), (-math.inf, -1.0), (1e308, 10.0)])
def test_particles_of_infinite_weight_are_refused(best: float, tilt: float) -> None:
    """Weights were NaN, and all samples copies of the last particle."""
    sampler = FeynmanKac(reward=lambda x: torch.where(x[:, 0] > 0, best, 0 * x[:, 0]), tilt=tilt)
    with pytest.raises(ConfigError, match="times the reward is inf"):
        sampler(mixture.denoise, noise(20), LEVELS, torch.Generator())


def test_a_forbidden_particle_needs_no_slope() -> None:
    """log 0 is -inf, as asked for, with a slope of NaN: the particle went there, and was refused
    as one whose reward is NaN."""
    sampler = FeynmanKac(reward=lambda x: (x[:, 0] * (x[:, 0] > 0)).log(), tilt=1.0)
    found = sampler(mixture.denoise, noise(50), LEVELS, torch.Generator().manual_seed(0))
    assert bool((found[:, 0] > 0).all()) and len(found.unique(dim=0)) > 25


def test_a_search_gives_no_forbidden_sample() -> None:
    def reward(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0.0, x[:, 0], -math.inf)

    found = DiffusionTree(reward, iterations=12, search=True)(
        mixture.denoise, noise(20), LEVELS, torch.Generator().manual_seed(0)
    )
    assert bool((found[:, 0] > 0).all()) and 1 < len(found.unique(dim=0)) < 12


def test_forcing_earns_more_than_the_best_of_as_many() -> None:
    """At equal evaluations: `quota` tries a step against the best of `quota` whole samples."""

    def reward(x: Tensor) -> Tensor:
        return -(x - torch.tensor([1.3, 0.9]).double()).square().sum(1)

    quota, count = 4, 200
    generator = torch.Generator().manual_seed(0)
    forced = BudgetForcing(reward, quota)(mixture.denoise, noise(count), LEVELS, generator)
    several = DDIM(1.0)(mixture.denoise, noise(quota * count, 1), LEVELS, generator)
    best = reward(several).view(quota, count).max(0).values
    assert float(reward(forced).mean()) > float(best.mean())


@pytest.mark.parametrize(
    "build",
    [
        lambda: BudgetForcing(mixture.on_the_right, quota=0),
        lambda: BudgetForcing(mixture.on_the_right, eta=0.0),
        lambda: DiffusionTree(mixture.on_the_right, tilt=0.0),
        lambda: DiffusionTree(mixture.on_the_right, power=1.0),
        lambda: DiffusionTree(mixture.on_the_right, iterations=0),
    ],
)
def test_impossible_settings(build: object) -> None:
    with pytest.raises(ConfigError):
        build()  # type: ignore[operator]
    tree = DiffusionTree(mixture.on_the_right)
    with pytest.raises(ConfigError, match="reward alone"):
        tree(mixture.denoise, noise(2), LEVELS, torch.Generator(), before=lambda x, n, s: x)
