"""Small environments of a user's, as tests of the adapter need them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Rover(gymnasium.Env):
    """A point on a line that is to reach 1, with Dict observations; ends at |x| > 1."""

    observation_space = spaces.Dict(
        {
            "position": spaces.Dict({"x": spaces.Box(-2, 2, (1,), np.float32)}),
            "gear": spaces.Discrete(3, start=1),
            "lamps": spaces.MultiBinary(2),
        }
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, speed: float = 0.1) -> None:
        self.speed = speed

    def _obs(self) -> dict[str, Any]:
        return {
            "position": {"x": np.array([self.x], np.float32)},
            "gear": np.int64(1 + self.time % 3),
            "lamps": np.array([self.x > 0, self.x < 0], np.int8),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.time = float(self.np_random.uniform(-0.5, 0.5)), 0
        return self._obs(), {}

    def step(self, action):
        self.x += self.speed * float(action[0])
        self.time += 1
        return self._obs(), -abs(1 - self.x), abs(self.x) > 1, False, {}


class Corridor(gymnasium.Env):
    """Cells 0 to 4, goal 4; actions 5 (left) and 6 (right), of which a wall forbids one. Every step
    costs 1, reaching the goal or the tenth step ends it, both flags together where both hold."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2, start=5)

    def __init__(self, masked: bool = True, limit: int = 10) -> None:
        self.masked, self.max_episode_steps = masked, limit

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.cell > 0, True], np.int8)} if self.masked else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.time = int(self.np_random.integers(2)), 0
        return np.int64(self.cell), self._info()

    def step(self, action):
        assert action in (5, 6)
        if self.masked and self.cell == 0 and action == 5:
            raise RuntimeError("walked into the wall")
        self.cell = max(0, self.cell + (1 if action == 6 else -1))
        self.time += 1
        over = self.cell == 4
        return np.int64(self.cell), -1.0, over, self.time >= self.max_episode_steps, self._info()


class Failing(gymnasium.Env):
    """Raises at its 7th step, counted over all episodes."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    max_episode_steps = 5

    def __init__(self, at: int = 7) -> None:
        self.at, self.count = at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count >= self.at:
            raise OSError("the cable came off")
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Wrong(gymnasium.Env):
    """Returns what its space does not promise, in the way that `how` says."""

    observation_space = spaces.Dict(
        {"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Box(0, 1, (), np.float32)}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(False), {}

    def _obs(self, stepped: bool) -> dict[str, Any]:
        b: Any = np.float32(0.5).reshape(())
        good = {"a": np.zeros(2, np.float32), "b": b}
        if not stepped:
            return good
        return {
            "shape": good | {"a": np.zeros(3, np.float32)},
            "dtype": good | {"a": np.zeros(2, np.float64)},
            "bounds": good | {"b": np.array(7, np.float32)},
            "missing": {"a": good["a"]},
            "reward": good,
            "flag": good,
            "word": good,
            "number": good | {"a": np.array([0, np.nan], np.float32)},
        }[self.how]

    def step(self, action):
        reward = {"reward": float("nan"), "word": "1"}.get(self.how, 0.0)
        return self._obs(True), reward, "False" if self.how == "flag" else False, False, {}
