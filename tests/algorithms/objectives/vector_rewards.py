"""A small environment with two objectives, whose front is known."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Shore(gymnasium.Env):
    """A walk of up to four steps along a shore: 0 digs where it stands and ends, 1 goes on. Digging
    after k steps pays `treasures[k]`; every step costs 1 in the second objective."""

    observation_space = spaces.Box(0, 3, (1,), np.int64)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(-1, 10, (2,), np.float64)
    treasures = (1.0, 4.0, 6.0, 7.0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return np.array([0]), {}

    def step(self, action: Any) -> Any:
        if action == 0 or self.place == 3:
            reward = np.array([self.treasures[self.place], -1.0])
            return np.array([self.place]), reward, True, False, {}
        self.place += 1
        return np.array([self.place]), np.array([0.0, -1.0]), False, False, {}
