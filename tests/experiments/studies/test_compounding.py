"""The study of compounding errors: open-loop errors against a loop over windows, a tiny table."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.studies import compounding
from mbrl import data
from mbrl.errors import ConfigError, DataError
from world_models import EnsembleConfig, EnsembleDynamics


def small(layer_norm: bool = True) -> EnsembleDynamics:
    dataset = data.load("pendulum/medium")
    config = EnsembleConfig(
        members=3, elites=2, hidden=(8,), layer_norm=layer_norm, target="standardised",
        weight_decay=(1e-5,), min_epochs=1, max_epochs=2,
    )  # fmt: skip
    model = EnsembleDynamics(dataset.spec, config)
    model.fit(dataset.transitions)
    return model


def test_open_loop_errors_are_those_of_single_windows() -> None:
    model, test = small(), data.load("pendulum/random").transitions
    result, levels = compounding.open_loop(model, test, 5, 4, seed=1)
    starts = compounding.window_starts(test, 5)
    chosen = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(1))[:4]]
    for window, start in enumerate(chosen.tolist()):
        obs = test.obs[start : start + 1]
        for t in range(5):
            level = model.disagreement(
                obs, test.action[start + t : start + t + 1], "epistemic_mean"
            )
            assert levels[t, window] == pytest.approx(float(level), rel=1e-3)
            mean, _ = model.members_predict(obs, test.action[start + t : start + t + 1])
            obs = obs + mean[window % 2, :, :-1] * model.obs_normaliser.std
            gap = (obs - test.next_obs[start + t]) / model.obs_normaliser.std
            expected = float(gap.double().square().mean().sqrt())
            assert result[t, window] == pytest.approx(expected, rel=1e-3)


def test_every_member_predicts_every_window_with_its_own_noise() -> None:
    """By a loop over windows and members, with the same draws."""
    model, test = small(), data.load("pendulum/random").transitions
    result, _ = compounding.open_loop(model, test, 3, 2, seed=1, noise=True, every_member=True)
    assert result.shape == (3, 4)
    generator = torch.Generator().manual_seed(1)
    starts = compounding.window_starts(test, 3)
    chosen = starts[torch.randperm(len(starts), generator=generator)[:2]].tolist()
    draws = [torch.randn((4, 4), generator=generator) for _ in range(3)]
    for column in range(4):
        start, member = chosen[column // 2], column % 2
        obs = test.obs[start : start + 1]
        for t in range(3):
            row = start + t
            mean, variance = model.members_predict(obs, test.action[row : row + 1])
            y = mean[member] + variance[member].sqrt() * draws[t][column]
            obs = obs + y[:, :-1] * model.obs_normaliser.std
            gap = (obs - test.next_obs[row]) / model.obs_normaliser.std
            expected = float(gap.double().square().mean().sqrt())
            assert result[t, column] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_the_exponent_is_that_of_a_power_law(power: float) -> None:
    errors = 0.02 * np.arange(1.0, 501.0) ** power
    errors[:40] = 7.0  # before the last nine tenths
    assert compounding.growth(errors) == pytest.approx(power)
    assert np.isnan(compounding.growth(errors[:1]))  # a line needs two points


def test_an_explosion_is_shown_as_the_largest_error() -> None:
    model, test = small(), data.load("pendulum/random").transitions
    with torch.no_grad():
        for bias in model.network.mlp.biases:
            bias.fill_(1e25)
    result, levels = compounding.open_loop(model, test, 5, 4, seed=1)
    assert (
        np.isfinite(levels).all()
        and np.isfinite(result).all()
        and result.max() == compounding.LARGEST
    )


def test_a_tiny_measurement(tmp_path: Path) -> None:
    settings = compounding.DEFAULTS | {
        "train": "pendulum/medium", "test": "pendulum/random", "members": 5, "epochs": 1,
        "steps": 20, "windows": 5,
    }  # fmt: skip
    result = compounding.measure(settings, 0, tmp_path)
    assert result.values["error_1"] < result.values["error_end"]
    assert result.values["exploded"] == 0 and np.isfinite(result.values["exponent"])
    assert -1 <= result.values["along"] <= 1 and result.values["along"] != result.values["spearman"]
    assert len(result.curves["step"]) == len(result.curves["median"])
    record = {"key": {"seed": 0}, "values": result.values, "curves": result.curves}
    (file,) = compounding.draw({"pendulum, LayerNorm": [record]}, tmp_path, "-2")
    assert file.name == "compounding-2.png" and file.with_suffix(".csv").exists()
    with pytest.raises(DataError, match="no episode"):
        compounding.measure(settings | {"steps": 10_000}, 0, tmp_path)
    with pytest.raises(ConfigError, match="depth"):
        compounding.measure(settings | {"model": {"depth": 3}}, 0, tmp_path / "other")


def test_a_fit_in_a_folder_is_a_fit_in_memory(tmp_path: Path) -> None:
    """Without a gain that counts the last weights are kept, and no epoch is left out."""
    model = {"hidden": [8], "weight_decay": [1e-5], "min_gain": -1e9, "patience": 1}
    settings = compounding.DEFAULTS | {
        "train": "pendulum/medium", "members": 3, "epochs": 4, "model": model,
    }  # fmt: skip
    made = compounding.fitted(settings, 2, tmp_path / "model")
    dataset = data.load("pendulum/medium")
    plain = EnsembleDynamics(dataset.spec, made.config, seed=2)
    epochs: list[float] = []
    plain.fit(dataset.transitions, lambda metrics: epochs.append(float(metrics["model/epoch"])))
    assert epochs == [1, 2, 3, 4] and made.config.hidden == (8,)
    for a, b in zip(made.network.parameters(), plain.network.parameters(), strict=True):
        assert torch.equal(a, b)
