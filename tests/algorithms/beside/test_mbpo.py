"""The growth of MBPO's rollouts against facebookresearch/mbrl-lib at 3f93ccc: the whole part of
`truncated_linear` (mbrl/util/math.py) with its schedules of Hopper and of Ant, in thousands of
steps."""

import pytest

from algorithms.mbpo import DynaConfig


@pytest.mark.parametrize(
    ("horizons", "growth", "steps", "expected"),
    [
        ((1, 15), (20, 150), [0, 20, 28, 29, 60, 111, 150, 200], [1, 1, 1, 1, 5, 10, 15, 15]),
        ((1, 25), (20, 100), [21, 50, 77, 99], [1, 10, 18, 24]),
    ],
)
def test_horizons(
    horizons: tuple[int, int], growth: tuple[int, int], steps: list[int], expected: list[int]
) -> None:
    config = DynaConfig(horizons=horizons, growth=growth)
    assert [config.horizon(step) for step in steps] == expected
