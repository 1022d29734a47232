"""The ensemble against slow loops, closed forms and known answers."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, stats

from mbrl.errors import ConfigError, DataError
from mbrl.types import Spec, Transitions
from tests.draws import same_draws
from world_models import EnsembleConfig, EnsembleDynamics, Prediction
from world_models import diagnostics as measures
from world_models.disagreement import MEASURES
from world_models.ensemble_network import EnsembleNetwork, gaussian_nll

SMALL = {
    "members": 4,
    "elites": 3,
    "hidden": (16, 16),
    "weight_decay": (0.0,),
    "batch_size": 64,
    "min_epochs": 3,
    "max_epochs": 8,
}
VARIANTS = {
    "ravl": {},
    "standardised": {"target": "standardised"},
    "neubay": {
        "target": "standardised",
        "layer_norm": True,
        "activation": "leaky_relu",
        "log_variance_bounds": "fixed",
        "bootstrap": "none",
        "decoupled_decay": True,
        "holdout_max": 50,
        "init": "torch",
    },
    "reassigned": {"bootstrap": "reassigned"},
}


def linear_world(rows: int, noise: float = 0.0, seed: int = 0) -> tuple[Spec, Transitions]:
    """s' = A s + B a (+ noise), r = c . s: a world whose model is known."""
    g = torch.Generator().manual_seed(seed)
    spec = Spec("linear", 3, 2, None, (-5.0, 0.0), (5.0, 1.0), 50)
    obs = torch.randn(rows, 3, generator=g)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    action = low + (high - low) * torch.rand(rows, 2, generator=g)
    a = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.8, 0.2], [-0.1, 0.0, 0.95]])
    b = torch.tensor([[0.05, 0.0], [0.0, 0.3], [0.1, -0.2]])
    next_obs = obs @ a.T + action @ b.T + noise * torch.randn(rows, 3, generator=g)
    ends = torch.arange(rows) % 50 == 49
    return spec, Transitions(
        obs, action, obs @ torch.tensor([1.0, -1.0, 0.5]), next_obs, torch.zeros(rows) > 1, ends
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_fits_a_linear_world(variant: str) -> None:
    spec, data = linear_world(1500)
    config = EnsembleConfig(**(SMALL | {"max_epochs": 30, "min_epochs": 10} | VARIANTS[variant]))
    model = EnsembleDynamics(spec, config, seed=0)
    epochs = []
    model.fit(data, lambda m: epochs.append(int(m["model/epoch"])))
    assert epochs == list(range(1, len(epochs) + 1)) and len(epochs) <= 30
    assert model.num_members == 3
    _, test = linear_world(300, seed=9)
    error = measures.k_step_error(model, test, 3)
    assert error.median[0] < 0.1 and error.windows.tolist() == [300, 6 * 49, 6 * 48]
    # k-step error by a slow loop over one window at a time
    scale = test.obs.std(0, correction=0)
    slow = []
    for start in [e + i for e in range(0, 300, 50) for i in range(48)]:
        obs = test.obs[start : start + 1]
        for t in range(3):
            action = test.action[start + t : start + t + 1]
            mean, _ = model.members_predict(obs, action)
            obs, _ = model.decode(obs, action, mean.mean(0))
        slow.append(float(((obs - test.next_obs[start + 2]) / scale).square().mean().sqrt()))
    assert error.median[2] == pytest.approx(np.median(slow), rel=1e-4)


def test_the_error_of_one_step_is_that_of_all_rows_however_long_the_curve_is() -> None:
    """With windows of the longest episode alone, errors after few steps were those of its start."""
    spec, data = linear_world(300)
    model = EnsembleDynamics(spec, EnsembleConfig(**SMALL), seed=1)
    model.fit(data)
    short = data.select(torch.arange(250))  # five episodes of 50, the last three cut to 49
    ends = [49, 99, 148, 197, 246]
    rows = short.select(torch.tensor([i for i in range(250) if i not in (149, 199, 249)]))
    rows = replace(rows, truncated=torch.isin(torch.arange(247), torch.tensor(ends)))
    error = measures.k_step_error(model, rows, 50)
    assert error.windows[[0, 1, 48, 49]].tolist() == [247, 242, 7, 2]
    mean, _ = model.members_predict(rows.obs, rows.action)
    obs, reward = model.decode(rows.obs, rows.action, mean.mean(0))
    gap = ((obs - rows.next_obs) / rows.obs.std(0, correction=0)).square().mean(1).sqrt()
    assert error.median[0] == pytest.approx(float(gap.double().quantile(0.5)), rel=1e-5)
    assert error.high[0] == pytest.approx(float(gap.double().quantile(0.75)), rel=1e-5)
    paid = (reward - rows.reward).abs().double().quantile(0.5)
    assert error.reward[0] == pytest.approx(float(paid), rel=1e-5)
    few = measures.k_step_error(model, rows, 50, windows=5)
    assert few.windows.tolist() == [5] * 49 + [2] and few.median[49] == pytest.approx(
        error.median[49]
    )


def test_measures_leave_out_rows_whose_next_observation_is_not_known() -> None:
    """The last row of each episode: no window goes on over it into the next episode."""
    spec, data = linear_world(300)
    model = EnsembleDynamics(spec, EnsembleConfig(**SMALL), seed=1)
    model.fit(data)
    end = data.ends
    broken = torch.where(end[:, None], data.obs, data.next_obs)
    unknown = replace(
        data, next_obs=broken, next_known=~end, terminated=end, truncated=torch.zeros_like(end)
    )
    before = torch.cat([end[1:], end[:1]])
    known = replace(data, truncated=before & ~end).select(~end)
    for k in (1, 3):
        mine, theirs = (measures.k_step_error(model, rows, k) for rows in (unknown, known))
        assert mine.windows.tolist() == [6 * (50 - t) for t in range(1, k + 1)]
        assert np.array_equal(mine.median, theirs.median)
    with pytest.raises(DataError, match="no episode of the data has 50 steps"):
        measures.k_step_error(model, unknown, 50)
    for measure in (measures.log_likelihood, measures.rank_correlation):
        np.testing.assert_equal(measure(model, unknown), measure(model, known))
    mine, theirs = (measures.calibration(model, rows).observed for rows in (unknown, known))
    assert np.array_equal(mine, theirs)


def test_holdout_likelihood_equals_a_slow_loop() -> None:
    spec, data = linear_world(200, noise=0.1)
    model = EnsembleDynamics(spec, EnsembleConfig(**SMALL), seed=1)
    model.fit(data)
    _, test = linear_world(20, noise=0.1, seed=3)
    got = measures.log_likelihood(model, test)
    network = model.network
    x = torch.cat([model.obs_normaliser(test.obs), model.action_normaliser(test.action)], 1).clamp(
        -10, 10
    )
    for e in range(model.num_members):
        total = 0.0
        for row in range(20):
            h = x[row].double().numpy()
            for layer in range(3):
                w = network.mlp.weights[layer][e].double().numpy()
                h = h @ w + network.mlp.biases[layer][e, 0].double().numpy()
                if layer < 2:
                    h = h / (1 + np.exp(-h))
            mean, log_variance = h[:4], h[4:]
            high, low = network.high.double().numpy(), network.low.double().numpy()
            log_variance = high - np.log1p(np.exp(high - log_variance))
            log_variance = low + np.log1p(np.exp(log_variance - low))
            change = (test.next_obs[row] - test.obs[row]).double().numpy()
            y = np.append(change, float(test.reward[row]))
            total += stats.norm.logpdf(y, mean, np.exp(0.5 * log_variance)).sum()
        assert got[e] == pytest.approx(total / 20, rel=1e-5, abs=1e-5)


def test_loss_is_twice_the_likelihood_with_bounds() -> None:
    spec, _ = linear_world(4)
    model = EnsembleDynamics(spec, EnsembleConfig(**SMALL))
    g = torch.Generator().manual_seed(0)
    mean, log_variance, y = (torch.randn(4, 5, 4, generator=g) for _ in range(3))
    got = float(gaussian_nll(mean, log_variance, y, model.network).detach())
    logs = stats.norm.logpdf(y.numpy(), mean.numpy(), np.exp(0.5 * log_variance.numpy()))
    nll = (-2 * logs - np.log(2 * np.pi)).mean((1, 2)).sum()
    bounds = 0.01 * (4 * 0.5 - 4 * -10.0)
    assert got == pytest.approx(nll + bounds, rel=1e-5)


def test_noise_is_learned() -> None:
    """The predicted deviation approaches the true noise of 0.2, and intervals cover."""
    spec, data = linear_world(4000, noise=0.2)
    config = EnsembleConfig(**(SMALL | {"max_epochs": 40, "min_epochs": 20}))
    model = EnsembleDynamics(spec, config, seed=0)
    model.fit(data)
    _, test = linear_world(2000, noise=0.2, seed=5)
    _, variance = model.members_predict(test.obs, test.action)
    assert variance[..., :3].sqrt().median() == pytest.approx(0.2, rel=0.15)
    only_obs = measures.calibration(model, test)
    assert only_obs.error < 0.12


@pytest.mark.parametrize("shares", [(100, 100, 100), (120, 110, 70), (280, 0, 20), (0, 0, 300)])
@pytest.mark.parametrize("chunk", [32, 1000])
def test_members_are_predicted_alone_as_together(shares: tuple[int, ...], chunk: int) -> None:
    spec, data = linear_world(300)
    model = EnsembleDynamics(spec, EnsembleConfig(**SMALL))
    model.fit(data)
    member = torch.arange(3).repeat_interleave(torch.tensor(shares))
    member = member[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    together, variance = model.members_predict(data.obs, data.action, chunk=64)
    mean, alone = model.chosen_predict(data.obs, data.action, member, chunk=chunk)
    rows = torch.arange(300)
    assert torch.allclose(mean, together[member, rows], atol=1e-5)
    assert torch.allclose(alone, variance[member, rows], rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"target": "residual"}, {"reward": "reached"}], ids=str)
@pytest.mark.parametrize("discrete", [False, True])
def test_compiled_steps_are_those_of_pytorch(
    settings: dict[str, Any], discrete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, data = linear_world(300)
    if discrete:
        spec = Spec("discrete", 3, 1, 4, None, None, 50)
        data = replace(data, action=torch.arange(300) % 4)
    config = EnsembleConfig(**(SMALL | {"input_clip": 0.7, "reward_updates": 20} | settings))
    model = EnsembleDynamics(spec, config)
    model.fit(data)
    member = torch.arange(300) % 3

    def step() -> Prediction:
        generator = torch.Generator().manual_seed(1)
        return model.predict(data.obs, data.action, generator, member=member)

    got = step()
    monkeypatch.setattr(EnsembleNetwork, "draws", lambda *inputs: None)
    right = step()
    assert torch.allclose(got.next_obs, right.next_obs, atol=1e-5)
    assert torch.allclose(got.reward, right.reward, atol=1e-5)


@same_draws
def test_early_stopping_keeps_the_best_weights() -> None:
    spec, data = linear_world(200, noise=0.5)
    config = EnsembleConfig(**(SMALL | {"max_epochs": 40, "min_epochs": 1, "learning_rate": 0.02}))
    model = EnsembleDynamics(spec, config, seed=2)
    errors = []
    model.fit(data, lambda m: errors.append(float(m["model/holdout_mse"])))
    assert len(errors) < 40
    assert float(model.holdout_mse.mean()) <= errors[-1] + 1e-6


def test_unfinished_fit_continues_bit_for_bit() -> None:
    spec, data = linear_world(200, noise=0.1)
    config = EnsembleConfig(**SMALL)
    whole = EnsembleDynamics(spec, config, seed=3)
    whole.fit(data)
    broken = EnsembleDynamics(spec, config, seed=3)
    saved = {}

    class Stop(Exception):
        pass

    def stop(metrics) -> None:
        if int(metrics["model/epoch"]) == 3:
            saved.update(broken.state_dict())
            raise Stop

    with pytest.raises(Stop):
        broken.fit(data, stop)
    fresh = EnsembleDynamics(spec, config, seed=3)
    fresh.load_state_dict(saved)
    fresh.fit(data)
    for a, b in zip(whole.network.parameters(), fresh.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("variant", ["ravl", "neubay"])
def test_refit_continues_from_the_weights(variant: str) -> None:
    """More data and passes lower the error; members stay, weights are frozen again, fixed bounds
    stay fixed, and the numbers of passes are those asked for."""
    spec, data = linear_world(1200)
    values = SMALL | VARIANTS[variant] | {"patience": 50, "elites": 2, "bound_weight": 1.0}
    model = EnsembleDynamics(spec, EnsembleConfig(**values), seed=0)
    with pytest.raises(ConfigError, match="not fitted"):
        model.refit(data, 1)
    model.fit(data.select(slice(0, 300)))
    before, bounds = float(model.holdout_mse.mean()), model.network.high.clone()
    epochs: list[int] = []
    model.refit(data, 5, lambda m: epochs.append(int(m["model/epoch"])))
    assert epochs == [1, 2, 3, 4, 5] and model.num_members == 2
    assert float(model.holdout_mse.mean()) < before
    assert torch.equal(bounds, model.network.high) == (variant == "neubay")
    assert not any(p.requires_grad for p in model.network.parameters())
    assert torch.allclose(model.obs_normaliser.mean, data.obs.mean(0), atol=1e-6)


def test_disagreement_measures_by_slow_loops() -> None:
    g = torch.Generator().manual_seed(0)
    mean = torch.randn(4, 6, 3, dtype=torch.float64, generator=g)
    variance = torch.rand(4, 6, 3, dtype=torch.float64, generator=g) + 0.1
    m, v = mean.numpy(), variance.numpy()
    for b in range(6):
        mixture = (v[:, b] + m[:, b] ** 2).mean(0) - m[:, b].mean(0) ** 2
        kl = 0.0
        for i in range(4):
            rest = [j for j in range(4) if j != i]
            mu = m[rest, b].mean(0)
            var = (v[rest, b] + m[rest, b] ** 2).mean(0) - mu**2
            term = np.log(var / v[i, b]) + (v[i, b] + (m[i, b] - mu) ** 2) / var - 1
            kl += 0.5 * term.sum() / 4
        expected = {
            "max_aleatoric": max(np.linalg.norm(np.sqrt(v[e, b])) for e in range(4)),
            "ensemble_variance": np.linalg.norm(mixture),
            "ensemble_std": np.linalg.norm(np.sqrt(mixture)),
            "max_pairwise_difference": max(
                np.linalg.norm(m[i, b] - m[j, b]) for i in range(4) for j in range(4)
            ),
            "leave_one_out_kl": kl,
            "epistemic_mean": np.sqrt(np.mean([m[:, b, d].var() for d in range(3)])),
        }
        assert set(expected) == set(MEASURES)
        for name, function in MEASURES.items():
            assert float(function(mean, variance)[b]) == pytest.approx(expected[name]), name


@pytest.mark.parametrize("name", MEASURES)
def test_disagreement_far_from_the_data_keeps_its_digits(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    mean = 1000.0 + 0.1 * torch.randn(5, 4, 3, generator=g)  # as where a rollout runs away
    variance = 0.01 + 0.01 * torch.rand(5, 4, 3, generator=g)
    exact = MEASURES[name](mean.double(), variance.double())
    torch.testing.assert_close(MEASURES[name](mean, variance).double(), exact, rtol=1e-3, atol=0)


def test_clear_errors() -> None:
    spec, data = linear_world(60)
    with pytest.raises(ConfigError, match=r"elites is 9.*1\.\.7"):
        EnsembleConfig(elites=9)
    with pytest.raises(ConfigError, match="weight_decay has 2 entries"):
        EnsembleConfig(weight_decay=(1.0, 2.0))
    with pytest.raises(DataError, match="at least 3"):
        EnsembleDynamics(spec, EnsembleConfig(**SMALL)).fit(data.select(slice(0, 2)))
    model = EnsembleDynamics(spec, EnsembleConfig(**SMALL))
    with pytest.raises(ConfigError, match="not fitted"):
        model.predict(data.obs, data.action, torch.Generator())


@pytest.mark.parametrize("column", ["duration", "weight"])
def test_rows_that_are_not_alike_are_refused(column: str) -> None:
    spec, rows = linear_world(50)
    unlike = replace(rows, **{column: torch.ones(len(rows))})
    with pytest.raises(DataError, match=f"have a {column}"):
        EnsembleDynamics(spec, EnsembleConfig(**SMALL)).fit(unlike)


def test_tiny_data_and_constant_columns() -> None:
    """Ten rows, one of them constant: no division by zero, no empty holdout."""
    spec, data = linear_world(10)
    data.obs[:, 1], data.next_obs[:, 1] = 3.0, 3.0
    model = EnsembleDynamics(spec, EnsembleConfig(**(SMALL | {"target": "standardised"})))
    model.fit(data)
    guess = model.predict(data.obs, data.action, torch.Generator().manual_seed(0))
    assert torch.isfinite(guess.next_obs).all() and torch.isfinite(guess.reward).all()


def test_observations_below_the_noise_of_a_model_are_warned_of() -> None:
    """Of order 1e-4 a model of changes in the task's units errs by tens of deviations, also when
    its fit is done."""
    spec, data = linear_world(40)
    data.obs[:, 2] *= 1e-4
    data.next_obs[:, 2] *= 1e-4
    with pytest.warns(UserWarning, match=r"^obs\[2\] vary by .*e-05|^obs\[2\] vary by 0.0001"):
        EnsembleDynamics(spec, EnsembleConfig(**SMALL)).fit(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EnsembleDynamics(spec, EnsembleConfig(**SMALL | {"target": "standardised"})).fit(data)
        EnsembleDynamics(spec, EnsembleConfig(**SMALL)).fit(linear_world(40)[1])


def test_residual_targets_leave_nothing_of_a_linear_world() -> None:
    spec, data = linear_world(1500)
    config = EnsembleConfig(**(SMALL | {"target": "residual"}))
    model = EnsembleDynamics(spec, config, seed=0)
    model.fit(data)
    _, test = linear_world(300, seed=9)
    mean, _ = model.members_predict(test.obs, test.action)
    torch.testing.assert_close(model.reached(test.obs, mean[0]), test.next_obs, atol=1e-5, rtol=0)
    again = EnsembleDynamics(spec, config, seed=1)
    again.load_state_dict(model.state_dict())
    member = torch.arange(len(test)) % 3
    one = model.chosen_predict(test.obs, test.action, member)
    other = again.chosen_predict(test.obs, test.action, member)
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_targets_in_units_of_the_residual() -> None:
    spec, data = linear_world(1500, noise=0.1)
    model = EnsembleDynamics(spec, EnsembleConfig(**(SMALL | {"target": "residual"})), seed=0)
    model.fit(data)
    # scipy's least squares leaves the same deviation: 0.1 of each change.
    x = np.c_[data.obs.numpy(), data.action.numpy(), np.ones(len(data))]
    y = (data.next_obs - data.obs).numpy()
    rest = y - x @ linalg.lstsq(x, y)[0]
    assert model.target_scale.std[:-1].numpy() == pytest.approx(rest.std(0), rel=1e-3)


@pytest.mark.long
def test_rewards_of_the_state_reached_are_sharper() -> None:
    """r = -log(|s'_0| + 0.01), a peak that an output of the dynamics blurs."""
    spec, data = linear_world(3000)
    errors = []
    for reward in ("joint", "reached"):
        peaked = replace(data, reward=-(data.next_obs[:, 0].abs() + 0.01).log())
        config = EnsembleConfig(**(SMALL | {"target": "residual", "reward": reward}))
        model = EnsembleDynamics(spec, config, seed=0)
        model.fit(peaked)
        rows = torch.zeros(len(data), dtype=torch.int64)
        guess = model.mean_step(data.obs, data.action, rows)[1]
        errors.append(float((guess - peaked.reward).square().mean().sqrt()))
    assert errors[1] < 0.5 * errors[0]


def test_derivatives_of_a_step_are_those_of_the_linear_world() -> None:
    spec, data = linear_world(1500)
    model = EnsembleDynamics(spec, EnsembleConfig(**(SMALL | {"target": "residual"})), seed=0)
    model.fit(data)
    action = data.action[:5].clone().requires_grad_()
    reached, _, _ = model.mean_step(data.obs[:5], action, torch.zeros(5, dtype=torch.int64))
    gradient = torch.autograd.grad(reached[:, 1].sum(), action)[0]
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.3]] * 5), atol=1e-3, rtol=0)
