"""AGAIN: the choice of an expert, its curriculum, and when its next mixture comes."""

from typing import Any

import numpy as np
import pytest

from mbrl.errors import ConfigError, DataError

pytest.importorskip("sklearn")

from algorithms.curricula.again import (
    AGAIN,
    AGAINConfig,
    PastStudent,
    Stage,
    curriculum,
    expert_of,
)
from algorithms.curricula.alp_gmm import ALPGMM, ALPGMMConfig, Mixture


def at(place: float, progress: float = 1.0) -> Mixture:
    """One Gaussian without spread."""
    return Mixture(np.array([[place, progress]]), np.zeros((1, 2, 2)))


def student(early: float, final: float, stages: int = 3) -> PastStudent:
    known = [Stage(at(0.1 * (k + 1)), 0.5) for k in range(stages)]
    return PastStudent(np.array([early]), np.array([final]), known)


def teacher(variant: Any, past: list[PastStudent], **settings: Any) -> AGAIN:
    fixed: dict[str, Any] = {"later_random": 0.0, "last_random": 0.0, "fit_every": 20}
    config = AGAINConfig(variant=variant, components=(2,), **fixed | settings)
    return AGAIN([0.0], [1.0], past, config, seed=0)


def test_the_expert_is_the_best_of_the_nearest() -> None:
    past = [student(0.0, 5.0), student(0.4, 1.0), student(0.6, 2.0), student(1.0, 9.0)]
    tested = np.array([0.5])
    assert expert_of(past, tested, 2) is past[2]
    assert expert_of(past, tested, 4) is past[3]
    assert expert_of(past, np.array([0.1]), 1) is past[0]


def test_a_curriculum_leaves_out_gaussians_of_little_progress() -> None:
    taught = ALPGMM([0.0], [1.0], ALPGMMConfig(fit_every=4, components=(2,)))
    two = Mixture(np.array([[0.1, 0.5], [0.9, 0.1]]), np.zeros((2, 2, 2)))
    taught.mixtures, taught.fitted_at = [two, at(0.5, 0.05), two], [4, 8, 12]
    taught.rewards = [0.0] * 4 + [0.2, 0.4, 0.9, 0.6] + [0.0] * 4 + [0.3]
    taught.origins = [-1] * 4 + [0, 0, 1, -1] + [0] * 4 + [1]
    first, second = curriculum(taught, 0.2)  # the second mixture is left out
    assert first.mixture.means.tolist() == [[0.1, 0.5]] and first.reward == pytest.approx(0.3)
    assert second.reward == -np.inf  # no task of what is kept


def test_before_the_test_it_is_alp_gmm() -> None:
    ours = teacher("time", [student(0, 1)])
    plain = ALPGMM([0.0], [1.0], ours.config, seed=0)
    for _ in range(50):
        one, other = ours.sample(), plain.sample()
        assert np.array_equal(one, other)
        ours.update(one, float(one[0])), plain.update(other, float(other[0]))


def test_time_replays_the_mixtures_in_their_times() -> None:
    ours = teacher("time", [student(0, 1, stages=6)])
    for _ in range(10):
        ours.update(ours.sample(), 0.0)
    ours.test(np.array([0.0]))
    stages = []
    for _ in range(90):
        stages.append(ours.stage)
        ours.update(ours.sample(), 0.0)
    assert stages == [min((10 + k) // 20, 5) for k in range(90)]


def test_reward_goes_on_when_the_student_earns_what_the_expert_did() -> None:
    ours = teacher("reward", [student(0, 1)], rewards=3)
    ours.test(np.array([0.0]))
    for reward, stage in ((0.75, 0), (0.0, 0), (0.5, 0), (0.75, 0), (0.25, 1), (1.0, 1), (1.0, 1)):
        task = ours.sample()
        assert task[0] == pytest.approx(0.1 * (ours.stage + 1))
        ours.update(task, reward)
        assert ours.stage == stage
    ours.update(ours.sample(), 1.0)
    assert ours.stage == 2 and ours.at_the_end


def test_pool_has_all_gaussians_at_once() -> None:
    ours = teacher("pool", [student(0, 1)])
    ours.test(np.array([0.0]))
    tasks = {round(float(ours.sample()[0]), 6) for _ in range(60)}
    assert tasks == {0.1, 0.2, 0.3} and not ours.at_the_end


def test_progress_in_the_last_stage_is_estimated_anew() -> None:
    """All tasks are at one place, so that the nearest earlier one is the first."""
    ours = teacher("reward", [student(0, 1, stages=1)], fit_every=1000)
    ours.test(np.array([0.0]))
    rewards = np.random.default_rng(0).uniform(size=150)
    for count, reward in enumerate(rewards, 1):
        ours.update(ours.sample(), reward)
        assert ours.at_the_end and ours.from_expert and ours.mixture is not None
        now = ours.mixture.means[0, -1]
        progress = [0.0] * 6 + list(abs(rewards[6:100] - rewards[0]))
        assert now == pytest.approx(1.0 if count < 100 else np.mean(progress))


def test_a_teacher_goes_on_exactly() -> None:
    past = [student(0, 1, stages=2)]

    def teach(ours: AGAIN, begin: int, end: int) -> list[float]:
        tasks = []
        for k in range(begin, end):
            if k == 30:
                ours.test(np.array([0.0]))
            task = ours.sample()
            ours.update(task, (k % 7) / 7)
            tasks.append(float(task[0]))
        return tasks

    expected = teach(teacher("reward", past, rewards=5), 0, 400)[100:]
    first, again = (teacher("reward", past, rewards=5) for _ in range(2))
    teach(first, 0, 100)
    again.load_state_dict(first.state_dict())
    assert teach(again, 100, 400) == expected


def test_rewards_come_in_any_order() -> None:
    """Four tasks are sampled at a time, and their rewards come last one first."""
    ours = teacher("reward", [student(0, 1)], rewards=100, fit_every=20)
    different = 0
    for count in range(30):
        if count == 15:
            ours.test(np.array([0.0]))
        tasks = [ours.sample() for _ in range(4)]
        origins = [sampled.origin for sampled in ours.own.sampled]
        for task in reversed(tasks):
            ours.update(task.astype(np.float32), float(task[0]))
            assert ours.from_expert == (count >= 15 and task[0] == pytest.approx(0.1))
        if len({float(task[0]) for task in tasks}) == 4:
            different += len(set(origins)) > 1
            assert ours.own.origins[-4:] == origins[::-1]
    assert different > 3 and not ours.own.sampled and len(ours.own.origins) == 120
    ours.update(np.array([0.1]), 1.0)  # nobody's draw
    assert not ours.from_expert and ours.own.origins[-1] == -1


def test_without_any_curriculum() -> None:
    with pytest.raises(ConfigError, match="lower least_progress"):
        teacher("pool", [student(0, 1, stages=0)])


def test_students_of_other_tasks_or_tests_are_refused() -> None:
    with pytest.raises(ConfigError, match="tasks have 1 numbers, those of this teacher 2"):
        AGAIN([0.0, 0.0], [1.0, 1.0], [student(0, 1)], AGAINConfig(variant="pool"))
    ours = teacher("pool", [student(0, 1)])
    for competences in ([0.0, 1.0], [np.nan]):
        with pytest.raises(DataError, match="give 1 finite numbers"):
            ours.test(np.array(competences))
    for task, reward, text in (
        ([0.5, 0.5], 0.1, r"task has shape \(2,\)"),
        ([0.5], np.nan, "must be finite"),
        ([np.nan], 0.1, "must be finite"),
    ):
        with pytest.raises(DataError, match=text):
            ours.update(np.array(task), reward)


def test_an_expert_needs_stages() -> None:
    with pytest.raises(DataError, match="expert has no stages"):
        teacher("reward", [student(0.0, 5.0)]).test(np.array([0.5]), student(1.0, 9.0, stages=0))
