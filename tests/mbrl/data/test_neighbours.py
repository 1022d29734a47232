"""Nearest rows: as by all distances where they differ, random rows where they are equal."""

import numpy as np

from mbrl.data.neighbours import Neighbours


def test_distinct_rows_come_by_their_distance():
    rng = np.random.default_rng(0)
    places, asked = rng.normal(size=(300, 3)), rng.normal(size=(50, 3))
    apart = np.linalg.norm(asked[:, None] - places, axis=2)
    assert np.array_equal(Neighbours(places).nearest(asked, 7), apart.argsort(1)[:, :7])
    assert np.array_equal(Neighbours(places).nearest(asked, 1), apart.argsort(1)[:, :1])


def test_equal_rows_are_drawn_from_all_of_them_with_a_fixed_seed():
    places = np.eye(2)[np.arange(2000) % 2]
    asked = np.eye(2)[np.zeros(1000, int)]
    index = Neighbours(places).nearest(asked, 10)
    assert (index % 2 == 0).all()
    assert abs(index.mean() / 999 - 1) < 0.03
    assert len(np.unique(index)) > 900
    assert np.array_equal(index, Neighbours(places).nearest(asked, 10))
    # so too where all are equally far
    far = Neighbours(np.eye(3)[np.arange(2000) % 2]).nearest(np.eye(3)[np.full(1000, 2)], 10)
    assert 0.45 < (far % 2).mean() < 0.55
