"""The analytic experts reach the returns that the reference table gives them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.tasks import TASKS, make
from mbrl.tasks.experts import EXPERTS, Policy, expert, lqr_gain
from mbrl.tasks.references import REFERENCE_RETURNS


def returns(task_id: str, policy: Policy, count: int, seed: int) -> Tensor:
    """[count] undiscounted returns of whole episodes, run side by side."""
    task = make(task_id)
    state = task.reset(count, torch.Generator().manual_seed(seed))
    total, live = torch.zeros(count, dtype=torch.float64), torch.arange(count)
    for _ in range(task.spec.max_episode_steps or 0):
        step = task.step(state, policy(task.observe(state)))
        total[live] += step.reward.double()
        live, state = live[~step.terminated], step.state[~step.terminated]
        if not len(live):
            break
    return total


# (task, episodes, allowed distance of the mean from the reference: about four standard errors)
CASES = [
    ("Pendulum-v1", 300, 18.0),
    ("CartPole-v1", 100, 0.0),
    ("MountainCar-v0", 100, 2.0),
    ("MountainCarContinuous-v0", 100, 0.2),
    ("Acrobot-v1", 300, 12.0),
    ("CartPoleSwingUp-v0", 100, 2.0),
    ("InvertedPendulum-v5", 20, 0.0),
    ("InvertedDoublePendulum-v5", 10, 0.5),
    ("Reacher-v4", 300, 0.4),
    ("Reacher-v5", 300, 0.4),
]


@pytest.mark.parametrize(("task_id", "count", "tolerance"), CASES)
def test_expert_reaches_its_reference(task_id: str, count: int, tolerance: float) -> None:
    score = returns(task_id, expert(task_id), count, seed=21)
    assert abs(float(score.mean()) - REFERENCE_RETURNS[task_id][1]) <= tolerance + 1e-6


@pytest.mark.parametrize(
    ("task_id", "tolerance"),
    [("Pendulum-v1", 45.0), ("CartPoleSwingUp-v0", 9.0), ("MountainCarContinuous-v0", 1.0)],
)
def test_random_actions_reach_their_reference(task_id: str, tolerance: float) -> None:
    spec, generator = make(task_id).spec, torch.Generator().manual_seed(3)
    high = spec.action_high[0]

    def policy(obs: Tensor) -> Tensor:
        return high * (2 * torch.rand((len(obs), 1), generator=generator) - 1)

    score = returns(task_id, policy, 1000, seed=4)
    assert abs(float(score.mean()) - REFERENCE_RETURNS[task_id][0]) < tolerance


def test_regulator_gain_of_an_integrator() -> None:
    """Riccati's solution for s' = s + u, Q = R = 1 is the golden ratio P, and K = P / (1 + P)."""
    one = np.ones((1, 1))
    golden = (1 + 5**0.5) / 2
    assert lqr_gain(one, one, one, one)[0, 0] == pytest.approx(golden / (1 + golden))


@pytest.mark.parametrize("task_id", EXPERTS)
def test_actions_fit_the_task(task_id: str) -> None:
    task = make(task_id)
    action = expert(task_id)(task.observe(task.reset(5, torch.Generator().manual_seed(0))))
    assert len(action) == 5
    if task.spec.discrete:
        assert action.dtype == torch.int64
    else:
        assert action.dtype == torch.float32
        assert (action <= torch.tensor(task.spec.action_high)).all()
        assert (action >= torch.tensor(task.spec.action_low)).all()


def test_every_task_but_the_point_mass_has_a_score() -> None:
    missing = {task_id for task_id in TASKS if make(task_id).spec.reference_returns is None}
    assert missing == {"PointMass-v0"}
    spec = make("Hopper-v4").spec
    assert spec.score(3234.3) == pytest.approx(100.0)
    assert spec.score(-20.272305) == pytest.approx(0.0)


def test_an_unknown_expert_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown analytic expert 'Hopper-v5'"):
        expert("Hopper-v5")
