"""WindingRoad-v0: a car on a winding road with parked cars and a speed limit, paid by one simple
product or by a shaped sum. The rewards are those that CaRL compares (CaRL: Learning Scalable
Planning Policies with Simple Rewards, arXiv 2504.17838), on a much smaller task."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mbrl.errors import unknown_name
from mbrl.tasks.base import LiveStep
from mbrl.tasks.common import check_dtype, continuous_action, uniform
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

DT, WHEELBASE = 0.2, 2.5  # s, m
ACCELERATION, STEERING, FASTEST = 4.0, 0.5, 15.0  # m/s^2 and rad at an action of 1; m/s
LENGTH, LIMIT_SPEED = 200.0, 8.0  # m along the road's axis; m/s
LANE, ROAD = 2.5, 4.5  # m to either side of the centre line
WAVES = ((5.0, 60.0), (2.0, 37.0))  # amplitude and length, m, of the centre line's sines
PARKED, OFFSET, CLEAR = 4, 1.8, 2.2  # cars; m off the centre; m between centres that touch
AHEAD = (5.0, 10.0, 15.0, 20.0, 30.0)  # m along the axis, of the waypoints that are seen
OVER = 2.23  # m/s above the limit at which the factor of speed is 0
CENTRE, PATIENCE = 0.5, 15  # m off the centre line, and for how many steps, without a penalty
SOON, GENTLE, ASIDE = 1.0, 3.0, 4.0  # s to a collision; m/s^2 along and across
MEMORY = 25  # steps for which a violation halves the reward
REWARDS = ("simple", "progress", "shaped")


class Facts(NamedTuple):
    """What a step's reward is made of, [B] each: `gain` of route completion in per cent; the
    factors `speed`, `time` (to collision), `comfort` and `centre` in [0, 1]; `inside` the lanes;
    and of this step alone, whether it is `soon` (to collide) or `rough`."""

    gain: Tensor
    speed: Tensor
    time: Tensor
    comfort: Tensor
    centre: Tensor
    inside: Tensor
    soon: Tensor
    rough: Tensor


def centre_line(x: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
    """Height and slope [...] of the centre line at `x` [...], for the `phases` [..., 2] of its
    waves."""
    y, slope = torch.zeros_like(x), torch.zeros_like(x)
    for i, (amplitude, length) in enumerate(WAVES):
        k = 2 * math.pi / length
        angle = k * x + phases[..., i]
        y, slope = y + amplitude * angle.sin(), slope + amplitude * k * angle.cos()
    return y, slope


def time_to_collision(place: Tensor, velocity: Tensor, parked: Tensor) -> Tensor:
    """[B] seconds until a car at `place` [B, 2] that keeps its `velocity` [B, 2] touches one of the
    `parked` [B, M, 2]; infinite where it does not."""
    apart = parked - place[:, None]  # [B, M, 2]
    along = (apart * velocity[:, None]).sum(-1)
    speed = velocity.square().sum(-1)[:, None]
    # |apart - v t| = CLEAR: the smaller root
    square = along.square() - speed * (apart.square().sum(-1) - CLEAR**2)
    root = (along - square.clamp_min(0).sqrt()) / speed.clamp_min(1e-9)
    hits = (square > 0) & (along > 0) & (speed > 1e-6)
    return torch.where(hits, root.clamp_min(0), torch.inf).amin(-1)


class WindingRoad:
    """WindingRoad-v0: drive along a winding road past parked cars.

    A kinematic bicycle of `WHEELBASE` 2.5 m, explicit Euler over 0.2 s: x += v cos h dt,
    y += v sin h dt, h += v / 2.5 tan(0.5 a_1) dt, v += 4 a_0 dt, v in [0, 15] m/s. The road's
    centre line is the sum of two sines of x, its phases drawn; four cars are parked at 40, 80, 120
    and 160 m (each moved by up to 8 m), 1.8 m to one side. Route completion is the furthest x so
    far, 200 m being 100 %; there the episode is cut. It terminates where a parked car is touched
    (2.2 m between centres) or the road is left (4.5 m from the centre line).

    `reward`: "simple", the gain of route completion in percent points times all soft factors:
    max(0, 1 - excess / 2.23) for speed above 8 m/s; 1/2 for 25 steps after a time to collision
    below 1 s, and after more than 3 m/s^2 along or 4 across; 1/2 while more than 0.5 m from the
    centre line for over 3 s; 0 outside the lanes (2.5 m). "progress": the gain alone. "shaped":
    (5 p + 5 time + 4 speed + 2 comfort) / 16 each step, p the gain over what 8 m/s would gain, at
    most 1; time and comfort are 0 in a step of a violation, else 1, speed is the factor above.

    Differences from the paper: penalties last 25 steps, not 500; no traffic, lights or lanes of
    others; progress is measured along the axis.
    """

    def __init__(
        self,
        *,
        reward: str = "simple",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("WindingRoad-v0", dtype)
        if reward not in REWARDS:
            raise unknown_name("reward of WindingRoad-v0", reward, REWARDS)
        self.device, self.dtype, self.reward_name = torch.device(device), dtype, reward
        self.spec = Spec(
            task="WindingRoad-v0",
            obs_dim=7 + 2 * len(AHEAD) + 4,
            action_dim=2,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            max_episode_steps=250,
            task_options={} if reward == "simple" else {"reward": reward},
            reference_returns=REFERENCE_RETURNS.get("WindingRoad-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 18]: on the centre line along the road at 4 m/s. Columns: x, y, heading,
        speed, furthest x, steps off the centre, steps that penalties for time and comfort still
        last, two phases, and the parked cars' x (4) and y (4)."""
        phases = uniform(count, 0.0, 2 * math.pi, 2, generator)
        move = uniform(count, -8.0, 8.0, PARKED, generator)
        side = uniform(count, 0.0, 1.0, PARKED, generator)
        x = torch.arange(1, PARKED + 1, device=move.device) * LENGTH / (PARKED + 1) + move
        y, slope = centre_line(x, phases[:, None].expand(-1, PARKED, -1))
        across = torch.where(side < 0.5, -OFFSET, OFFSET)
        angle = slope.atan()
        places = torch.cat([x - across * angle.sin(), y + across * angle.cos()], -1)
        start, slope = centre_line(torch.zeros(count).to(phases), phases)
        zero = torch.zeros_like(start)
        own = [zero, start, slope.atan(), zero + 4.0, zero, zero, zero, zero]
        state = torch.cat([torch.stack(own, -1), phases, places], -1)
        return state.to(self.device, self.dtype)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 21]: metres left of the centre line / 4, heading to the road (rad), speed / 8, what
        is left of the three penalties (shares), route completion (share), waypoints of the centre
        line and the two nearest parked cars, each ahead and left in units of 10 m."""
        x, y, heading, speed, furthest = state[:, :5].unbind(-1)
        line, slope = centre_line(x, state[:, 8:10])
        own = [
            (y - line) * slope.atan().cos() / 4,
            heading - slope.atan(),
            speed / LIMIT_SPEED,
            state[:, 5] / PATIENCE,
            state[:, 6] / MEMORY,
            state[:, 7] / MEMORY,
            furthest / LENGTH,
        ]
        ahead = x[:, None] + torch.tensor(AHEAD).to(x)
        height, _ = centre_line(ahead, state[:, None, 8:10].expand(-1, len(AHEAD), -1))
        places = torch.cat([torch.stack([ahead, height], -1), self._nearest(state)], 1)
        gap = places - state[:, None, :2]
        sine, cosine = heading.sin()[:, None], heading.cos()[:, None]
        front = cosine * gap[..., 0] + sine * gap[..., 1]
        left = cosine * gap[..., 1] - sine * gap[..., 0]
        seen = torch.stack([front, left], -1).flatten(1) / 10
        return torch.cat([torch.stack(own, -1), seen], -1)

    def _nearest(self, state: Tensor) -> Tensor:
        """[B, 2, 2] the two parked cars that are nearest, the nearest first."""
        cars = parked(state)
        order = (cars - state[:, None, :2]).square().sum(-1).argsort(-1)[:, :2]
        return cars.gather(1, order[..., None].expand(-1, -1, 2))

    def step(self, state: Tensor, action: Tensor) -> LiveStep:
        """The car moves by its speed and heading before the step, then these change."""
        action = continuous_action("WindingRoad-v0", action, 2).clamp(-1, 1).to(state.dtype)
        x, y, heading, speed = state[:, :4].unbind(-1)
        turn = speed / WHEELBASE * torch.tan(STEERING * action[:, 1])
        faster = (speed + DT * ACCELERATION * action[:, 0]).clamp(0.0, FASTEST)
        x, y = x + DT * speed * heading.cos(), y + DT * speed * heading.sin()
        moved = torch.stack([x, y, heading + DT * turn, faster], -1)
        facts, off = self._facts(state, moved, speed * turn)
        fresh = [
            torch.maximum(state[:, 4], x.clamp(max=LENGTH)),
            off,
            torch.where(facts.soon, float(MEMORY), (state[:, 6] - 1).clamp_min(0)),
            torch.where(facts.rough, float(MEMORY), (state[:, 7] - 1).clamp_min(0)),
        ]
        reached = torch.cat([moved, torch.stack(fresh, -1), state[:, 8:]], -1)
        ended = (distance_off(reached).abs() > ROAD) | (gap_to_parked(reached) < CLEAR)
        step = LiveStep(reached, self.observe(reached), self._reward(facts), ended)
        step.cut = (reached[:, 4] >= LENGTH) & ~ended
        return step

    def _facts(self, state: Tensor, moved: Tensor, across: Tensor) -> tuple[Facts, Tensor]:
        """The facts of a step to `moved` [B, 4] with the acceleration `across` [B], and how many
        steps the car has been off the centre [B]."""
        at = torch.cat([moved, state[:, 4:]], -1)
        off = distance_off(at).abs()
        count = torch.where(off > CENTRE, (state[:, 5] + 1).clamp(max=PATIENCE + 1), 0.0)
        heading, speed = moved[:, 2], moved[:, 3]
        velocity = torch.stack([speed * heading.cos(), speed * heading.sin()], -1)
        soon = time_to_collision(moved[:, :2], velocity, parked(at)) < SOON
        rough = ((speed - state[:, 3]).abs() / DT > GENTLE) | (across.abs() > ASIDE)
        gain = (moved[:, 0].clamp(max=LENGTH) - state[:, 4]).clamp_min(0) * 100 / LENGTH
        half, one = torch.full_like(gain, 0.5), torch.ones_like(gain)
        facts = Facts(
            gain,
            (1 - (speed - LIMIT_SPEED).clamp_min(0) / OVER).clamp_min(0),
            torch.where(soon | (state[:, 6] > 0), half, one),
            torch.where(rough | (state[:, 7] > 0), half, one),
            torch.where(count > PATIENCE, half, one),
            off <= LANE,
            soon,
            rough,
        )
        return facts, count

    def _reward(self, f: Facts) -> Tensor:
        if self.reward_name == "progress":
            return f.gain
        if self.reward_name == "simple":
            return f.gain * f.speed * f.time * f.comfort * f.centre * f.inside
        share = (f.gain * LENGTH / 100 / (DT * LIMIT_SPEED)).clamp(max=1)
        calm, gentle = (~f.soon).to(share), (~f.rough).to(share)
        total: Tensor = (5 * share + 5 * calm + 4 * f.speed + 2 * gentle) / 16
        return total

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """None: an observation shows two of the parked cars and a part of the road."""
        state = obs.new_zeros(len(obs), 10 + 2 * PARKED, dtype=self.dtype)
        return state, torch.zeros(len(obs), dtype=torch.bool, device=obs.device)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """The road is left, or the nearest parked car touched."""
        nearest = 10 * next_obs[:, -4:-2].norm(dim=-1)
        ended: Tensor = (4 * next_obs[:, 0].abs() > ROAD) | (nearest < CLEAR)
        return ended


def parked(state: Tensor) -> Tensor:
    """[B, 4, 2] places of the parked cars."""
    return torch.stack([state[:, 10 : 10 + PARKED], state[:, 10 + PARKED :]], -1)


def distance_off(state: Tensor) -> Tensor:
    """[B] metres left of the centre line, across the road at the car's x."""
    line, slope = centre_line(state[:, 0], state[:, 8:10])
    return (state[:, 1] - line) * slope.atan().cos()


def gap_to_parked(state: Tensor) -> Tensor:
    """[B] metres to the nearest parked car, between centres."""
    gap: Tensor = (parked(state) - state[:, None, :2]).norm(dim=-1).amin(-1)
    return gap
