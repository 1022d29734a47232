"""Two tasks that are this library's own: a continuous cart-pole swing-up and a point mass in the
plane, both pure batched torch functions on any device."""

import math

import torch
from torch import Tensor

from mbrl.errors import ConfigError, unknown_name
from mbrl.tasks.base import Step
from mbrl.tasks.classic import cartpole_acceleration
from mbrl.tasks.common import (
    check_dtype,
    continuous_action,
    finite_rows,
    no_wider,
    on_circle,
    uniform,
)
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec


class CartPoleSwingUp:
    """CartPoleSwingUp-v0: swing a hanging pole up and hold it, with a force of 10 a N.

    CartPole-v1's masses and lengths by default (m/s^2, kg, m from the hinge to the
    pole's middle), semi-implicit Euler over 0.02 s, no walls, no termination.
    State (position m, speed, angle from upright rad, angular speed), observation (position, speed,
    cos, sin, angular speed). The reward of the state *reached*, with the clipped action:
    (1 + cos theta) / 2 - 0.01 a^2 - 0.02 min(x^2, 25).
    """

    endless = True  # never terminates

    def __init__(
        self,
        *,
        gravity: float = 9.8,
        pole_mass: float = 0.1,
        half_length: float = 0.5,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("CartPoleSwingUp-v0", dtype)
        if not (gravity > 0 and pole_mass > 0 and half_length > 0):
            raise ConfigError(
                f"CartPoleSwingUp-v0: gravity={gravity}, pole_mass={pole_mass} and "
                f"half_length={half_length} must be above 0"
            )
        self.device, self.dtype = torch.device(device), dtype
        self.pole = {"gravity": gravity, "pole_mass": pole_mass, "half_length": half_length}
        self.dt = 0.02  # seconds a step
        self.spec = Spec(
            task="CartPoleSwingUp-v0",
            obs_dim=5,
            action_low=(-1.0,),
            action_high=(1.0,),
            max_episode_steps=500,
            reference_returns=REFERENCE_RETURNS.get("CartPoleSwingUp-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 4]: hanging at rest, each number off by up to 0.05."""
        state = uniform(count, -0.05, 0.05, 4, generator)
        state[:, 2] += math.pi
        return state.to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 5]: position, speed, cos, sin, angular speed."""
        x, x_dot, theta, theta_dot = state.unbind(-1)
        return torch.stack([x, x_dot, theta.cos(), theta.sin(), theta_dot], dim=-1)

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Speeds first, then positions with the new speeds."""
        x, x_dot, theta, theta_dot = state.unbind(-1)
        action = no_wider(continuous_action("CartPoleSwingUp-v0", action, 1), state)
        action = action[:, 0].clamp(-1.0, 1.0)
        x_acc, theta_acc = cartpole_acceleration(theta, theta_dot, 10.0 * action, **self.pole)
        x_dot = x_dot + self.dt * x_acc
        theta_dot = theta_dot + self.dt * theta_acc
        x, theta = x + self.dt * x_dot, theta + self.dt * theta_dot
        state = torch.stack([x, x_dot, theta, theta_dot], dim=-1)
        reward = (
            0.5 * (1.0 + theta.cos()) - 0.01 * action.square() - 0.02 * x.square().clamp(max=25)
        )
        return Step(state, self.observe(state), reward, torch.zeros_like(x, dtype=torch.bool))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Angle from atan2; possible where (cos, sin) lies on the circle."""
        x, x_dot, cosine, sine, theta_dot = obs.unbind(-1)
        state = torch.stack([x, x_dot, torch.atan2(sine, cosine), theta_dot], dim=-1)
        return state, finite_rows(obs) & on_circle(cosine, sine)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Never."""
        return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)


POINT_MASS_REWARDS = ("zero", "bump", "distance")


class PointMass:
    """PointMass-v0: a point moves in the plane by its action, s' = s + a with a in [-1, 1]^2.

    With `inertia` > 0 the state and the observation are (s, v) and v' = inertia v + a, s' = s + v';
    otherwise they are s alone. Starts uniform on [-2, 2]^2 at rest, 30 steps, no walls.
    The reward is that of s', the point *reached*: `zero`; `bump`, exp(-|s' - centre|^2 / (2 sd^2));
    `distance`, -|s' - centre| / 10.
    """

    endless = True  # never terminates

    def __init__(
        self,
        *,
        reward: str = "distance",
        centre: tuple[float, float] = (0.0, 0.0),
        sd: float = 1.0,
        inertia: float = 0.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("PointMass-v0", dtype)
        if reward not in POINT_MASS_REWARDS:
            raise unknown_name("point-mass reward", reward, POINT_MASS_REWARDS)
        if len(centre) != 2 or not sd > 0 or not 0 <= inertia <= 1:
            raise ConfigError(
                f"PointMass-v0: centre={centre} must have two numbers, sd={sd} must be positive "
                f"and inertia={inertia} must be in [0, 1]"
            )
        self.device, self.dtype = torch.device(device), dtype
        self.reward_name, self.sd, self.inertia = reward, sd, inertia
        self.centre = torch.tensor(centre, device=self.device, dtype=dtype)
        self.spec = Spec(
            task="PointMass-v0",
            obs_dim=4 if inertia else 2,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=30,
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2 or 4]: uniform on [-2, 2]^2, at rest."""
        point = uniform(count, -2.0, 2.0, 2, generator)
        state = torch.cat([point, torch.zeros_like(point)], dim=-1) if self.inertia else point
        return state.to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state.clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Move by the clipped action (plus what is left of the last velocity)."""
        velocity = continuous_action("PointMass-v0", action, 2).clamp(-1.0, 1.0).to(state.dtype)
        if self.inertia:
            velocity = velocity + self.inertia * state[:, 2:]
        point = state[:, :2] + velocity
        reached = torch.cat([point, velocity], dim=-1) if self.inertia else point
        reward = self.reward(point)
        return Step(reached, reached.clone(), reward, torch.zeros_like(reward, dtype=torch.bool))

    def reward(self, point: Tensor) -> Tensor:
        """[B] reward of being at `point` [B, 2]."""
        squared = (point - self.centre.to(point)).square().sum(dim=-1)
        if self.reward_name == "bump":
            return (-squared / (2 * self.sd**2)).exp()
        return -squared.sqrt() / 10 if self.reward_name == "distance" else torch.zeros_like(squared)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation itself; possible where finite."""
        return obs.clone(), finite_rows(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Never."""
        return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)
