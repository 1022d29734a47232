"""What a user passes to an agent between two steps."""

from typing import Any

import numpy as np
import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.observations import as_mask
from mbrl.types import Dataset, Spec
from tests.algorithms.test_algorithms import build


def test_memory_is_told_the_reward_in_any_form(pendulum: Dataset) -> None:
    agent = build("neubay", pendulum.spec)
    obs = pendulum.transitions.obs[:3]
    _, state = agent.act(obs)
    rewards = torch.tensor([-1.0, 2.0, 0.5])
    expected = agent.policy.observe_reward(state, rewards)
    assert not torch.equal(expected, state)
    for given in (rewards, rewards.numpy(), [-1.0, 2.0, 0.5]):
        assert torch.equal(agent.observe_reward(state, given), expected)
    _, one = agent.act(obs[0].numpy())
    told = agent.policy.observe_reward(one, torch.tensor([-1.0]))
    for alone in (-1.0, np.float64(-1.0), [-1], torch.tensor(-1.0)):
        assert torch.equal(agent.observe_reward(one, alone), told)
    other = agent.policy.observe_reward(one, torch.tensor([-1.0]), torch.tensor([[0.7]]))
    assert torch.equal(agent.observe_reward(one, -1.0, np.array([0.7])), other)
    assert not torch.equal(other, told)


@pytest.mark.parametrize(
    ("reward", "action", "message"),
    [
        ([1.0, 2.0], None, r"reward has shape \[2\], and the state 3 rows"),
        (1.0, None, r"reward has shape \[\], and the state 3 rows; give one of shape \[3\]"),
        ([1.0, np.nan, 0.0], None, "reward has a number that is not finite"),
        ([1.0, 1.0, 1.0], [[1.0, 1.0, 1.0]], r"action has shape \[1, 3\].*shape \[3, 1\]"),
    ],
)
def test_rewards_that_do_not_fit_are_refused(
    reward: Any, action: Any, message: str, pendulum: Dataset
) -> None:
    agent = build("neubay", pendulum.spec)
    _, state = agent.act(pendulum.transitions.obs[:3])
    with pytest.raises(ConfigError, match=message):
        agent.observe_reward(state, reward, action)
    with pytest.raises(ConfigError, match="state is None; give the state that `act` returned"):
        agent.observe_reward(None, 1.0)


def test_an_agent_without_memory_keeps_no_reward(pendulum: Dataset) -> None:
    agent = build("bc", pendulum.spec)
    assert agent.observe_reward(None, 1.0) is None


def test_masks_that_allow_nothing_or_are_of_other_rows_are_refused() -> None:
    """Of the first action 0 was taken; the others ended in an error of broadcasting."""
    spec = Spec("steps", 1, num_actions=3, action_mask=True)
    with pytest.raises(ConfigError, match="mask allows no action in row 1"):
        as_mask(spec, [[1, 0, 1], [0, 0, 0]], 2)
    with pytest.raises(ConfigError, match="mask has 3 rows for 2 observations"):
        as_mask(spec, np.ones((3, 3)), 2)
    one = as_mask(spec, [0, 1, 0], 2)
    assert one is not None and one.tolist() == [[False, True, False]]
