"""Adroit's four tasks with D4RL's rewards and ends, over gymnasium-robotics (extra `robotics`).

AdroitHandDoor-v1, Hammer-v1 and Relocate-v1 of gymnasium-robotics 1.2.1 and later pay 0.1 times the
distance of palm and object where D4RL (and the recorded human demonstrations) charge it, and
AdroitHandPen-v1 goes on when the pen is dropped, 200 steps instead of 100."""

from typing import Any

import gymnasium
import numpy as np

from mbrl.errors import optional_packages

DROPPED = 0.075  # metres; a pen below is dropped
STEPS = {"door": 200, "hammer": 200, "relocate": 200, "pen": 100}  # D4RL's limits, version 1


class D4RLRules(gymnasium.Wrapper):
    """One of gymnasium-robotics' AdroitHand*-v1 with the reward and the ends of D4RL's tasks
    (d4rl/hand_manipulation_suite at github.com/Farama-Foundation/D4RL).

    `name` is door, hammer, relocate or pen; the distance and the pen's height are read from the
    observation.
    """

    def __init__(self, env: gymnasium.Env, name: str) -> None:
        super().__init__(env)
        self.name = name

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; `info` has `success` as gymnasium-robotics gives it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.name == "pen":
            return obs, reward, bool(obs[26] < DROPPED), truncated, info
        return obs, reward - 0.2 * palm_distance(self.name, obs), terminated, truncated, info


def palm_distance(name: str, obs: np.ndarray) -> float:
    """Distance in metres of the palm from the handle, the hammer or the ball, from an observation
    [S] of the task `name`."""
    if name == "door":
        return float(np.linalg.norm(obs[35:38]))
    if name == "hammer":
        return float(np.linalg.norm(obs[33:36] - obs[36:39]))
    return float(np.linalg.norm(obs[30:33]))


def _made(name: str) -> gymnasium.Env:
    with optional_packages("robotics", "Adroit's tasks"):
        import gymnasium_robotics  # noqa: F401  (registers them)
    task = f"AdroitHand{name.capitalize()}-v1"
    env = gymnasium.make(task, max_episode_steps=STEPS[name], disable_env_checker=True)
    return D4RLRules(env, name)


def make_door() -> gymnasium.Env:
    """Swing a door open after turning its latch: 39 observations, 28 actions, 200 steps."""
    return _made("door")


def make_hammer() -> gymnasium.Env:
    """Drive a nail into a board: 46 observations, 26 actions, 200 steps."""
    return _made("hammer")


def make_relocate() -> gymnasium.Env:
    """Carry a ball to a place in the air: 39 observations, 30 actions, 200 steps."""
    return _made("relocate")


def make_pen() -> gymnasium.Env:
    """Turn a pen in the hand: 45 observations, 24 actions, 100 steps; it ends when dropped."""
    return _made("pen")
