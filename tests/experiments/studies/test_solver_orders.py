"""The studies of solvers where the flow is known: orders, and searched schedules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate

from experiments.studies import schedule_search, solver_orders
from experiments.studies.guided_law import LENGTH, LinearWorld
from experiments.tables import plan
from mbrl.errors import ConfigError


def orders(**settings: Any) -> Any:
    values = solver_orders.DEFAULTS | {"samples": 10} | settings
    return solver_orders.measure(values, 0, Path())


def test_the_flow_is_that_of_a_fine_integration() -> None:
    """dx / d sigma = (x - D(x; sigma)) / sigma, of one window."""
    world = LinearWorld()
    x = 10.0 * torch.randn(1, LENGTH, 4, generator=torch.Generator().manual_seed(1)).double()

    def slope(sigma: float, y: np.ndarray) -> np.ndarray:
        at = torch.tensor(y).view(1, LENGTH, 4)
        away = (at - world.denoise(at, torch.tensor([sigma]).double())) / sigma
        return away.flatten().numpy()

    done = integrate.solve_ivp(slope, (10.0, 0.3), x.flatten().numpy(), rtol=1e-9, atol=1e-9)
    result = solver_orders.flow(world, x, 10.0, 0.3)
    assert result.flatten().numpy() == pytest.approx(done.y[:, -1], abs=1e-6)


@pytest.mark.parametrize(
    ("sampler", "start", "order"),
    [
        ("euler", "lower_order", 1.0),
        ("heun", "lower_order", 2.0),
        ("deis_2", "runge_kutta", 3.0),
        ("deis", "runge_kutta", 4.0),
        ("dpm_solver_pp_3", "lower_order", 3.0),
    ],
)
def test_the_fitted_order_is_the_methods(sampler: str, start: str, order: float) -> None:
    result = orders(sampler=sampler, start=start)
    assert result.values["order"] == order
    assert result.values["fitted"] == pytest.approx(order, abs=0.35)
    errors = result.curves["error"]
    slope = np.polyfit(np.log([40, 80, 160]), np.log(errors[-3:]), 1)[0]
    assert result.values["fitted"] == pytest.approx(-slope, rel=1e-2)
    assert result.values["error_20"] == errors[1] and result.values["error_160"] == errors[4]


def test_the_mixtures_denoiser_is_the_posterior_mean() -> None:
    """By quadrature over the plane."""
    x, sigma = torch.tensor([[0.4, 0.1]]).double(), torch.tensor([0.5]).double()
    grid = torch.linspace(-3, 4, 1401).double()
    points = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).view(-1, 2)
    away = torch.cdist(points, schedule_search.CENTRES).square() / schedule_search.DEVIATION**2
    prior = torch.exp(-0.5 * away).sum(1)
    weight = prior * torch.exp(-0.5 * (points - x).square().sum(1) / sigma**2)
    expected = (weight[:, None] * points).sum(0) / weight.sum()
    assert torch.allclose(schedule_search.denoise(x, sigma)[0], expected, atol=1e-5)


def test_a_small_search_is_judged_on_other_noise(tmp_path: Path) -> None:
    settings = schedule_search.DEFAULTS | {"evaluations": 3, "samples": 16, "judged": 40}
    result = schedule_search.measure(settings | {"rounds": 2}, 0, tmp_path)
    assert set(result.values) == {"searched", *schedule_search.PLAIN}
    assert result.values["searched"] < result.values["ddim"]
    assert all(len(curve) == 3 for curve in result.curves.values())
    assert result.curves["level"][0] == result.curves["edm"][0] == 20.0
    assert result.curves["order"][0] == 1.0  # there is one evaluation at first
    record = {"values": result.values, "curves": result.curves}
    files = schedule_search.draw({"3 evaluations": [record, record]}, tmp_path, "-2")
    assert [f.name for f in files] == ["schedules-2.png", "choices-2.png"]
    assert all(f.exists() and f.with_suffix(".csv").exists() for f in files)


def test_the_figure_of_orders_is_drawn(tmp_path: Path) -> None:
    result = orders(sampler="heun")
    record = {"values": result.values, "curves": result.curves}
    (file,) = solver_orders.draw({"one step, Heun": [record]}, tmp_path, "")
    assert file.name == "orders.png" and file.exists()


def test_the_table_asks_for_what_there_is() -> None:
    first, second = plan.load("solvers").blocks
    assert first.study == "solver_orders" and second.study == "schedule_search"
    assert {c.label for c in second.columns} == {"searched", *schedule_search.PLAIN}
    assert {row.seconds for block in (first, second) for row in block.rows} == {60}


@pytest.mark.parametrize("settings", [{"sampler": "churn"}, {"start": "x"}, {"samples": 0}])
def test_impossible_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        orders(**settings)
    with pytest.raises(ConfigError, match="rounds is 0"):
        schedule_search.measure(schedule_search.DEFAULTS | {"rounds": 0}, 0, Path())
