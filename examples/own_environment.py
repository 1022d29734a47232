"""An environment of your own: record it, learn from the recording, go on in it, evaluate, save.

python own_environment.py"""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

import longreach as lr


class Heater(gymnasium.Env):
    """A room that cools towards 10 degrees, and a heater that is to hold it at 20."""

    observation_space = spaces.Box(-50, 80, (1,), np.float32)  # degrees
    action_space = spaces.Box(0, 1, (1,), np.float32)  # share of the heater's power

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.degrees = self.np_random.uniform(5, 25)
        return np.array([self.degrees], np.float32), {}

    def step(self, action):
        self.degrees += 0.1 * (10 - self.degrees) + 3 * float(action[0])
        reward = -abs(self.degrees - 20) - 0.1 * float(action[0])
        return np.array([self.degrees], np.float32), reward, False, False, {}


def make_env() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Heater(), 50)  # every task needs a limit


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
data = lr.collect(make_env, "random", steps=2000)  # or a policy in the place of "random"
config = lr.TD3BCConfig(hidden=(32, 32), alpha=10.0)  # little cloning: the data are random
agent = lr.TD3BC(data.spec, config, seed=0)
before = lr.evaluate(agent, make_env, episodes=10).mean()
agent.fit(data, steps, callbacks=[])
fitted = lr.evaluate(agent, make_env, episodes=10).mean()
agent.learn(make_env, steps // 4, callbacks=[])  # goes on where it acts
after = lr.evaluate(agent, make_env, episodes=10).mean()
print(f"return untrained {before:.0f}, from the recording {fitted:.0f}, after acting {after:.0f}")
agent.save("heater.pt")
print("action at 12 degrees:", lr.load("heater.pt").act(np.array([12.0], np.float32))[0])
