"""ALP-GMM against flowersteam/TeachMyAgent at ce15344, `ALPGMM.episodic_update`
(TeachMyAgent/teachers/algos/alp_gmm.py): 60 tasks 1 / (1 + exp(-normal(130, 60, 2))), rewards
1 / (1 + exp(-normal(131, 60))) times 1.3 where the first number is above 0.5, else 0.3; a fit at
the end with 2 to 4 Gaussians and seed 7 (scikit-learn 1.9.1).

Hypervolumes against pymoo 0.6.2, `HV`: points exp(0.5 normal(141, 9, 2)),
exp(0.5 normal(140, 12, 3)) and exp(0.5 normal(142, 10, 4)) above (0.2, 0.3, 0.1, 0.4)."""

import numpy as np
import pytest

from algorithms.curricula.alp_gmm import ALPGMM, ALPGMMConfig
from algorithms.objectives.indicators import hypervolume, non_dominated
from tests.algorithms.beside.inputs import digest, normal


def test_learning_progress_and_the_choice_of_a_mixture() -> None:
    pytest.importorskip("sklearn")
    config = ALPGMMConfig(fit_every=60, components=(2, 3, 4))
    teacher = ALPGMM([0.0, 0.0], [1.0, 1.0], config, seed=7)
    tasks = 1 / (1 + np.exp(-normal(130, 60, 2)))
    rewards = 1 / (1 + np.exp(-normal(131, 60))) * (0.3 + (tasks[:, 0] > 0.5))
    for task, reward in zip(tasks, rewards, strict=True):
        teacher.update(task, float(reward))
    assert digest([np.array(teacher.progress)]) == pytest.approx(0.2407790543, rel=1e-8)
    assert teacher.mixture is not None
    progress = np.sort(teacher.mixture.means[:, -1])
    assert progress == pytest.approx([0.06166321419, 0.2118037175, 0.542373412], rel=1e-4)


@pytest.mark.parametrize(
    ("seed", "count", "objectives", "volume"),
    [(141, 9, 2, 1.971212306), (140, 12, 3, 4.988696872), (142, 10, 4, 2.69958252)],
)
def test_hypervolume(seed: int, count: int, objectives: int, volume: float) -> None:
    points = np.exp(0.5 * normal(seed, count, objectives))
    reference = np.array([0.2, 0.3, 0.1, 0.4])[:objectives]
    assert hypervolume(points, reference) == pytest.approx(volume, rel=1e-8)


def test_front() -> None:
    points = np.exp(0.5 * normal(140, 12, 3))
    expected = points[[0, 1, 8]]
    assert non_dominated(points) == pytest.approx(expected[np.argsort(expected[:, 0])])
