"""ALP-GMM: progress against a tree of neighbours, where tasks are drawn, going on exactly."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from mbrl.errors import ConfigError

pytest.importorskip("sklearn")

from algorithms.curricula.alp_gmm import ALPGMM, ALPGMMConfig, Mixture

SMALL = ALPGMMConfig(fit_every=50, components=(2, 3), random_share=0.2)


def test_progress_is_the_change_since_the_nearest_earlier_task() -> None:
    teacher, draws = ALPGMM([0, 0], [1, 1], SMALL), np.random.default_rng(0)
    tasks, rewards = draws.uniform(size=(40, 2)), draws.uniform(size=40)
    for task, reward in zip(tasks, rewards, strict=True):
        teacher.update(task, reward)
    for k in range(40):
        if k <= 5:
            assert teacher.progress[k] == 0.0
            continue
        _, nearest = cKDTree(tasks[:k]).query(tasks[k])
        assert teacher.progress[k] == pytest.approx(abs(rewards[k] - rewards[nearest]))


def test_the_first_tasks_are_uniform_and_a_constant_reward_leaves_all_gaussians_alike() -> None:
    teacher = ALPGMM([-1, 0], [1, 4], SMALL, seed=3)
    for _ in range(150):
        task = teacher.sample()
        assert (task >= [-1, 0]).all() and (task <= [1, 4]).all()
        teacher.update(task, 0.5)
    assert teacher.origins[:50] == [-1] * 50 and set(teacher.origins[50:]) > {-1}
    assert teacher.fitted_at == [50, 100, 150]
    mixture = Mixture(np.array([[0.2, 0.0], [0.8, 0.0]]), np.zeros((2, 2, 2)))
    draws = np.random.default_rng(0)
    drawn = [mixture.sample(np.zeros(1), np.ones(1), draws)[1] for _ in range(400)]
    assert 150 < sum(drawn) < 250


def test_a_gaussian_is_drawn_in_proportion_to_its_progress() -> None:
    means = np.array([[0.2, 0.1], [0.8, 0.3], [2.0, 0.0]])
    mixture, draws = Mixture(means, np.zeros((3, 2, 2))), np.random.default_rng(0)
    tasks = np.array([mixture.sample(np.zeros(1), np.ones(1), draws)[0][0] for _ in range(4000)])
    assert set(tasks.round(6)) == {0.2, 0.8}
    assert abs((tasks > 0.5).mean() - 0.75) < 4 * (0.75 * 0.25 / 4000) ** 0.5


def test_tasks_come_from_where_rewards_change() -> None:
    teacher, practised = ALPGMM([0, 0], [1, 1], ALPGMMConfig(fit_every=100), seed=1), 0
    chosen = []
    for _ in range(700):
        task = teacher.sample()
        practised += task[0] < 0.5
        teacher.update(task, min(1.0, practised / 400) if task[0] < 0.5 else 0.0)
        chosen.append(task[0] < 0.5)
    assert np.mean(chosen[400:]) > 0.7


def test_the_mixture_has_the_least_aic() -> None:
    from sklearn.mixture import GaussianMixture

    teacher, draws = ALPGMM([0], [1], ALPGMMConfig(fit_every=100, components=(2, 3, 8))), []
    for task in np.random.default_rng(0).choice([0.1, 0.5, 0.9], 100)[:, None]:
        task = task + 0.01 * np.random.default_rng(len(draws)).normal(size=1)
        draws.append(task)
        teacher.update(task, float(task[0]))
    rows = np.column_stack([np.stack(draws), teacher.progress])
    fits = [GaussianMixture(k, random_state=0).fit(rows) for k in (2, 3, 8)]
    best = min(fits, key=lambda fit: fit.aic(rows))
    assert teacher.mixture is not None
    assert np.array_equal(teacher.mixture.means, best.means_)
    assert len(best.means_) != len(max(fits, key=lambda fit: fit.aic(rows)).means_)


def test_a_teacher_goes_on_exactly() -> None:
    whole, first = (ALPGMM([0], [1], SMALL, seed=4) for _ in range(2))

    def teach(teacher: ALPGMM, count: int) -> list[float]:
        tasks = []
        for _ in range(count):
            task = teacher.sample()
            teacher.update(task, float(task[0]) ** len(teacher.mixtures))
            tasks.append(float(task[0]))
        return tasks

    expected = teach(whole, 230)[120:]
    teach(first, 120)
    again = ALPGMM([0], [1], SMALL, seed=4)
    again.load_state_dict(first.state_dict())
    assert teach(again, 110) == expected


def test_a_teacher_of_another_seed_goes_on_exactly_and_of_another_box_is_refused() -> None:
    first = ALPGMM([0], [1], SMALL, seed=4)
    again = ALPGMM([0], [1], SMALL)
    for _ in range(30):
        first.update(first.sample(), 0.5)
    again.load_state_dict(first.state_dict())
    for teacher in (first, again):
        for k in range(20):
            teacher.update(np.array([(k % 7) / 7]), (k % 3) / 3)
    assert first.mixture is not None and again.mixture is not None
    assert np.array_equal(again.mixture.means, first.mixture.means)
    for low, high in (([0], [2]), ([0, 0], [1, 1])):
        with pytest.raises(ConfigError, match=r"state is of tasks between \[0.0\] and \[1.0\]"):
            ALPGMM(low, high, SMALL).load_state_dict(first.state_dict())
    with pytest.raises(ConfigError, match="other settings: components, fit_every"):
        ALPGMM([0], [1], ALPGMMConfig(fit_every=20, components=(2,))).load_state_dict(
            first.state_dict()
        )


@pytest.mark.parametrize(("width", "low"), [(2.0**-20, 0.0), (2.0**20, -(2.0**20))])
def test_tasks_are_the_same_in_every_unit(width: float, low: float) -> None:
    plain = ALPGMM([0, 0], [1, 1], SMALL, seed=1)
    other = ALPGMM([low, 0], [low + width, 1], SMALL, seed=1)
    for _ in range(150):
        task, same = plain.sample(), other.sample()
        assert (same[0] - low) / width == pytest.approx(task[0], abs=1e-6)
        reward = float(task[0] < 0.5) * len(plain.mixtures) / 4
        plain.update(task, reward), other.update(same, reward)
    assert set(plain.origins) > {-1}


@pytest.mark.parametrize(("low", "high"), [([0, 0], [1]), ([0], [0]), (0.0, 1.0)])
def test_wrong_bounds(low: object, high: object) -> None:
    with pytest.raises(ConfigError, match="every low below its high"):
        ALPGMM(low, high)


@pytest.mark.parametrize("components", [(), (2, 9)])
def test_more_gaussians_than_tasks_are_refused(components: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="fit_every 8; a mixture of k Gaussians needs k tasks"):
        ALPGMMConfig(fit_every=8, components=components)
