"""Gymnasium's classic-control tasks as pure batched torch functions, on any device.

Each class gives one step of gymnasium 1.4's environment of the same name: the same arithmetic in
the same order, so float64 agrees to rounding. States are gymnasium's own (angles unwrapped where
gymnasium leaves them unwrapped), and time limits are the caller's.
"""

import math

import torch
from torch import Tensor

from mbrl.tasks.base import Step
from mbrl.tasks.common import (
    check_dtype,
    continuous_action,
    discrete_action,
    finite_rows,
    no_wider,
    on_circle,
    uniform,
    wrap_angle,
)
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

SLACK = 1e-5  # observations may pass a bound by this share: float32 rounding of a stored bound


class Pendulum:
    """Pendulum-v1: swing up with a torque in [-2, 2].

    State (angle from upright in rad, unwrapped; speed in rad/s), observation (cos, sin, speed).
    The reward is that of the state *before* the step. Never terminates.
    """

    endless = True  # never terminates

    max_speed = 8.0
    dt = 0.05

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("Pendulum-v1", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.spec = Spec(
            task="Pendulum-v1",
            obs_dim=3,
            action_low=(-2.0,),
            action_high=(2.0,),
            max_episode_steps=200,
            reference_returns=REFERENCE_RETURNS["Pendulum-v1"],
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2]: angle uniform in +-pi, speed uniform in +-1."""
        state = uniform(count, -1.0, 1.0, 2, generator)
        state[:, 0] *= math.pi
        return state.to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 3]: cos, sin, speed."""
        angle, speed = state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), speed], dim=-1)

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Semi-implicit Euler over 0.05 s; the torque is clipped to +-2, the speed to +-8."""
        angle, speed = state.unbind(-1)
        torque = no_wider(continuous_action("Pendulum-v1", action, 1), state)[:, 0]
        torque = torque.clamp(-2.0, 2.0)
        cost = wrap_angle(angle).square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = speed + (15.0 * angle.sin() + 3.0 * torque) * self.dt
        speed = speed.clamp(-self.max_speed, self.max_speed)
        state = torch.stack([angle + speed * self.dt, speed], dim=-1)
        return Step(state, self.observe(state), -cost, torch.zeros_like(cost, dtype=torch.bool))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Angle in (-pi, pi] and speed; possible where cos^2+sin^2 is 1 and |speed| <= 8. Of a
        larger speed 8, the nearest, is read."""
        cosine, sine, speed = obs.unbind(-1)
        possible = finite_rows(obs) & on_circle(cosine, sine)
        possible &= speed.abs() <= self.max_speed * (1 + SLACK)
        speed = speed.clamp(-self.max_speed, self.max_speed)
        return torch.stack([torch.atan2(sine, cosine), speed], dim=-1), possible

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Never."""
        return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)


class CartPole:
    """CartPole-v1: keep the pole up by pushing the cart left (0) or right (1).

    State and observation (position m, speed, angle rad, angular speed). Reward 1 on every step,
    the terminating one included; a step from a state that has already ended also gives 1.
    """

    position_limit = 2.4
    angle_limit = 12 * 2 * math.pi / 360

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("CartPole-v1", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.spec = Spec(
            task="CartPole-v1",
            obs_dim=4,
            num_actions=2,
            max_episode_steps=500,
            reference_returns=REFERENCE_RETURNS["CartPole-v1"],
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 4], each number uniform in +-0.05."""
        return uniform(count, -0.05, 0.05, 4, generator).to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state.clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Explicit Euler over 0.02 s with a force of +-10 N."""
        action = discrete_action("CartPole-v1", action, 2)
        x, x_dot, theta, theta_dot = state.unbind(-1)
        x_acc, theta_acc = cartpole_acceleration(
            theta, theta_dot, 20.0 * action.to(state.dtype) - 10.0
        )
        state = torch.stack(
            [
                x + 0.02 * x_dot,
                x_dot + 0.02 * x_acc,
                theta + 0.02 * theta_dot,
                theta_dot + 0.02 * theta_acc,
            ],
            dim=-1,
        )
        return Step(state, state.clone(), torch.ones_like(x), self._fallen(state))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation itself; possible where finite."""
        return obs.clone(), finite_rows(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """Beyond 2.4 m or 12 degrees."""
        return self._fallen(next_obs)

    def _fallen(self, state: Tensor) -> Tensor:
        return (state[:, 0].abs() > self.position_limit) | (state[:, 2].abs() > self.angle_limit)


def cartpole_acceleration(
    theta: Tensor,
    theta_dot: Tensor,
    force: Tensor,
    *,
    gravity: float = 9.8,
    pole_mass: float = 0.1,
    half_length: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """(cart acceleration m/s^2, pole acceleration rad/s^2) of a 1 kg cart under `force` N with a
    uniform pole of `pole_mass` kg and `half_length` m at `theta` from upright; Florian, "Correct
    equations for the dynamics of the cart-pole system", eqs. 23-24 without friction."""
    total, pole_moment = 1.0 + pole_mass, pole_mass * half_length
    cosine, sine = theta.cos(), theta.sin()
    temp = (force + pole_moment * theta_dot.square() * sine) / total
    theta_acc = (gravity * sine - cosine * temp) / (
        half_length * (4.0 / 3.0 - pole_mass * cosine.square() / total)
    )
    return temp - pole_moment * theta_acc * cosine / total, theta_acc


def _valley_mask(obs: Tensor) -> Tensor:
    """Positions and speeds that either mountain car can have."""
    position, speed = obs.unbind(-1)
    inside = (position >= -1.2 * (1 + SLACK)) & (position <= 0.6 * (1 + SLACK))
    return finite_rows(obs) & inside & (speed.abs() <= 0.07 * (1 + SLACK))


def _valley_start(count: int, generator: torch.Generator) -> Tensor:
    """Position uniform in [-0.6, -0.4), at rest."""
    position = uniform(count, -0.6, -0.4, 1, generator)
    return torch.cat([position, torch.zeros_like(position)], dim=-1)


def _valley_move(position: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
    """Clip the speed, move, clip the position, and stop a car that meets the left wall."""
    speed = speed.clamp(-0.07, 0.07)
    position = position + speed
    at_wall = position <= -1.2
    speed = torch.where(at_wall & (speed < 0), torch.zeros_like(speed), speed)
    return position.clamp(-1.2, 0.6), speed


class MountainCar:
    """MountainCar-v0: reach 0.5 with pushes left (0), none (1), right (2); reward -1 a step.

    State and observation (position, speed).
    """

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("MountainCar-v0", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.spec = Spec(
            task="MountainCar-v0",
            obs_dim=2,
            num_actions=3,
            max_episode_steps=200,
            reference_returns=REFERENCE_RETURNS["MountainCar-v0"],
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2]: position uniform in [-0.6, -0.4), at rest."""
        return _valley_start(count, generator).to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state.clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        """One step of the valley; the push is 0.001 and gravity 0.0025 (per step squared)."""
        action = discrete_action("MountainCar-v0", action, 3)
        position, speed = state.unbind(-1)
        push = (action - 1).to(state.dtype) * 0.001
        speed = speed + (push - 0.0025 * (3 * position).cos())
        state = torch.stack(_valley_move(position, speed), dim=-1)
        return Step(state, state.clone(), -torch.ones_like(speed), self._arrived(state))

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation itself; possible where position and speed are within their bounds."""
        return obs.clone(), _valley_mask(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """At position 0.5 or beyond with speed >= 0."""
        return self._arrived(next_obs)

    def _arrived(self, state: Tensor) -> Tensor:
        return (state[:, 0] >= 0.5) & (state[:, 1] >= 0)


class MountainCarContinuous:
    """MountainCarContinuous-v0: reach 0.45 with a push in [-1, 1]; 100 there, minus 0.1 a^2.

    State and observation (position, speed). The push is clipped, but the cost is that of the
    action as given, as in gymnasium. Gymnasium rounds its state to float32 after each step; here
    the state keeps the task's dtype.
    """

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("MountainCarContinuous-v0", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.spec = Spec(
            task="MountainCarContinuous-v0",
            obs_dim=2,
            action_low=(-1.0,),
            action_high=(1.0,),
            max_episode_steps=999,
            reference_returns=REFERENCE_RETURNS["MountainCarContinuous-v0"],
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 2]: position uniform in [-0.6, -0.4), at rest."""
        return _valley_start(count, generator).to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state.clone()

    def step(self, state: Tensor, action: Tensor) -> Step:
        """One step of the valley with a push of 0.0015 times the clipped action."""
        action = continuous_action("MountainCarContinuous-v0", action, 1)
        action = no_wider(action, state)[:, 0]
        position, speed = state.unbind(-1)
        force = action.clamp(-1.0, 1.0)
        speed = speed + (force * 0.0015 - 0.0025 * (3 * position).cos())
        state = torch.stack(_valley_move(position, speed), dim=-1)
        terminated = self._arrived(state)
        reward = 100.0 * terminated.to(state.dtype) - 0.1 * action.square().to(state.dtype)
        return Step(state, state.clone(), reward, terminated)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation itself; possible where position and speed are within their bounds."""
        return obs.clone(), _valley_mask(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """At position 0.45 or beyond with speed >= 0."""
        return self._arrived(next_obs)

    def _arrived(self, state: Tensor) -> Tensor:
        return (state[:, 0] >= 0.45) & (state[:, 1] >= 0)


class Acrobot:
    """Acrobot-v1: swing a two-link arm above one link's height with elbow torques -1, 0, 1.

    State (two joint angles in rad, wrapped to [-pi, pi]; two speeds), observation (cos, sin of
    each angle, speeds). Reward -1 a step, 0 on the terminating one. Sutton & Barto's "book"
    equations, one Runge-Kutta step of 0.2 s.
    """

    max_speeds = (4 * math.pi, 9 * math.pi)

    def __init__(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        check_dtype("Acrobot-v1", dtype)
        self.device, self.dtype = torch.device(device), dtype
        self.spec = Spec(
            task="Acrobot-v1",
            obs_dim=6,
            num_actions=3,
            max_episode_steps=500,
            reference_returns=REFERENCE_RETURNS["Acrobot-v1"],
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 4], each number uniform in +-0.1 (hanging)."""
        return uniform(count, -0.1, 0.1, 4, generator).to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 6]: cos and sin of the first angle, of the second, the two speeds."""
        first, second, speed1, speed2 = state.unbind(-1)
        return torch.stack(
            [first.cos(), first.sin(), second.cos(), second.sin(), speed1, speed2], dim=-1
        )

    def step(self, state: Tensor, action: Tensor) -> Step:
        """One Runge-Kutta step of 0.2 s; angles wrapped, speeds clipped to 4 pi and 9 pi."""
        action = discrete_action("Acrobot-v1", action, 3)
        torque, dt = (action - 1).to(state.dtype), 0.2
        k1 = acrobot_derivative(state, torque)
        k2 = acrobot_derivative(state + dt / 2 * k1, torque)
        k3 = acrobot_derivative(state + dt / 2 * k2, torque)
        k4 = acrobot_derivative(state + dt * k3, torque)
        state = state + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
        angles = state[:, :2]
        turns = ((angles.abs() - math.pi) / (2 * math.pi)).ceil().clamp(min=0.0)
        angles = angles - angles.sign() * turns * (2 * math.pi)
        limit = torch.tensor(self.max_speeds, dtype=state.dtype, device=state.device)
        state = torch.cat([angles, state[:, 2:].clamp(-limit, limit)], dim=-1)
        first, both = state[:, 0], state[:, 0] + state[:, 1]
        terminated = -first.cos() - both.cos() > 1.0
        return Step(state, self.observe(state), terminated.to(state.dtype) - 1.0, terminated)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Angles from atan2; possible where both pairs lie on the circle and speeds in bounds."""
        cos1, sin1, cos2, sin2, speed1, speed2 = obs.unbind(-1)
        possible = finite_rows(obs) & on_circle(cos1, sin1) & on_circle(cos2, sin2)
        for speed, limit in zip((speed1, speed2), self.max_speeds, strict=True):
            possible &= speed.abs() <= limit * (1 + SLACK)
        angles = (torch.atan2(sin1, cos1), torch.atan2(sin2, cos2))
        return torch.stack([*angles, speed1, speed2], dim=-1), possible

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """The tip is more than one link above the pivot: -cos t1 - cos(t1 + t2) > 1."""
        cos1, sin1, cos2, sin2 = next_obs[:, :4].unbind(-1)
        return -cos1 - (cos1 * cos2 - sin1 * sin2) > 1.0


def acrobot_derivative(state: Tensor, torque: Tensor) -> Tensor:
    """Time derivative [B, 4] of (angle 1, angle 2, speed 1, speed 2): unit masses, lengths and
    moments, centres of mass at 0.5, g = 9.8; Sutton & Barto, "Reinforcement Learning", 11.3."""
    theta1, theta2, speed1, speed2 = state.unbind(-1)
    g, cos2, sin2 = 9.8, theta2.cos(), theta2.sin()
    d1 = 0.25 + (1.25 + cos2) + 2.0
    d2 = (0.25 + 0.5 * cos2) + 1.0
    phi2 = 0.5 * g * (theta1 + theta2 - math.pi / 2).cos()
    phi1 = (
        -0.5 * speed2.square() * sin2
        - speed2 * speed1 * sin2
        + 1.5 * g * (theta1 - math.pi / 2).cos()
        + phi2
    )
    acc2 = (torque + d2 / d1 * phi1 - 0.5 * speed1.square() * sin2 - phi2) / (
        1.25 - d2.square() / d1
    )
    acc1 = -(d2 * acc2 + phi1) / d1
    return torch.stack([speed1, speed2, acc1, acc2], dim=-1)
