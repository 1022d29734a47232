"""The out-of-data score against what it says it is: a distance over a quantile."""

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from mbrl.data.out_of_data import OutOfData, cluster_means, fit_out_of_data
from mbrl.errors import DataError
from mbrl.types import Dataset, Spec, Transitions


def dataset(obs: torch.Tensor, length: int = 20) -> Dataset:
    ends = torch.arange(len(obs)) % length == length - 1
    rows = len(obs)
    data = Transitions(obs, torch.zeros(rows, 1), torch.zeros(rows), obs, ends & False, ends)
    return Dataset(data, Spec("test", obs.shape[1], 1, None, (-1.0,), (1.0,)))


def normal(rows: int, seed: int, columns: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * torch.tensor([1.0, 50.0, 0.01, 3.0])


def test_the_score_is_the_distance_to_the_nearest_prototype() -> None:
    """Against a tree search of scipy."""
    score = fit_out_of_data(dataset(normal(4000, 0)))
    obs = normal(300, 1) * 3
    tree = cKDTree(score.prototypes.numpy())
    standard = ((obs.double() - score.mean) / score.scale).numpy()
    expected = tree.query(standard)[0] / float(score.edge)
    np.testing.assert_allclose(score(obs).numpy(), expected, rtol=1e-5)


def test_one_percent_of_fresh_rows_is_outside_and_far_ones_all_are() -> None:
    score = fit_out_of_data(dataset(normal(8000, 0)))
    assert len(score.prototypes) == 512
    fresh = (score(normal(20_000, 7)) > 1).float().mean()
    assert 0.005 < fresh < 0.02
    assert score(normal(1000, 8) + torch.tensor([8.0, 400.0, 0.08, 24.0])).min() > 2


def test_a_shift_of_a_single_small_column_is_seen() -> None:
    """Columns count by their own spread, not by their size."""
    score = fit_out_of_data(dataset(normal(8000, 0)))
    shifted = normal(1000, 9) + torch.tensor([0.0, 0.0, 0.1, 0.0])
    assert (score(shifted) > 1).float().mean() > 0.99


def test_a_column_that_never_varied_and_now_does() -> None:
    obs = normal(2000, 0)
    obs[:, 3] = 5.0
    score = fit_out_of_data(dataset(obs))
    assert (score(obs) > 1).float().mean() < 0.03
    obs[:, 3] = 5.5
    assert score(obs).min() > 1


def test_what_is_no_number_is_outside() -> None:
    score = fit_out_of_data(dataset(normal(400, 0)))
    obs = normal(4, 1)
    obs[0, 1], obs[1, 3], obs[2, 0] = torch.nan, torch.inf, -torch.inf
    assert torch.isinf(score(obs)).tolist() == [True, True, True, False]


def test_few_rows_and_one_episode() -> None:
    score = fit_out_of_data(dataset(normal(40, 0), length=1000))
    assert torch.isfinite(score(normal(10, 1))).all()
    with pytest.raises(DataError, match="needs 10"):
        fit_out_of_data(dataset(normal(9, 0)))


def test_cluster_means_of_separate_clouds() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], dtype=torch.double)
    rows = centres.repeat(50, 1) + 0.1 * torch.randn(150, 2, generator=generator).double()
    means = cluster_means(rows, 3, generator)
    expected = torch.stack([rows[i::3].mean(0) for i in range(3)])
    order = torch.cdist(expected, means).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    torch.testing.assert_close(means[order], expected)
    same = cluster_means(torch.ones(5, 2).double(), 4, generator)
    assert len(same) == 1  # there is nothing else to stand for


def test_equal_rows() -> None:
    score = fit_out_of_data(dataset(torch.ones(100, 4)))
    assert isinstance(score, OutOfData) and float(score(torch.ones(1, 4))) == 0.0


@pytest.mark.parametrize("unit", [1.0, 1e-3, 2.0**-18])
def test_a_constant_in_any_unit_that_doubles_is_seen(unit: float) -> None:
    rows = torch.cat([normal(2000, 0), torch.full((2000, 1), unit)], 1)
    score = fit_out_of_data(dataset(rows))
    changed = rows[:50].clone()
    assert score(changed).max() < 5
    changed[:, -1] *= 2
    assert score(changed).min() > 100
