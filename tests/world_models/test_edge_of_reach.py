"""The nearest-neighbour measure of reach, against scipy's tree and known laws."""

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from world_models import edge_of_reach as reach


def test_nearest_distance_is_that_of_a_tree() -> None:
    rng = np.random.default_rng(0)
    points, reference = rng.normal(size=(2500, 4)), rng.normal(size=(300, 4))
    found = reach.nearest_distance(torch.from_numpy(points), torch.from_numpy(reference))
    np.testing.assert_allclose(found.numpy(), cKDTree(reference).query(points)[0], atol=1e-7)


def test_states_like_the_trained_ones_are_rarely_outside() -> None:
    generator = torch.Generator().manual_seed(1)
    shares = []
    for _ in range(20):
        draw = torch.randn(2000, 3, generator=generator)
        shares.append(float(reach.outside(draw[:1000], draw[1000:]).double().mean()))
    assert np.mean(shares) == pytest.approx(reach.SHARE, abs=0.005)


def test_states_beyond_are_outside_whatever_the_units() -> None:
    generator = torch.Generator().manual_seed(2)
    trained = torch.rand(1000, 2, generator=generator) * torch.tensor([1.0, 1000.0])
    ends = torch.tensor([[0.5, 500.0], [1.5, 500.0], [0.5, 1500.0]])
    assert reach.outside(ends, trained).tolist() == [False, True, True]


def test_a_constant_coordinate_does_not_break_it() -> None:
    trained = torch.cat([torch.rand(100, 1), torch.ones(100, 1)], 1)
    assert not reach.outside(trained[:5], trained).any()


def test_too_few_states() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        reach.outside(torch.zeros(2, 1), torch.zeros(3, 1))


def test_states_far_from_0_are_outside_as_those_around_it() -> None:
    """Such as temperatures in Kelvin, or counters."""
    generator = torch.Generator().manual_seed(0)
    trained, ends = torch.rand(2, 1000, 2, generator=generator)
    ends[:500, 0] += 1.25
    offset = torch.tensor([2**12, 0.0])
    mask = reach.outside(ends + offset, trained + offset)
    assert bool(mask[:500].all()) and float(mask[500:].double().mean()) < 0.05
