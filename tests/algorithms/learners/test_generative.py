"""Flows and diffusions of actions: samples in closed form, losses against a loop, two modes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms import GenerativeBC
from algorithms.learners.generative import (
    Diffusion,
    Drawn,
    Flow,
    GenerativePolicy,
    best,
    drawn,
    kept_noise,
)
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.types import Dataset, Spec, Transitions
from world_models.samplers import Euler, denoiser_of_flow

MEAN, DEVIATION = 0.3, 0.2


def two_modes(rows: int = 2000) -> Dataset:
    """One state; actions -0.7 and 0.7, three to one, with a deviation of 0.05; bounds are +-2."""
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(rows, 1, generator=generator) < 0.25
    action = torch.where(right, 1.4, -1.4) + 0.1 * torch.randn(rows, 1, generator=generator)
    obs, ends = torch.zeros(rows, 2), torch.ones(rows, dtype=torch.bool)
    spec = Spec("two modes", 2, 1, None, (-2.0,), (2.0,), 1)
    return Dataset(Transitions(obs, action, torch.zeros(rows), obs, ends, ~ends), spec)


def noise(rows: int = 64, actions: int = 2) -> Tensor:
    return torch.randn(
        rows, actions, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )


def gaussian_velocity(x: Tensor, time: Tensor) -> Tensor:
    """E[a - x_0 | x_t = x] of actions N(MEAN, DEVIATION^2)."""
    t = time[:, None]
    variance = (1 - t).square() + (t * DEVIATION).square()
    slope = (t * DEVIATION**2 - (1 - t)) / variance
    return MEAN + slope * (x - t * MEAN)


def gaussian_network(x: Tensor, c: Tensor) -> Tensor:
    """What EDM's preconditioning takes for the exact denoiser of N(MEAN, DEVIATION^2)."""
    sigma = (4.0 * c).exp()[:, None]
    norm = (sigma.square() + 1.0).sqrt()
    whole = x * norm
    variance = DEVIATION**2
    denoised = (variance * whole + sigma.square() * MEAN) / (variance + sigma.square())
    return (denoised - whole / norm.square()) * norm / sigma


def test_eulers_steps_of_known_velocities() -> None:
    start = noise()
    moved = Flow(steps=4).sample(lambda x, t: torch.ones_like(x) * t[:, None], start)
    assert torch.allclose(moved, start + (0.0 + 0.25 + 0.5 + 0.75) / 4)
    shrunk = Flow(steps=5).sample(lambda x, t: -x, start)
    assert torch.allclose(shrunk, start * 0.8**5)


def test_a_flow_leads_noise_to_its_quantile() -> None:
    """For a normal distribution the exact flow is z to mean + deviation z."""
    start = noise()
    got = Flow(steps=400).sample(gaussian_velocity, start)
    assert torch.allclose(got, MEAN + DEVIATION * start, atol=2e-2)


def test_a_flows_steps_are_those_of_the_samplers() -> None:
    """From the second step on, as a denoiser at sigma = (1 - t) / t."""
    start = noise()
    first = start + gaussian_velocity(start, torch.zeros(64, dtype=torch.float64)) / 5
    sigmas = [(1 - k / 5) / (k / 5) for k in range(1, 6)]
    other = Euler()(denoiser_of_flow(gaussian_velocity), first / 0.2, sigmas, torch.Generator())
    assert torch.allclose(Flow(steps=5).sample(gaussian_velocity, start), other)


@pytest.mark.parametrize("sampler", ["ddim", "heun", "dpm_solver_pp"])
def test_a_diffusion_follows_the_probability_flow(sampler: Any) -> None:
    """The exact one takes sigma_max z to mean + (sigma_max z - mean) s / sqrt(s^2 + sigma_max^2),
    but for the noise of the last level."""
    path = Diffusion(steps=80, sampler=sampler)
    start = noise()
    top = path.sigma_max
    share = DEVIATION / math.sqrt(DEVIATION**2 + top**2)
    expected = MEAN + (top * start - MEAN) * share
    got = path.sample(gaussian_network, start)
    assert torch.allclose(got, expected, atol=2e-2)


def test_evaluations_are_counted() -> None:
    for path in (Flow(steps=7), Diffusion(steps=7), Diffusion(steps=7, sampler="heun")):
        calls = []

        def network(x: Tensor, level: Tensor, calls: list[int] = calls) -> Tensor:
            calls.append(1)
            return torch.zeros_like(x)

        path.sample(network, torch.zeros(3, 1))
        assert len(calls) == path.evaluations


def test_losses_against_a_loop() -> None:
    rows, spec = 9, Spec("wide", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    generator = torch.Generator().manual_seed(3)
    obs, action = torch.randn(rows, 3, generator=generator), torch.rand(rows, 2) - 0.5
    batch = Batch(obs, action, obs[:, 0], obs, obs[:, 0])
    for path in (Flow(), Diffusion()):
        policy = GenerativePolicy(spec, path, [8], generator=generator)
        made = drawn(batch, path, generator, more=2)
        assert made.batch.noise is not None and made.batch.noise.shape == (2, rows, 2)
        terms = []
        for i in range(rows):
            a, z, level = action[i].double(), made.noise[i].double(), float(made.level[i])
            for j in range(2):
                if isinstance(path, Flow):
                    x = (1 - level) * z + level * a
                    out = once(policy, obs[i], x, level)[j]
                    terms.append(float((out - (a[j] - z[j])) ** 2))
                else:
                    x = a + level * z
                    norm = math.sqrt(level**2 + 1)
                    out = once(policy, obs[i], x / norm, math.log(level) / 4)[j]
                    denoised = x[j] / norm**2 + level / norm * out
                    terms.append(float((1 + 1 / level**2) * (denoised - a[j]) ** 2))
        assert float(policy.loss(made)) == pytest.approx(sum(terms) / len(terms), rel=1e-4)


def once(policy: GenerativePolicy, obs: Tensor, x: Tensor, level: float) -> Tensor:
    """The network's output [A] at one observation, a layer after the other."""
    first, last = (layer for layer in policy.net.layers)
    row = torch.cat([obs.double(), x, torch.tensor([level], dtype=torch.float64)])
    h = first.weight.double() @ row + first.bias.double()
    out: Tensor = last.weight.double() @ (h * torch.sigmoid(h)) + last.bias.double()
    return out.detach()


def test_levels_have_their_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    times = Flow().levels(20_000, generator, torch.device("cpu"))
    assert float(times.min()) >= 0 and float(times.max()) < 1
    assert float(times.mean()) == pytest.approx(0.5, abs=0.01)
    logs = Diffusion().levels(20_000, generator, torch.device("cpu")).log()
    assert float(logs.mean()) == pytest.approx(-1.2, abs=0.03)
    assert float(logs.std()) == pytest.approx(1.2, abs=0.03)


@pytest.mark.parametrize("policy", ["flow", pytest.param("diffusion", marks=pytest.mark.long)])
def test_a_clone_keeps_both_modes_and_their_shares(policy: str) -> None:
    data = two_modes()
    values = {"policy": policy, "hidden": [64, 64], "learning_rate": 2e-3}
    agent = GenerativeBC(data.spec, build_config("generative_bc", values), seed=0)
    agent.fit(data, 1500, callbacks=[])
    obs = torch.zeros(4000, 2)
    action = agent.policy.explore(obs, torch.Generator().manual_seed(0))
    between = float((action.abs() < 0.8).float().mean())
    assert between < 0.05
    assert float((action > 0.8).float().mean()) == pytest.approx(0.25, abs=0.05)
    near = action[action > 0.8]
    assert float(near.mean()) == pytest.approx(1.4, abs=0.1)
    assert float(agent.policy(obs[:1]).abs()) > 1.0
    steps = {"flow": 10.0, "diffusion": 20.0}[policy]
    assert torch.equal(agent.policy.evaluations(obs[:2]), torch.full((2,), steps))


def test_candidates_are_samples_and_the_best_is_taken() -> None:
    spec = Spec("wide", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    generator = torch.Generator().manual_seed(3)
    policy = GenerativePolicy(spec, Flow(), [8], candidates=5, generator=generator)
    obs = torch.randn(4, 3, generator=generator)
    kept = policy.greedy_noise(obs)
    actions = policy.candidates(obs, kept)
    assert actions.shape == (5, 4, 2) and policy.drawn_noise(obs, generator).shape == (5, 4, 2)
    for k in range(5):
        for i in range(4):
            one = policy.sample(obs[i][None], policy.noise[k][None])
            assert torch.allclose(actions[k, i], one[0], atol=1e-6)
    q = torch.randn(5, 4, generator=generator)
    for i, action in enumerate(best(actions, q)):
        assert torch.equal(action, actions[int(q[:, i].argmax()), i])


def test_greedy_noise_is_far_from_0() -> None:
    for seed in range(20):
        one = kept_noise(1, 3, torch.Generator().manual_seed(seed))
        assert float(one.norm()) == pytest.approx(math.sqrt(3), rel=1e-5)
    assert float(kept_noise(4000, 1, torch.Generator().manual_seed(0)).std()) == pytest.approx(
        1.0, abs=0.05
    )


def test_a_batch_goes_with_its_noise() -> None:
    obs = torch.zeros(3, 1)
    made = drawn(Batch(obs, obs, obs[:, 0], obs, obs[:, 0]), Flow(), torch.Generator())
    assert isinstance(made, Drawn) and made.batch.noise is None
    assert made.noise.shape == (3, 1) and made.level.shape == (3,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "gaussian"}, "gaussian"),
        ({"flow": {"steps": 0}}, "steps is 0"),
        ({"diffusion": {"sampler": "churn"}}, "churn"),
        ({"diffusion": {"sigma_min": 20.0}}, "sigma_min is 20.0"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("generative_bc", values)
