"""Rows whose observations are nearest, where many may be equal (counts, categories, one-hot)."""

import numpy as np

TIE = 1e-5  # deviations: what lies as near as this counts as equally near


class Neighbours:
    """The nearest of `places` [N, S], observations in units of their deviation (float64). Equally
    near ones come in an order that is drawn anew for every query with a fixed seed: a tree alone
    gives the same few of them at each query, by their order in the log."""

    def __init__(self, places: np.ndarray) -> None:
        from scipy.spatial import cKDTree  # here, as it takes long to import

        self._generator = np.random.default_rng(0)
        self._tree = cKDTree(self._apart(places))

    def nearest(self, places: np.ndarray, count: int) -> np.ndarray:
        """Rows [M, count] of those nearest to `places` [M, S], the nearest first; `count` is from 1
        to N."""
        index = self._tree.query(self._apart(places), k=count)[1]
        return np.asarray(index).reshape(len(places), count)

    def _apart(self, places: np.ndarray) -> np.ndarray:
        """With one more column: equal rows lie apart in it, others stay as near as they were."""
        return np.column_stack([places, TIE * self._generator.random(len(places))])
