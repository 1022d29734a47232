"""RocketRecovery-v0 of NeoRL-2: gymnasium's lunar lander with wind over flat ground, as a batched
torch simulator of three rigid bodies instead of Box2D."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mbrl.tasks.base import Step
from mbrl.tasks.common import (
    check_dtype,
    continuous_action,
    finite_rows,
    hashed_uniform,
    uniform,
)
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

DT, GRAVITY = 1 / 50, -10.0
MASS, INERTIA, CENTRE = 4.8166666, 0.7838812, 0.1013072  # of the lander; centre above its origin
LEG_MASS, LEG_INERTIA = 0.0711111, 0.0017909  # of each
ANCHOR = (2 / 3, 0.6)  # of the lander's origin in a leg, the first with the leg's sign
OPENING, LEG_SPEED = 0.49202, 0.3  # rad, rad/s: a leg's angle at the start, and how it unfolds
TOTAL = MASS + 2 * LEG_MASS
LANDING = 10 / 3 + 0.6  # m, height of the origin where y is 0
SIZE = torch.tensor([0.1, 0.15, 0.2, 2 / 15, 1.0, 0.4], dtype=torch.float64)  # of observations


class Layout(NamedTuple):
    """The three bodies about their common centre: offsets [B, 2] of lander and legs, the arms
    [B, 2] of the legs from the lander's origin, the inertia [B], and the spin [B] and drift [B, 2]
    that unfolding legs carry."""

    offsets: tuple[Tensor, Tensor, Tensor]
    inertia: Tensor
    spin: Tensor
    drift: Tensor


def turned(angle: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
    """[B, 2] of the vector (x, y) turned by `angle` [B]."""
    sine, cosine = angle.sin(), angle.cos()
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y], dim=-1)


def quarter(vector: Tensor) -> Tensor:
    """[B, 2] turned by 90 degrees: the speed of an arm that turns at 1 rad/s."""
    return torch.stack([-vector[:, 1], vector[:, 0]], dim=-1)


def cross(a: Tensor, b: Tensor) -> Tensor:
    """[B]"""
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def leg_angle(steps: Tensor) -> Tensor:
    """[B] angle of a leg to the lander, `steps` after the start: its motor folds it out."""
    return (OPENING - LEG_SPEED * DT * steps).clamp(min=OPENING - LEG_SPEED * DT * 24)


def layout(angle: Tensor, leg: Tensor, rate: Tensor) -> Layout:
    """The bodies of a lander at `angle` [B] whose legs stand at `leg` [B] and turn at `rate` [B]
    rad/s towards it."""
    lander = turned(angle, 0.0, CENTRE)
    arms = [turned(angle - sign * leg, -sign * ANCHOR[0], -ANCHOR[1]) for sign in (-1, 1)]
    middle = (MASS * lander + LEG_MASS * (arms[0] + arms[1])) / TOTAL
    offsets = (lander - middle, arms[0] - middle, arms[1] - middle)
    inertia = INERTIA + 2 * LEG_INERTIA + MASS * offsets[0].square().sum(dim=-1)
    spin, drift = torch.zeros_like(angle), torch.zeros_like(lander)
    for sign, arm, offset in zip((1, -1), arms, offsets[1:], strict=True):
        turning = -sign * rate
        inertia = inertia + LEG_MASS * offset.square().sum(dim=-1)
        spin = spin + turning * (LEG_MASS * (offset * arm).sum(dim=-1) + LEG_INERTIA)
        drift = drift + LEG_MASS / TOTAL * turning[:, None] * quarter(arm)
    return Layout(offsets, inertia, spin, drift)


class RocketRecovery:
    """RocketRecovery-v0: land a rocket that was pushed away, in wind.

    State (float64 whatever `dtype` says): position of the lander's origin (m), speed of its mass
    (m/s), angle and angular speed, steps done, a seed, the index of the wind, and the wind (N).
    The engines and their scatter are those of gymnasium's LunarLander, continuous; the wind pushes
    with `wind` tanh(sin(0.02 i) + sin(0.01 pi i)) N and i grows by one a step. Observation:
    LunarLander's first six entries and the wind.

    In flight lander and legs move as the bodies that Box2D's converged joints make of them; an
    observation differs from Box2D's by up to 1e-4 a step (2e-3 in the first 30, while the legs
    unfold), below Box2D's own limit of 100 m/s. The ground is not simulated: the episode ends on
    reaching y <= 0.05 (NeoRL-2: |y| <= 0.05, which Box2D's ground makes the same), above which only
    a lander tilted by more than 0.5 rad touches it. The reward is the gain of
    -100 (|(x, y)| + |(vx, vy)| + |angle|) minus 0.3 main and 0.03 side power; at the end instead
    100 for |angle| < 0.3, |vx| < 0.5 and |vy| < 2, else -100.
    """

    def __init__(
        self,
        *,
        wind: float = 10.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("RocketRecovery-v0", dtype)
        self.device, self.dtype, self.wind = torch.device(device), dtype, float(wind)
        self._size = SIZE.to(self.device)
        self._zero = torch.tensor([10.0, LANDING, 0, 0, 0, 0], dtype=torch.float64).to(self.device)
        self.spec = Spec(
            task="RocketRecovery-v0",
            obs_dim=7,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=500,
            reference_returns=REFERENCE_RETURNS.get("RocketRecovery-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 10] after the step that gymnasium's reset makes: pushed by up to 500 N
        for a step, at an index of the wind from -9999 to 9998."""
        draw = uniform(count, 0.0, 1.0, 4, generator).to(self.device)
        push = 1000 * draw[:, :2] - 500
        index, seed = (19_998 * draw[:, 2]).floor() - 9999, 1 + (2**31 * draw[:, 3]).floor()
        wind = self.blowing(index)
        side, up = push[:, 0] + wind, push[:, 1]
        # what Box2D leaves of the first step, in which it also moves the legs into their limits
        # (coefficients fitted to 300 resets, to 3e-6)
        x, y = 10 + 7.9827e-5 * side, 40 / 3 + 0.0021348 + 8.0663e-5 * up
        vx, vy = 0.004042799 * side, GRAVITY * DT + 0.004033161 * up
        zero = torch.zeros_like(x)
        angle, speed = -9.25e-6 * side, -4.57877e-4 * side
        return torch.stack([x, y, vx, vy, angle, speed, zero, seed, index + 1, wind], dim=-1)

    def blowing(self, index: Tensor) -> Tensor:
        """[B] N at indices [B]."""
        return self.wind * (torch.sin(0.02 * index) + torch.sin(math.pi * 0.01 * index)).tanh()

    def observe(self, state: Tensor) -> Tensor:
        """[B, 7] in `dtype`."""
        return self._observation(state).to(self.dtype)

    def _observation(self, state: Tensor) -> Tensor:
        return torch.cat([(state[:, :6] - self._zero) * self._size, state[:, 9:]], dim=-1)

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Wind and engines push; then all bodies move by their new speeds."""
        action = continuous_action("RocketRecovery-v0", action, 2).double().clamp(-1.0, 1.0)
        main, side = powers(action)
        angle, turning, steps = state[:, 4], state[:, 5], state[:, 6]
        seed, index = state[:, 7], state[:, 8]
        wind = torch.where(seed > 0, self.blowing(index), state[:, 9])
        draws = [hashed_uniform(seed, 2 * steps + k) for k in (0, 1)]
        scatter = [(2 * draw - 1) / 30 * (seed > 0) for draw in draws]
        kicks = engines(angle, main, side, action[:, 1].sign(), scatter)
        # linear and angular momentum of all bodies, about their centre
        before = layout(angle, leg_angle(steps), self._rate(steps, -1))
        origin = turned(angle, 0.0, CENTRE) - before.offsets[0]  # of the common centre
        speed = state[:, 2:4] - turning[:, None] * quarter(before.offsets[0]) + before.drift
        momentum = before.inertia * turning + before.spin
        force = torch.stack([wind, torch.full_like(wind, TOTAL * GRAVITY)], dim=-1)
        speed = speed + DT / TOTAL * force
        momentum = momentum - DT * wind * before.offsets[0][:, 1]
        for place, kick in kicks:
            speed = speed + kick / TOTAL
            momentum = momentum + cross(place - origin, kick)
        # the speeds of the bodies that carry it, and where they lead
        now = layout(angle, leg_angle(steps), self._rate(steps, 0))
        turning = (momentum - now.spin) / now.inertia
        velocity = speed + turning[:, None] * quarter(now.offsets[0]) - now.drift
        centre = state[:, :2] + origin + DT * speed
        angle = angle + DT * turning
        after = layout(angle, leg_angle(steps + 1), torch.zeros_like(angle))
        place = centre + after.offsets[0] - turned(angle, 0.0, CENTRE)
        rest = torch.stack([angle, turning, steps + 1, seed, index + 1, wind], dim=-1)
        reached = torch.cat([place, velocity, rest], dim=-1)
        ended = self._observation(reached)[:, 1] <= 0.05
        reward = self._reward(state, reached, main, side, ended).to(self.dtype)
        return Step(reached, self.observe(reached), reward, ended)

    def _rate(self, steps: Tensor, offset: int) -> Tensor:
        """[B] rad/s at which the legs unfold in the step with this number (and `offset`)."""
        moving = leg_angle(steps + offset) - leg_angle(steps + offset + 1)
        return torch.where(steps + offset < 0, 0.0, moving / DT)

    def _reward(
        self, old: Tensor, new: Tensor, main: Tensor, side: Tensor, ended: Tensor
    ) -> Tensor:
        here, there = self._observation(old), self._observation(new)
        gain = potential(there) - potential(here) - 0.3 * main - 0.03 * side
        safe = (there[:, 4].abs() < 0.3) & (there[:, 2].abs() < 0.5) & (there[:, 3].abs() < 2)
        return torch.where(ended, torch.where(safe, 100.0, -100.0).to(gain), gain)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """With legs unfolded, a wind that stays and engines that do not scatter; possible where
        finite."""
        seen = obs.double()
        body = seen[:, :6] / self._size + self._zero
        rest = torch.zeros(len(obs), 3, dtype=torch.float64, device=obs.device)
        rest[:, 0] = 100.0
        return torch.cat([body, rest, seen[:, 6:]], dim=-1), finite_rows(obs)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """The lander is at the ground."""
        return next_obs[:, 1] <= 0.05


def powers(action: Tensor) -> tuple[Tensor, Tensor]:
    """[B] of the main engine (off, or 0.5 to 1 above 0) and the side engines (off, or 0.5 to 1
    beyond 0.5)."""
    main = torch.where(action[:, 0] > 0, 0.5 * (action[:, 0] + 1), 0.0)
    side = action[:, 1].abs()
    return main, torch.where(side > 0.5, side, 0.0)


def engines(
    angle: Tensor, main: Tensor, side: Tensor, sign: Tensor, scatter: list[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """The place [B, 2] from the lander's origin and the impulse [B, 2] (N s) of both engines, as
    gymnasium's LunarLander has them, its skewed side engines included."""
    sine, cosine = angle.sin(), angle.cos()
    kicks = []
    parts = ((4 / 30 + 2 * scatter[0], scatter[1]), (scatter[0], 3 * scatter[1] + sign * 12 / 30))
    for (along, across), power in zip(parts, (13.0 * main, 0.6 * side), strict=True):
        out = torch.stack([sine * along - cosine * across, -cosine * along - sine * across], dim=-1)
        kicks.append((out, -power[:, None] * out))
    skew = torch.stack([-sine * 17 / 30, cosine * 14 / 30], dim=-1)
    return [kicks[0], (kicks[1][0] + skew, kicks[1][1])]


def potential(obs: Tensor) -> Tensor:
    """[B] of LunarLander, without its legs."""
    value: Tensor = -100 * (obs[:, :2].norm(dim=-1) + obs[:, 2:4].norm(dim=-1) + obs[:, 4].abs())
    return value
