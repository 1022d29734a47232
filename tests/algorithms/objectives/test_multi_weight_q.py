"""Multi-weight Q-learning: values against a dynamic programme, the front of a known problem."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from algorithms.objectives.indicators import non_dominated
from algorithms.objectives.multi_weight_q import MultiWeightQ, MultiWeightQConfig
from mbrl.errors import ConfigError, TaskError
from tests.algorithms.objectives.vector_rewards import Shore

GAMMA = 0.9


def learned(envelope: bool, seed: int = 0, steps: int = 3000) -> MultiWeightQ:
    config = MultiWeightQConfig(
        divisions=8, envelope=envelope, learning_rate=0.5, gamma=GAMMA, last_epsilon=0.5
    )
    return MultiWeightQ(Shore(), config, seed).learn(steps)


@pytest.mark.parametrize("envelope", [True, False])
def test_values_are_those_of_a_dynamic_programme(envelope: bool) -> None:
    agent = learned(envelope)
    for index, weight in enumerate(agent.weights):
        ahead = np.zeros(2)
        for place in (3, 2, 1, 0):
            dig = np.array([Shore.treasures[place], -1.0])
            go = dig if place == 3 else np.array([0.0, -1.0]) + GAMMA * ahead
            known = agent.values[agent.place([place]), index]
            assert known[0] @ weight == pytest.approx(dig @ weight, abs=1e-6)
            assert known[1] @ weight == pytest.approx(go @ weight, abs=1e-6)
            ahead = max((dig, go), key=lambda value: float(value @ weight))


def test_returns_are_the_convex_part_of_the_front() -> None:
    """In the order of the steps taken: 1, 4, 6, 7 discounted, at costs 1, 1.9, 2.71, 3.439."""
    returns = learned(True).returns(episodes=1, seed=0)
    every = np.array(
        [
            [GAMMA**k * t, -(1 - GAMMA ** (k + 1)) / (1 - GAMMA)]
            for k, t in enumerate(Shore.treasures)
        ]
    )
    best = {tuple(every[(every @ w).argmax()].round(6)) for w in learned(True).weights}
    assert {tuple(row) for row in non_dominated(returns).round(6)} == best and len(best) >= 3


def test_the_envelope_takes_the_best_of_all_tables() -> None:
    agent = MultiWeightQ(Shore(), MultiWeightQConfig(divisions=1, learning_rate=1.0, gamma=0.5))
    first, after = agent.place([0]), agent.place([1])
    agent.values[after, 0] = [[2.0, 0.0], [0.0, 0.0]]  # of the weight (0, 1)
    agent.values[after, 1] = [[1.0, 0.0], [0.0, 4.0]]  # of the weight (1, 0)
    agent._update(first, 1, np.array([0.0, -1.0]), after)
    # (0, 1) climbs the second objective: 4, from the other table; (1, 0) the first: 2, likewise
    assert agent.values[first, :, 1].tolist() == [[0.0, 1.0], [1.0, -1.0]]
    plain = MultiWeightQ(
        Shore(), MultiWeightQConfig(divisions=1, learning_rate=1.0, gamma=0.5, envelope=False)
    )
    first, after = plain.place([0]), plain.place([1])
    plain.values[after] = agent.values[after]
    plain._update(first, 1, np.array([0.0, -1.0]), after)
    assert plain.values[first, :, 1].tolist() == [[1.0, -1.0], [0.5, -1.0]]
    plain._update(first, 0, np.array([3.0, -1.0]), None)
    assert plain.values[first, :, 0].tolist() == [[3.0, -1.0]] * 2


def test_the_same_seed_learns_the_same() -> None:
    one, same, other = (learned(True, seed, steps=15) for seed in (0, 0, 1))
    assert np.array_equal(one.values, same.values)
    assert not np.array_equal(one.values, other.values)


def test_other_environments() -> None:
    with pytest.raises(ConfigError, match="vector rewards"):
        MultiWeightQ(gymnasium.make("CliffWalking-v1"))
    env = Shore()
    env.action_space = gymnasium.spaces.Box(0, 1, (1,))
    with pytest.raises(ConfigError, match="must be discrete"):
        MultiWeightQ(env)
    env.action_space = gymnasium.spaces.MultiBinary(2)
    with pytest.raises(ConfigError, match="must be discrete"):
        MultiWeightQ(env)


class Other(Shore):
    """The shore whose actions begin at 5; `reward` and `obs` in the place of its own."""

    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, reward: Any = None, obs: Any = None) -> None:
        self.reward, self.obs = reward, obs

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        obs, reward, *rest = super().step(action - 5)
        return (
            obs if self.obs is None else self.obs,
            reward if self.reward is None else self.reward,
            *rest,
        )


def test_actions_that_begin_elsewhere() -> None:
    plain = learned(True, steps=300)
    other = MultiWeightQ(Other(), plain.config, seed=0).learn(300)
    assert np.array_equal(other.values, plain.values)
    assert np.array_equal(other.returns(1, 0), plain.returns(1, 0))


@pytest.mark.parametrize("reward", [0.5, np.array([np.nan, 0.0]), np.zeros(3)])
def test_rewards_that_are_no_vectors(reward: Any) -> None:
    with pytest.raises(TaskError, match="must be 2 finite numbers"):
        MultiWeightQ(Other(reward)).learn(5)


@pytest.mark.parametrize("obs", [{"place": 1}, np.array([np.nan])])
def test_observations_that_are_no_numbers(obs: Any) -> None:
    with pytest.raises(TaskError, match="it must be of finite numbers"):
        MultiWeightQ(Other(obs=obs)).learn(5)


def test_learning_goes_on_alike_after_a_stop() -> None:
    """Both begin a new episode where the state was taken."""
    whole = learned(True, steps=500)
    state = whole.state_dict()
    whole.state = None
    again = MultiWeightQ(Shore(), whole.config, seed=99)
    again.load_state_dict(state)
    whole.learn(300, total=800), again.learn(300, total=800)
    assert again.number == whole.number and again.steps == whole.steps == 800
    np.testing.assert_array_equal(again.values, whole.values)
    assert not np.array_equal(state["values"], whole.values)  # shares nothing
    with pytest.raises(ConfigError, match="other settings: gamma"):
        MultiWeightQ(
            Shore(), MultiWeightQConfig(**vars(whole.config) | {"gamma": 0.5})
        ).load_state_dict(state)
