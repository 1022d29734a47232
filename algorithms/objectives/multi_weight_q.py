"""Q-learning for several objectives: a table of vector values for each of several weights, all
learned from every step. With `envelope` the target takes the best value that any weight's table
has: "A Generalized Algorithm for Multi-Objective Reinforcement Learning and Policy Adaptation"
(Yang, Sun, Narasimhan, arXiv 1908.08342), as a table.

Differences: tables, and the weights are a fixed grid; no homotopy of the loss.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from algorithms.objectives.indicators import weights_on_simplex
from mbrl.config import Count, Discount, Finite, Probability, Rate, Settings, require_same
from mbrl.errors import ConfigError, TaskError


@dataclass(frozen=True)
class MultiWeightQConfig(Settings):
    """Settings of multi-weight Q-learning."""

    divisions: Count = 10  # of the grid of weights: multiples of one over it
    envelope: bool = True  # a target may be the value of another weight's policy
    learning_rate: Rate = 0.3
    gamma: Discount = 0.99  # discount factor
    first_epsilon: Probability = 1.0  # share of uniform actions at the first step
    last_epsilon: Probability = 0.1  # and after the decay, which is linear
    decay: Rate = 0.5  # share of the steps that the decay takes
    initial: Finite = 0.0  # value of all objectives at first


class MultiWeightQ:
    """A set of policies for an environment of gymnasium whose rewards are vectors (as those of
    mo-gymnasium), with discrete actions and few observations.

    Formula:

        w . Q_w(s, a)        what the policy of weight w climbs
        Q_w(s, a) <- Q_w(s, a) + rate (r + gamma Q_u(s', b) - Q_w(s, a)), for all w
        u, b = argmax w . Q_u(s', b), over b with u = w, or with `envelope` over all u too
    """

    def __init__(self, env: Any, config: MultiWeightQConfig | None = None, seed: int = 0) -> None:
        self.env, self.config = env, config or MultiWeightQConfig()
        reward = getattr(env.unwrapped, "reward_space", None)
        if reward is None or len(getattr(reward, "shape", ())) != 1:
            raise ConfigError(
                f"{env} has no reward_space of one axis; take an environment with vector rewards, "
                "such as mo_gymnasium.make('deep-sea-treasure-v0')"
            )
        if not isinstance(env.action_space, spaces.Discrete):
            raise ConfigError(f"{env} has the actions {env.action_space}; they must be discrete")
        self.objectives, self.actions = reward.shape[0], int(env.action_space.n)
        self.first = int(env.action_space.start)  # the environment's number of action 0
        self.weights = weights_on_simplex(self.objectives, self.config.divisions)
        self.draws = np.random.default_rng(seed)
        self.number: dict[tuple[int, ...], int] = {}  # of every observation that was met
        self.values = np.zeros((0, len(self.weights), self.actions, self.objectives))
        self.state: int | None = None  # where the episode is; None: it is over
        self.steps = 0
        self.chosen = 0  # weight of the episode

    def place(self, obs: Any) -> int:
        """The row of an observation in `values` [states, weights, actions, objectives]. Raises
        `TaskError` for one that is not of finite numbers."""
        array = np.asarray(obs)
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise TaskError(f"{self.env}: the observation is {obs}; it must be of finite numbers")
        key = tuple(array.ravel().tolist())
        row = self.number.setdefault(key, len(self.number))
        if row >= len(self.values):
            shape = (max(64, len(self.values)), *self.values.shape[1:])
            self.values = np.concatenate([self.values, np.full(shape, self.config.initial)])
        return row

    def best(self, row: int) -> np.ndarray:
        """The greedy action [W] of every weight's policy; the first of equals."""
        merits = np.einsum("wam,wm->wa", self.values[row], self.weights)
        actions: np.ndarray = merits.argmax(1)
        return actions

    def learn(self, steps: int, total: int | None = None) -> "MultiWeightQ":
        """Take `steps` steps; the decay is over `total` (by default up to the last of them)."""
        c, end = self.config, total or self.steps + steps
        for _ in range(steps):
            if self.state is None:
                obs, _ = self.env.reset(seed=int(self.draws.integers(2**31)))
                self.state = self.place(obs)
                self.chosen = int(self.draws.integers(len(self.weights)))
            share = min(1.0, self.steps / (c.decay * end))
            epsilon = c.first_epsilon + share * (c.last_epsilon - c.first_epsilon)
            action = int(self.best(self.state)[self.chosen])
            if self.draws.random() < epsilon:
                action = int(self.draws.integers(self.actions))
            obs, reward, terminated, truncated = self._step(action)
            row = self.place(obs)
            self._update(self.state, action, reward, None if terminated else row)
            self.state = None if terminated or truncated else row
            self.steps += 1
        return self

    def _step(self, action: int) -> tuple[Any, np.ndarray, bool, bool]:
        """A step of the environment. Raises `TaskError` for a reward that is no vector of finite
        numbers (a wrapper may have added its parts up)."""
        obs, reward, terminated, truncated, _ = self.env.step(self.first + action)
        vector = np.asarray(reward, float)
        if vector.shape != (self.objectives,) or not np.isfinite(vector).all():
            raise TaskError(
                f"{self.env}: the reward is {reward}; it must be {self.objectives} finite numbers, "
                "one for each objective"
            )
        return obs, vector, terminated, truncated

    def _update(self, row: int, action: int, reward: np.ndarray, after: int | None) -> None:
        """A step of all weights' tables; `after` None: the episode ended."""
        c, count = self.config, len(self.weights)
        target = np.broadcast_to(reward, (count, self.objectives))
        if after is not None:
            known = self.values[after]
            if c.envelope:
                flat = known.reshape(-1, self.objectives)
                target = reward + c.gamma * flat[(self.weights @ flat.T).argmax(1)]
            else:
                target = reward + c.gamma * known[np.arange(count), self.best(after)]
        current = self.values[row, :, action]
        self.values[row, :, action] = current + c.learning_rate * (target - current)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from, between two episodes: an environment's own state is
        not in it, so that a running episode ends with it."""
        return {
            "config": dataclasses.asdict(self.config),
            "number": [[list(key), row] for key, row in self.number.items()],
            "values": self.values.copy(),
            "draws": self.draws.bit_generator.state,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a new episode. Raises `ConfigError` for a state of other settings, or of an
        environment with other actions or objectives."""
        require_same(self.config, state["config"])
        shape = state["values"].shape[1:]
        if shape != self.values.shape[1:]:
            raise ConfigError(
                f"the state has weights, actions and objectives {shape}, the environment "
                f"{self.values.shape[1:]}; give the environment that it was made in"
            )
        self.number = {tuple(key): row for key, row in state["number"]}
        self.values = state["values"].copy()
        self.draws.bit_generator.state = state["draws"]
        self.steps, self.state = state["steps"], None

    def returns(self, episodes: int, seed: int, limit: int = 1000) -> np.ndarray:
        """Mean discounted vector returns [W, objectives] of every weight's greedy policy."""
        return np.stack(
            [
                np.mean([self._episode(w, seed + k, limit) for k in range(episodes)], axis=0)
                for w in range(len(self.weights))
            ]
        )

    def _episode(self, weight: int, seed: int, limit: int) -> np.ndarray:
        obs, _ = self.env.reset(seed=seed)
        total, factor = np.zeros(self.objectives), 1.0
        for _ in range(limit):
            action = int(self.best(self.place(obs))[weight])
            obs, reward, terminated, truncated = self._step(action)
            total += factor * reward
            factor *= self.config.gamma
            if terminated or truncated:
                break
        self.state = None  # the environment is in another episode now
        return total
