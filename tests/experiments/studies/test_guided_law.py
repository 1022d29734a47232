"""The study of guidance in a linear world: its exact law, and what it finds small."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.studies import guided_law
from mbrl.errors import ConfigError


def study(**settings: Any) -> Any:
    values = guided_law.DEFAULTS | {"samples": 500} | settings
    return guided_law.measure(values, 0, Path())


@pytest.mark.parametrize("weight", [0.0, 0.7, 3.0])
def test_the_product_is_the_gaussian_with_both_precisions(weight: float) -> None:
    """Of the noise that makes a window, which has a density: its precision plus that of the
    policy's residuals, which are linear in it."""
    world = guided_law.LinearWorld()
    mean, covariance = world.product(weight)
    size = 1 + guided_law.LENGTH
    windows, residuals = [], []
    for index in range(size):
        noise = torch.eye(size)[index].double()
        s, window, residual = noise[0], [], []
        for t in range(guided_law.LENGTH):
            u = -0.3 * s + 0.4 * noise[1 + t]
            window += [s, u]
            residual.append((u + 0.2 * s) / 0.6)
            s = 0.8 * s + u
        windows.append(torch.stack(window))
        residuals.append(torch.stack(residual))
    into, seen = torch.stack(windows, 1), torch.stack(residuals, 1)
    precision = torch.eye(size).double() + weight * seen.T @ seen
    centre = torch.linalg.solve(precision, weight * seen.T @ torch.full((8,), 0.5 / 0.6).double())
    expected = into @ centre
    kept = [4 * t + k for t in range(guided_law.LENGTH) for k in (0, 1)]
    assert torch.allclose(mean[kept], expected)
    spread = into @ torch.linalg.inv(precision) @ into.T
    assert torch.allclose(covariance[kept][:, kept], spread)


def test_without_weight_samples_are_the_behaviour() -> None:
    for mode in ("paper", "score", "corrected"):
        curves = study(mode=mode).curves
        assert curves["weight"][0] == 0.0 and curves["exact"][0] == 0.0
        assert curves["bias"][0] < 0.25  # of a deviation; the Monte-Carlo error is 0.05
        assert curves["spread"][0] == pytest.approx(1.0, abs=0.1)


def test_exact_draws_err_by_chance_alone() -> None:
    """The largest of eight errors of means of 500 draws, each of deviation 1 / sqrt(500)."""
    chance = study(mode="score").curves["chance"]
    assert all(0.2 / 500**0.5 < c < 4.0 / 500**0.5 for c in chance)


@pytest.mark.long
def test_the_correctors_are_nearest_to_the_product() -> None:
    modes = ("paper", "score", "corrected")
    result = {mode: study(mode=mode, samples=3000).values for mode in modes}
    assert result["corrected"]["bias"] < result["score"]["bias"] < result["paper"]["bias"]
    assert result["paper"]["exact"] == result["score"]["exact"]


def test_samples_out_of_bounds_are_marked() -> None:
    curves = study(mode="paper", steps=64, samples=50).curves
    assert math.isnan(curves["mean"][-1]) and not math.isnan(curves["exact"][-1])


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    result = study(samples=50, steps=64)
    record = {"values": result.values, "curves": result.curves}
    rows = {"paper, 64 steps": [record, record], "score, 64 steps": [record]}
    files = guided_law.draw(rows, tmp_path, "-1")
    assert [f.name for f in files] == [
        "guided-mean-1.png",
        "guided-bias-1.png",
        "guided-spread-1.png",
    ]
    assert all(f.stat().st_size > 5000 and f.with_suffix(".csv").exists() for f in files)


@pytest.mark.parametrize(
    ("mode", "name"),
    [("corrected", "normalise"), ("corrected", "denoised"), ("score", "normalise")],
)
def test_settings_that_a_mode_does_not_read_are_refused(mode: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is True and mode '{mode}'"):
        study(**{"mode": mode, name: True})


@pytest.mark.parametrize("settings", [{"mode": "x"}, {"sampler": "x"}, {"steps": 0}])
def test_impossible_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        study(**settings)
