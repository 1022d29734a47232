"""Where experience of one collector ends and that of the next begins, in any unit."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import longreach as lr
from mbrl.collector import Collector, CollectorConfig
from mbrl.data import from_arrays
from mbrl.tasks import make
from mbrl.types import Transitions

LIMIT = 20


class Line(gymnasium.Env):
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, unit: float) -> None:
        self.unit, self.at = unit, np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2)
        return self.at * self.unit, {}

    def step(self, action: Any) -> Any:
        self.at = self.at + 0.1 * action[0]
        return self.at * self.unit, 0.0, False, False, {}


@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1.0, 1e6])
def test_calls_of_learn_are_apart_in_any_unit(unit: float) -> None:
    task = make(lambda: Line(unit), max_episode_steps=LIMIT)
    size = {"obs": np.zeros((3, 2)), "action": np.zeros((3, 1)), "next_obs": np.zeros((3, 2))}
    over = {"reward": np.zeros(3), "terminated": np.ones(3), "truncated": np.zeros(3)}
    data = from_arrays(**size, **over, spec=task.spec)
    config = lr.ReBRACConfig(hidden=(8,), batch_size=8)
    agent = lr.ReBRAC(data.spec, config, seed=0).fit(data, 1, callbacks=[])
    for _ in range(4):
        agent.learn(task, 5, callbacks=[])
    rows = agent.source.rows.whole()
    goes_on = rows.has_next[3:-1] > 0
    same = (rows.next_obs[3:-1] == rows.obs[4:]).all(1)
    assert torch.equal(goes_on, same) and int((~goes_on).sum()) == 3


class Rounding:
    """A task that observes a state by another rounding than its steps do."""

    def __init__(self) -> None:
        self.task = make("Pendulum-v1,max_episode_steps=3")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        return self.task.observe(state) * (1 + 1e-6)


class Listener:
    policy, updates_per_step = None, 0

    def __init__(self) -> None:
        self.rows: list[Transitions] = []

    def observe(self, data: Transitions) -> None:
        self.rows.append(data)


def test_rows_that_go_on_keep_what_was_seen() -> None:
    task: Any = Rounding()
    collector = Collector.configured(task, CollectorConfig(envs=3, warmup=99), logged=False, seed=0)
    collector.elapsed[0] = 1  # whose episode ends before the others'
    listener = Listener()
    for _ in range(5):
        collector.collect(listener)
    for before, row in zip(listener.rows[:-1], listener.rows[1:], strict=True):
        assert torch.equal((before.next_obs == row.obs).all(1), ~before.ends)
