"""f-DVL's value losses: where their minima lie, in closed form, and what is refused."""

from typing import Any

import pytest
import torch
from scipy import optimize

from algorithms.f_dvl import critic_loss, value_loss
from experiments.settings import build_config
from mbrl.errors import ConfigError

D = torch.float64


def minimum(q: torch.Tensor, divergence: Any, alpha: float, **form: Any) -> float:
    best = optimize.minimize_scalar(
        lambda v: float(value_loss(q - v, divergence, alpha, **form)),
        bounds=(float(q.min()) - 1, float(q.max()) + 1),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(best.x)


@pytest.mark.parametrize(("alpha", "quantile"), [(0.8, 0.75), (0.6, 1 / 3), (1 / 1.1, 0.9)])
def test_total_variation_is_a_quantile(alpha: float, quantile: float) -> None:
    """P(Q > V) = (1 - alpha) / alpha."""
    q = torch.linspace(0, 1, 100_001, dtype=D)
    assert minimum(q, "total_variation", alpha) == pytest.approx(quantile, abs=1e-4)


def test_chi_square_in_closed_form() -> None:
    """Q of 0 or 1 with equal odds: alpha (1 + (1 / 2 - V) / 2) = 1 - alpha while both are above
    V - 2; the authors' form leaves the lower one out: alpha (1 + (1 - V) / 2) / 2 = 1 - alpha."""
    q = torch.tensor([0.0, 1.0], dtype=D)
    for alpha in (0.45, 0.6):
        expected = 0.5 - 2 * ((1 - alpha) / alpha - 1)
        assert minimum(q, "chi_square", alpha) == pytest.approx(expected, abs=1e-5)
    assert minimum(q, "chi_square", 0.6, authors_form=True) == pytest.approx(1 / 3, abs=1e-5)


def test_authors_form_rises_again_and_is_flat_at_one() -> None:
    u = torch.tensor([-8.0, -4.0, -2.0, 0.0, 2.0], dtype=D)
    got = [float(value_loss(x[None], "chi_square", 1.0, True)) for x in u]
    assert got == pytest.approx([8.0, 0.0, 0.0, 0.0, 3.0])
    got = [float(value_loss(x[None], "chi_square", 0.5)) for x in u]
    assert got == pytest.approx([-0.5 + 4, -0.5 + 2, -0.5 + 1, 0.0, 1.5 - 1])


def test_critics_loss() -> None:
    q, target = torch.tensor([[0.0, 30.0], [1.0, 0.0]]), torch.zeros(2)
    assert float(critic_loss(q, target, 20.0)) == pytest.approx((20 * 30 - 200) / 2 + 0.25)
    assert float(critic_loss(q, target, None)) == pytest.approx(225 + 0.25)
    with pytest.raises(ValueError, match="shapes do not fit together"):
        critic_loss(q, target[:, None], None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": 0.5}, "alpha is 0.5 with total_variation"),
        ({"alpha": 1.0, "divergence": "chi_square"}, "alpha is 1 with chi_square"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"divergence": "kl"}, "divergence is 'kl'"),
    ],
)
def test_settings_without_a_minimum_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config("f_dvl", values)
