"""Chains of denoising steps and their densities, against torch.distributions and closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from algorithms.diffusion_rl import chains
from algorithms.diffusion_rl.chains import Fixed
from mbrl.errors import ConfigError
from tests.algorithms.diffusion_rl.linear import SIGMAS, Constant, moments, normal
from world_models.samplers import DDIM
from world_models.trajectory_diffusion import precondition


def denoiser(network: Constant) -> Any:
    return lambda x, sigma: precondition(network, x, sigma)


def drawn(network: Constant, count: int, eta: float, size: int = 1, **more: Any) -> Any:
    noise = normal(count, size)
    fresh = normal(len(SIGMAS) - 1, count, size, seed=1)
    return chains.sample(denoiser(network), noise, fresh, SIGMAS, eta, **more)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_samples_have_the_moments_of_the_recursion(eta: float) -> None:
    with torch.no_grad():
        x, _ = drawn(Constant(value=0.7), 400_000, eta)
    mean, variance = moments(0.7, eta)
    assert float(x.mean()) == pytest.approx(mean, abs=4 * (variance / len(x)) ** 0.5)
    assert float(x.var()) == pytest.approx(variance, rel=4 * (2 / len(x)) ** 0.5)


def test_without_fresh_noise_it_is_the_sampler_ddim() -> None:
    noise, network = normal(5, 3), Constant(3, 0.4)
    x, steps = chains.sample(denoiser(network), noise, normal(6, 5, 3), SIGMAS, 0.0)
    right = DDIM()(denoiser(network), SIGMAS[0] * noise, SIGMAS, torch.Generator())
    torch.testing.assert_close(x, right)
    assert steps == []


def test_densities_are_those_of_normal_distributions() -> None:
    """Recorded while sampling and computed again, means over three of four entries."""
    mask = torch.tensor([False, True, False, False])
    fixed = Fixed(mask, normal(7, 4, seed=3))
    x, steps = drawn(Constant(4, 0.2), 7, 0.7, 4, fixed=fixed)
    assert len(steps) == len(SIGMAS) - 2  # the last step draws nothing
    assert torch.equal(x[:, 1], fixed.values[:, 1])
    for moves in steps:
        mean, spread = chains.distribution(denoiser(Constant(4, 0.2)), moves, 0.7)
        right = Normal(mean, spread[:, None]).log_prob(moves.reached)[:, ~mask].mean(1)
        torch.testing.assert_close(moves.log_prob, right)
        again = chains.log_prob(denoiser(Constant(4, 0.2)), moves, 0.7)
        torch.testing.assert_close(again, moves.log_prob)
        other, _ = chains.distribution(denoiser(Constant(4, -0.3)), moves, 0.7)
        apart = kl_divergence(Normal(mean, spread[:, None]), Normal(other, spread[:, None]))
        found = chains.divergence(mean, other, spread, moves.free)
        torch.testing.assert_close(found, apart[:, ~mask].mean(1))


def test_fixed_entries_have_their_values_at_every_level() -> None:
    fixed = Fixed(torch.tensor([True, False]), normal(3, 2, seed=5))
    draws = (normal(3, 2), normal(6, 3, 2, seed=1))
    _, steps = chains.sample(denoiser(Constant(2)), *draws, SIGMAS, 0.7, fixed)
    for moves in steps:
        assert torch.equal(moves.x[:, 0], fixed.values[:, 0])
        assert torch.equal(moves.reached[:, 0], fixed.values[:, 0])
        assert not torch.equal(moves.x[:, 1], fixed.values[:, 1])


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_the_gradient_of_the_mean_reward_is_exact(eta: float) -> None:
    """Of the reward x, in the network's constant: the score of all random steps gives what the
    recursion gives, less what the last step adds, which draws nothing and so has no density."""
    network, count = Constant(value=0.3), 400_000
    with torch.no_grad():
        _, steps = drawn(network, count, eta)
    before = steps[-1].reached  # what the last step, a function of it, starts from
    total = torch.zeros(count, dtype=torch.float64)
    for moves in steps:
        h = 1e-4  # scores by central differences: the density is a quadratic function
        up = chains.log_prob(denoiser(Constant(value=0.3 + h)), moves, eta)
        down = chains.log_prob(denoiser(Constant(value=0.3 - h)), moves, eta)
        total += ((up - down) / (2 * h)).detach()
    reward = before[:, 0]
    terms = (reward - reward.mean()) * total
    exact = _mean_before_last(0.3 + 0.5, eta) - _mean_before_last(0.3 - 0.5, eta)
    assert float(terms.mean()) == pytest.approx(exact, abs=4 * float(terms.std()) / count**0.5)


def _mean_before_last(value: float, eta: float) -> float:
    mean = 0.0
    for now, then in zip(SIGMAS[:-2], SIGMAS[1:-1], strict=True):
        fresh = eta * then * (1 - (then / now) ** 2) ** 0.5
        keep = (then**2 - fresh**2) ** 0.5 / now
        factor = keep + (1 - keep) / (1 + now**2)
        mean = factor * mean + (1 - keep) * now / (1 + now**2) ** 0.5 * value
    return mean


def test_levels_that_do_not_fall_are_refused() -> None:
    x: Tensor = normal(1, 1)
    with pytest.raises(ConfigError, match="must fall strictly"):
        chains.sample(denoiser(Constant()), x, normal(2, 1, 1), [1.0, 2.0, 0.0], 0.5)
