"""SAC with generalised Gaussian errors: its critics' loss against a loop, and in PPO's critic."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from algorithms import GGDSAC, PolicyGradient
from algorithms.ggd_sac import least_mean
from experiments.settings import build_config
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Spec

D = torch.float64
SPEC = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)


def test_critic_loss_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 6, 2, generator=generator, dtype=D)
    target = 2 * torch.randn(6, generator=generator, dtype=D)
    following = 0.9 * torch.randn(2, 6, generator=generator, dtype=D)
    values: dict[str, Any] = {"hidden": [4], "error_scale": 2.0, "effective_share": 0.01}
    agent = GGDSAC(SPEC, build_config("ggd_sac", {"learner": values}))
    variance = following.numpy().var(0, ddof=1)
    weight = (1 / variance) / (1 / variance).mean()
    total = 0.0
    for n in range(2):
        beta = np.log1p(np.exp(outputs[n, :, 1].numpy())).clip(0.2, 4)
        error = (outputs[n, :, 0] - target).numpy() / 2
        likelihood = -stats.gennorm.logpdf(error, beta)
        total += np.mean(weight * beta / beta.mean() * likelihood)
    got, _ = agent.critic_loss(outputs, target, following)
    assert float(got) == pytest.approx(total, rel=1e-5)
    assert torch.equal(least_mean(outputs), outputs[..., 0].amin(0))


def test_weights_by_the_variance_of_errors_and_kurtosis_against_a_loop() -> None:
    """Five critics; the effective number of rows is far from its bound."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 6, 2, generator=generator, dtype=D)
    target = 2 * torch.randn(6, generator=generator, dtype=D)
    following = 0.9 * torch.randn(5, 6, generator=generator, dtype=D)
    values = {"hidden": [4], "critics": 5, "effective_share": 0.01, "variance_of": "errors"}
    config = build_config("ggd_sac", {"learner": values | {"log_kurtosis": True}})
    error = (outputs[..., 0] - target).numpy()
    beta = np.log1p(np.exp(outputs[..., 1].numpy())).clip(0.2, 4)
    weight = []
    for b in range(6):
        kappa = stats.kurtosis(error[:, b], bias=False)
        weight.append((kappa / 5 + 6 / 4) / error[:, b].var(ddof=1))
    weight = np.array(weight) / np.mean(weight)
    total = sum(
        np.mean(weight * beta[n] / beta[n].mean() * -stats.gennorm.logpdf(error[n], beta[n]))
        for n in range(5)
    )
    got, metrics = GGDSAC(SPEC, config).critic_loss(outputs, target, following)
    assert float(got) == pytest.approx(total, rel=1e-5)
    shapes = [float(stats.gennorm.stats(b, moments="k")) for b in beta.flatten()]
    assert float(metrics["critic/shape_kurtosis"]) == pytest.approx(np.mean(shapes), rel=1e-6)
    sample = np.mean([stats.kurtosis(error[n], bias=False) for n in range(5)])
    assert float(metrics["critic/error_kurtosis"]) == pytest.approx(sample, rel=1e-6)
    silent = GGDSAC(SPEC, build_config("ggd_sac", {"learner": {"hidden": [4], "critics": 5}}))
    assert set(silent.critic_loss(outputs, target, following)[1]) == {"critic/loss", "critic/shape"}


def test_the_critic_of_policy_gradients_takes_it_too() -> None:
    """PPO on CartPole with both losses: finite, another critic, and values that stay when the
    units change."""
    task, critics = make("CartPole-v1"), {}
    for loss in ("squared", "generalised_gaussian"):
        values = {"hidden": [8], "envs": 4, "group": 2, "minibatches": 2, "critic_loss": loss}
        agent = PolicyGradient(task.spec, build_config("policy_gradient", values), seed=0)
        agent.learn(task, 60, callbacks=[])
        critics[loss] = agent.critic
        assert agent.critic is not None
        assert all(torch.isfinite(p).all() for p in agent.critic.parameters())
    critic, obs = critics["generalised_gaussian"], torch.randn(5, 4)
    assert critic is not None and critics["squared"] is not None
    assert critics["squared"].net.layers[-1].weight.shape == (1, 8)
    before, shape = critic.outputs(obs)
    moments = agent.aims
    moments.add(torch.tensor([[300.0], [500.0]]))
    critic.rescale(moments)
    after, same = critic.outputs(obs)
    assert torch.allclose(before, after, rtol=1e-4, atol=1e-3) and torch.equal(shape, same)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"critics": 1}, "inverse_variance with critics 1"),
        ({"error_scale": 0.0}, "error_scale is 0.0"),
        ({"variance_of": "rewards"}, "rewards"),
        ({"form": "other"}, "other"),
        ({"uncertainty_weight": 0.0}, "uncertainty_weight is 0.0"),
        ({"effective_share": 0.0}, "effective_share is 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("ggd_sac", {"learner": values})
