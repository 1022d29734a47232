"""The library's own tasks through `gymnasium.make`: gymnasium's checker, and the task itself."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from mbrl.tasks import OWN, make


@pytest.mark.parametrize("task_id", OWN)
def test_gymnasium_accepts_it(task_id: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error")
        warnings.filterwarnings("ignore", message=".*Box observation space.*infinity")
        warnings.filterwarnings("ignore", message=".*alternative render modes")
        check_env(gymnasium.make(f"longreach/{task_id}").unwrapped)


@pytest.mark.parametrize("task_id", OWN)
def test_steps_are_the_tasks(task_id: str) -> None:
    env, task = gymnasium.make(f"longreach/{task_id}"), make(task_id)
    assert env.spec.max_episode_steps == task.spec.max_episode_steps
    env.action_space.seed(0)
    state = task.reset(1, torch.Generator().manual_seed(3))
    seen, _ = env.reset(seed=3)
    np.testing.assert_array_equal(seen, task.observe(state)[0].numpy())
    for t in range(1, (task.spec.max_episode_steps or 0) + 1):
        action = env.action_space.sample()
        seen, reward, terminated, truncated, _ = env.step(action)
        step = task.step(state, torch.as_tensor(action)[None])
        np.testing.assert_array_equal(seen, step.obs[0].numpy())
        assert reward == float(step.reward) and terminated == bool(step.terminated)
        assert truncated == (t == task.spec.max_episode_steps)
        if terminated or truncated:
            break
        state = step.state


def test_step_before_reset_is_refused() -> None:
    env = gymnasium.make("longreach/PointMass-v0").unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(env.action_space.sample())
