"""Standardised columns, by hand."""

import pytest
import torch

from mbrl.networks.normaliser import Normaliser


@pytest.mark.parametrize("unit", [1.0, 1e-4, 1e-6])
def test_small_units_are_seen(unit: float) -> None:
    """Deviation 1 in every unit: what is added to it is at most as much again."""
    values = unit * torch.tensor([[-1.0], [1.0], [-1.0], [1.0]])
    normalise = Normaliser(1)
    normalise.fit(values, eps=1e-3)
    expected = 1 / 1.001 if unit == 1 else 0.5
    assert normalise(values)[:, 0].tolist() == pytest.approx([-expected, expected] * 2, rel=1e-5)


def test_a_constant_keeps_its_unit() -> None:
    normalise = Normaliser(1)
    normalise.fit(torch.full((5, 1), 36.6), eps=1e-3)
    assert normalise(torch.tensor([[37.6]])).item() == pytest.approx(1.0, rel=1e-5)
