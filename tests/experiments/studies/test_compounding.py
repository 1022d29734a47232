"""The study of compounding errors: open-loop errors against a loop over windows, a tiny table."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.studies import compounding
from mbrl import data
from mbrl.errors import DataError
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
    assert -1 <= result.values["along"] <= 1 and result.values["along"] != result.values["spearman"]
    assert len(result.curves["step"]) == len(result.curves["median"])
    record = {"key": {"seed": 0}, "values": result.values, "curves": result.curves}
    (file,) = compounding.draw({"pendulum, LayerNorm": [record]}, tmp_path, "-2")
    assert file.name == "compounding-2.png" and file.with_suffix(".csv").exists()
    with pytest.raises(DataError, match="no episode"):
        compounding.measure(settings | {"steps": 10_000}, 0, tmp_path)
