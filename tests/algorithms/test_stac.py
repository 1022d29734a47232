"""STAC's critic at its fixed points in closed form, and an update against a loop."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from algorithms import STAC
from algorithms.learners.dropout import Dropped
from algorithms.stac import gaussian_loss, pessimistic_value
from experiments.settings import build_config
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset, Spec
from tests.algorithms.continued import continued

D = torch.float64
SMALL: dict[str, Any] = {"hidden": [8, 6], "batch_size": 16}


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


@pytest.mark.parametrize(
    ("gamma", "beta"),
    [*(pytest.param(*p, marks=pytest.mark.long) for p in ((0.0, 0.5), (0.8, 0.0))), (0.8, 0.5)],
)
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


def doubled(learner: Any, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Put the learner into double precision, its targets away from its critics; observations and
    next ones [6, 3], and actions [6, 2]."""
    for module in learner.modules.values():
        module.double()
    with torch.no_grad():
        for p in learner.target.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=D))
    obs, next_obs = torch.randn(2, 6, 3, generator=generator, dtype=D)
    return obs, next_obs, torch.tanh(torch.randn(6, 2, generator=generator, dtype=D))


def test_update_against_a_loop() -> None:
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    values: dict[str, Any] = {"hidden": [8], "gamma": 0.9, "pessimism": 0.5, "log_std_max": 0.1}
    learner = STAC(spec, build_config("stac", {"learner": values}), seed=0).learner
    generator = torch.Generator().manual_seed(1)
    obs, next_obs, action = doubled(learner, generator)
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


def layers(net: Any, n: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights [in, out] and biases of a policy's network, or of critic `n`."""
    if n is None:
        pairs = [(la.weight.T, la.bias) for la in net.layers]
    else:
        pairs = [(w[n], b[n, 0]) for w, b in zip(net.weights, net.biases, strict=True)]
    return [(w.detach().numpy().copy(), b.detach().numpy().copy()) for w, b in pairs]


def passed(x: np.ndarray, net: list[tuple[np.ndarray, np.ndarray]], masks: Any) -> np.ndarray:
    """One row, unit by unit: those of a hidden layer are kept and grown, or 0."""
    for (weight, bias), mask in zip(net, [*masks, None], strict=True):
        out = [float(x @ weight[:, j] + bias[j]) for j in range(len(bias))]
        x = np.array(
            out if mask is None else [max(h, 0) * m for h, m in zip(out, mask, strict=True)]
        )
    return x


def acted(out: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float]:
    """tanh(mu + sigma xi) and its log-density."""
    mean, std = out[:2], np.exp(out[2:].clip(-5, 2))
    pre = mean + std * noise
    inside = stats.norm.logpdf(pre, mean, std) - np.log(1 - np.tanh(pre) ** 2)
    return np.tanh(pre), float(inside.sum())


def test_update_with_dropout_against_a_loop() -> None:
    """Both losses, under masks of each pass and network; some units of every layer are dropped."""
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    values = SMALL | {"gamma": 0.9, "critics": 2, "dropout": "both", "dropout_rate": 0.4}
    learner = STAC(spec, build_config("stac", {"learner": values | {"learn_alpha": False}})).learner
    generator = torch.Generator().manual_seed(1)
    obs, next_obs, action = doubled(learner, generator)
    discount = torch.tensor([0.9, 0, 0.9, 0.9, 0.9, 0.9], dtype=D)
    reward = torch.randn(6, generator=generator, dtype=D)
    drawn = learner.draw(Batch(obs, action, reward, next_obs, discount), generator)
    assert [m.shape for m in drawn.policy] == [(2, 1, 6, 8), (2, 1, 6, 6)]
    assert [m.shape for m in drawn.critic] == [(3, 2, 6, 8), (3, 2, 6, 6)]
    assert all(0.2 < float((m == 0).double().mean()) < 0.6 for m in drawn.policy + drawn.critic)
    noise = drawn.batch.noise.double().numpy()
    drawn = drawn._replace(batch=drawn.batch._replace(noise=drawn.batch.noise.double()))
    policy, alpha = layers(learner.actor.net), 0.2
    critics = [[layers(net, n) for n in range(2)] for net in (learner.critic, learner.target)]

    def value(net: int, turn: int, i: int, x: np.ndarray) -> tuple[float, list[Any]]:
        outs = [passed(x, critics[net][n], [m[turn, n, i] for m in drawn.critic]) for n in range(2)]
        outs = [(out[0], math.exp(out[1])) for out in outs]
        return min(mean - 0.25 * std for mean, std in outs), outs

    metrics, losses, errors = learner.update(drawn), [], []
    after = layers(learner.actor.net)
    for i in range(6):
        out = passed(obs[i].numpy(), policy, [m[0, 0, i] for m in drawn.policy])
        chosen, log_prob = acted(out, noise[0, i])
        losses.append(alpha * log_prob - value(0, 0, i, np.append(obs[i], chosen))[0])
        out = passed(next_obs[i].numpy(), after, [m[1, 0, i] for m in drawn.policy])
        chosen, log_prob = acted(out, noise[1, i])
        inner = value(1, 1, i, np.append(next_obs[i], chosen))[0] - alpha * log_prob
        y = float(reward[i]) + float(discount[i]) * inner
        _, own = value(0, 2, i, np.append(obs[i], action[i]))
        errors.append(-sum(stats.norm.logpdf(y, mean, std) for mean, std in own))
    assert float(metrics["actor/loss"]) == pytest.approx(np.mean(losses), rel=1e-6)
    assert float(metrics["critic/loss"]) == pytest.approx(np.mean(errors), rel=1e-6)


@pytest.mark.parametrize("where", ["none", "policy", "critic", "both"])
def test_dropout_is_where_it_is_set_and_not_in_acting(where: str, pendulum: Dataset) -> None:
    """Actions are those of the networks as they are; the draws of actions come first, so that they
    are the same in all four."""
    agents = {}
    for name in ("none", where):
        values = SMALL | {"dropout": name, "dropout_rate": 0.5}
        agents[name] = STAC(pendulum.spec, build_config("stac", {"learner": values}), seed=3)
        agents[name].prepare(pendulum, lambda metrics: None)
    plain, drawn = agents["none"].next_batch(), agents[where].next_batch()
    if where == "none":
        assert isinstance(drawn, Batch)
        return
    assert isinstance(drawn, Dropped) and isinstance(plain, Batch)
    assert torch.equal(drawn.batch.noise, plain.noise)
    assert bool(drawn.policy) == (where != "critic") and bool(drawn.critic) == (where != "policy")
    obs = pendulum.transitions.obs[:9]
    for deterministic in (True, False):
        acts = [
            agent.act(obs, deterministic=deterministic, generator=torch.Generator().manual_seed(0))[
                0
            ]
            for agent in agents.values()
        ]
        assert torch.equal(*acts)


def test_dropout_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    task = make("Pendulum-v1")
    learner = SMALL | {"dropout": "both", "dropout_rate": 0.2}
    config = build_config("stac", {"learner": learner, "warmup": 20, "capacity": 100})
    continued(STAC(task.spec, config, seed=0), task, tmp_path / "agent.pt", 33, 47)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dropout": "target"}, "target"),
        ({"dropout_rate": 0.0}, "dropout_rate is 0.0"),
        ({"dropout_rate": 1.0}, "dropout_rate is 1.0"),
        ({"pessimism": -0.1}, "pessimism is -0.1"),
        ({"log_std_min": 3.0, "log_std_max": 3.0}, "log_std_min is 3.0; it must lie below"),
        ({"weighting": 2.0}, "weighting is 2.0"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("stac", {"learner": values})
