"""HECRL's choice of a subgoal against the authors' code: DanHrmti/HECRL at 4ea7ce5, `SGIQL.act`
(agents/sgiql.py) with six samples whose values from the state are normal(190, 6) and to the goal
normal(191, 6) - 1, for four pairs of the state's own value and the radius.
"""

import pytest
import torch

from algorithms.hecrl import chosen
from tests.algorithms.beside.inputs import normal


@pytest.mark.parametrize(
    ("direct", "radius", "index"),
    [(-3.0, -1.0, 2), (3.0, -1.0, None), (-3.0, 2.5, None), (-3.0, 0.3, 1)],
)
def test_subgoal(direct: float, radius: float, index: int | None) -> None:
    near, value = torch.as_tensor(normal(190, 6, 1)), torch.as_tensor(normal(191, 6, 1) - 1)
    best, instead = chosen(near, value, torch.tensor([direct], dtype=torch.float64), radius)
    assert bool(instead) == (index is None)
    if index is not None:
        assert int(best) == index
