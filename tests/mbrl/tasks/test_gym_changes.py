"""Instances of environments that were changed by hand are no tasks by their id, and no copy that
lost the change takes their place."""

import copy
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils import EzPickle
from torch import Generator

from experiments.recording.environment import collect
from mbrl.errors import ConfigError
from mbrl.tasks import as_task, is_task, make, make_for
from mbrl.tasks.gym_changes import changed_by_hand


class Drawn(gymnasium.Env):  # type: ignore[misc]
    """With an attribute of each kind that says nothing about the task."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, gain: float = 1.0, fails: bool = False) -> None:
        Drawn.made += 1
        self.gain, self.fails = gain, fails
        self.birth, self.episodes, self.over, self.steps = Drawn.made, 0, False, 0
        self.table, self.rule = {0: [(0.5, np.arange(2))]}, object()

    def reset(self, **options: Any) -> Any:
        if self.fails:
            raise RuntimeError("no window")
        self.episodes, self.steps = self.episodes + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.over |= self.steps >= 3
        return np.zeros(1, np.float32), self.gain, self.over, False, {}


@pytest.fixture(autouse=True)
def registered() -> Any:
    gymnasium.register("Drawn-v0", entry_point=Drawn, max_episode_steps=9)
    yield
    gymnasium.registry.pop("Drawn-v0")


def test_a_changed_instance_is_no_task_of_its_id() -> None:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.force_mag = -10.0
    spec = collect(env, "random", steps=5).spec
    assert spec.task == "CartPole-v1 changed by hand (force_mag)" and not spec.task_options
    assert not is_task(spec.task)
    with pytest.raises(ConfigError, match="is not a task"):
        make_for(spec)
    forced = gymnasium.make("Pendulum-v1")
    forced.unwrapped.m = 3
    wrapped = gymnasium.wrappers.RescaleAction(forced, -1.0, 1.0)
    assert as_task(wrapped).spec.task == "Pendulum-v1 in RescaleAction changed by hand (m)"
    for name in ("gravity", "length", "tau"):
        setattr(env.unwrapped, name, 0.7)
    assert as_task(env).spec.task.endswith("(force_mag and gravity and others)")


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4", "LunarLander-v3", "CliffWalking-v1"])
def test_how_an_instance_is_shown_is_no_change_and_no_option(name: str) -> None:
    if name == "LunarLander-v3":
        pytest.importorskip("Box2D", reason="gymnasium's extra `box2d` is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 4 says that it is old
        spec = as_task(gymnasium.make(name, render_mode="rgb_array")).spec
        assert spec.task == name and spec.task_options == {}
        assert make_for(spec).spec.obs_dim == spec.obs_dim


def test_what_episodes_leave_behind_is_no_change() -> None:
    for name, options in (("CartPole-v1", {}), ("Drawn-v0", {"gain": 2.0})):
        env = gymnasium.make(name, **options)
        for _ in range(2):
            env.reset(seed=1)
            for _ in range(60):
                env.unwrapped.step(env.action_space.sample())
        assert changed_by_hand(env, copy.deepcopy(env)) == []
        assert as_task(env).spec.task == name and as_task(env).spec.task_options == options
    table = gymnasium.make("Drawn-v0")
    table.unwrapped.table[0][0][1][1] = 5
    assert changed_by_hand(table, copy.deepcopy(table)) == ["table"]


def test_what_cannot_be_compared_is_taken_as_it_is() -> None:
    env = gymnasium.make("Drawn-v0", fails=True)
    env.unwrapped.gain = 3.0
    assert (
        changed_by_hand(env, copy.deepcopy(env)) == []
        and changed_by_hand(Drawn(4.0), Drawn(4.0)) == []
    )


def test_a_changed_robot_acts_itself_since_copies_lose_the_change() -> None:
    pytest.importorskip("mujoco")
    env = gymnasium.make("InvertedPendulum-v5")
    assert as_task(env).spec.task == "InvertedPendulum-v5"
    env.unwrapped.model.opt.gravity[2] = 0.0
    task: Any = as_task(env)
    assert task.spec.task == "InvertedPendulum-v5 changed by hand (model.opt.gravity)"
    state = task.reset(1, Generator().manual_seed(0))
    task.step(state, torch.zeros(1, 1))
    assert env.unwrapped.data.time > 0


def test_no_second_one_is_made_of_what_cannot_be_copied() -> None:
    """It may be a machine, which a step moves."""
    gymnasium.register("Machine-v0", Drawn)
    try:
        env = gymnasium.make("Machine-v0")
        env.unwrapped.socket = (step for step in ())  # generators have no copies
        env.unwrapped.gain = 9.0
        before = Drawn.made
        assert as_task(env).spec.task == "Machine-v0" and Drawn.made == before
    finally:
        del gymnasium.registry["Machine-v0"]


class Remade(EzPickle, Drawn):  # type: ignore[misc]
    """Its copies are made anew, from the arguments of this constructor alone."""

    def __init__(self, gain: float = 1.0) -> None:
        EzPickle.__init__(self, gain)
        Drawn.__init__(self, gain)


class Raised(Remade):
    """With an argument that the constructor above does not know of."""

    def __init__(self, gain: float, more: float) -> None:
        super().__init__(gain)
        self.more = more

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + self.more, *rest


def test_an_instance_without_an_id_is_not_replaced_by_copies_without_its_values() -> None:
    changed = Remade(3.0)
    changed.gain = 7.0
    for env, paid in ((changed, 7.0), (Raised(3.0, more=100.0), 103.0), (Remade(3.0), 3.0)):
        task = make(env, max_episode_steps=9)
        step = task.step(task.reset(1, Generator().manual_seed(0)), torch.zeros(1).long())
        assert step.reward.tolist() == [paid]
        assert task.spec.task == f"{type(env).__name__} (instance)"
    stepped = Remade(3.0)
    stepped.reset()
    stepped.step(0)
    assert changed_by_hand(stepped, copy.deepcopy(stepped)) == []
