"""STAC's critic at its fixed points in closed form, and an update against a loop."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms import STAC
from algorithms.stac import gaussian_loss, pessimistic_value
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.types import Spec

D = torch.float64


def fixed_point(gamma: float, beta: float, mean: float, std: float) -> tuple[float, float]:
    """mu and sigma of one state that leads to itself, rewards N(mean, std^2), one action and no
    temperature, by gradient steps; sixteen rewards that have exactly these moments."""
    half = np.linspace(0.1, 1.6, 8)
    draws = np.concatenate([half, -half])
    reward = torch.tensor(mean + std * draws / draws.std())
    mu = torch.zeros(1, 1, dtype=D, requires_grad=True)
    log_std = torch.zeros(1, 1, dtype=D, requires_grad=True)
    optimiser = torch.optim.Adam([mu, log_std], lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.998)
    for _ in range(3000):
        with torch.no_grad():
            target = reward + gamma * pessimistic_value(mu, log_std, beta)
        optimiser.zero_grad()
        gaussian_loss(mu.expand(1, 16), log_std.expand(1, 16), target, 0.0).backward()
        optimiser.step()
        schedule.step()
    return float(mu.detach()), float(log_std.detach().exp())


@pytest.mark.parametrize(("gamma", "beta"), [(0.0, 0.5), (0.8, 0.0), (0.8, 0.5)])
def test_spread_is_that_of_one_step(gamma: float, beta: float) -> None:
    """sigma = s, not s / sqrt(1 - gamma^2), and mu = (m - gamma beta s) / (1 - gamma)."""
    mu, std = fixed_point(gamma, beta, 0.3, 0.7)
    assert std == pytest.approx(0.7, rel=1e-2)
    assert mu == pytest.approx((0.3 - gamma * beta * 0.7) / (1 - gamma), abs=2e-2)


def test_loss_against_scipy() -> None:
    mean, log_std = torch.randn(2, 2, 5, dtype=D, generator=torch.Generator().manual_seed(0))
    target = torch.linspace(-2, 2, 5, dtype=D)
    for weighting in (0.0, 0.5):
        expected = 0.0
        for n in range(2):
            for b in range(5):
                std = math.exp(float(log_std[n, b]))
                term = -stats.norm.logpdf(float(target[b]), float(mean[n, b]), std)
                expected += std ** (2 * weighting) * term / 5
        got = float(gaussian_loss(mean, log_std, target, weighting))
        assert got == pytest.approx(expected)
    with pytest.raises(ValueError, match="shapes do not fit together"):
        gaussian_loss(mean, log_std, target[:, None], 0.0)


def test_update_against_a_loop() -> None:
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    values: dict[str, Any] = {"hidden": [8], "gamma": 0.9, "pessimism": 0.5, "log_std_max": 0.1}
    learner = STAC(spec, build_config("stac", {"learner": values}), seed=0).learner
    generator = torch.Generator().manual_seed(1)
    for module in learner.modules.values():
        module.double()
    with torch.no_grad():
        for p in learner.target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=D))
    obs, next_obs = torch.randn(2, 6, 3, generator=generator, dtype=D)
    action = torch.tanh(torch.randn(6, 2, generator=generator, dtype=D))
    noise = torch.randn(2, 6, 2, generator=generator, dtype=D)
    discount = torch.tensor([0.9, 0, 0.9, 0.9, 0.9, 0.9], dtype=D)
    reward = torch.randn(6, generator=generator, dtype=D)
    batch = Batch(obs, action, reward, next_obs, discount, noise)

    def value(critic: Any, i: int, at: torch.Tensor, chosen: torch.Tensor) -> tuple[float, float]:
        out = critic.member(torch.cat([at[i], chosen])[None], 0)[0].detach()
        return float(out[0]), math.exp(min(max(float(out[1]), -5.0), 0.1))

    with torch.no_grad():
        drawn, log_prob = learner.actor.sample(obs, noise[0])
    before = float(learner.log_alpha.detach())
    own = [value(learner.critic, i, obs, drawn[i]) for i in range(6)]
    logged = [value(learner.critic, i, obs, action[i]) for i in range(6)]
    metrics = learner.update(batch)
    assert before == pytest.approx(math.log(0.2))
    alpha = math.exp(float(learner.log_alpha.detach()))
    assert float(metrics["actor/alpha"]) == pytest.approx(alpha)
    loss = np.mean([alpha * float(log_prob[i]) - (own[i][0] - 0.5 * own[i][1]) for i in range(6)])
    assert float(metrics["actor/loss"]) == pytest.approx(loss)
    errors = []
    with torch.no_grad():
        following, next_log_prob = learner.actor.sample(next_obs, noise[1])
        learner.target.load_state_dict(
            {
                k: (v - 0.005 * learner.critic.state_dict()[k]) / 0.995
                for k, v in learner.target.state_dict().items()
            }
        )
    for i in range(6):
        mean, std = value(learner.target, i, next_obs, following[i])
        inner = mean - 0.5 * std - alpha * float(next_log_prob[i])
        y = float(reward[i]) + float(discount[i]) * inner
        errors.append(-stats.norm.logpdf(y, *logged[i]))
    assert float(metrics["critic/loss"]) == pytest.approx(np.mean(errors), rel=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pessimism": -0.1}, "pessimism is -0.1"),
        ({"log_std_min": 3.0, "log_std_max": 3.0}, "log_std_min is 3.0; it must lie below"),
        ({"weighting": 2.0}, "weighting is 2.0"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("stac", {"learner": values})
