"""What gymnasium's MuJoCo environments compute around the simulator, as batched float64 functions:
observations, rewards, ends, starts and their inverses, one `Robot` for each id.

Version 4 and 5 of an environment differ in the alive bonus of the terminating step (paid in v4
only), in a few observation entries, and for Walker2d in the model file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mbrl.tasks.common import finite_rows, normal, on_circle, uniform

REFUSED = 1e10  # the size at which MuJoCo resets a simulation as unstable
CLIP = 10.0  # the bound of clipped speeds and constraint forces


class Rows(NamedTuple):
    """Simulator rows: positions [B, nq], speeds [B, nv], and what gymnasium reads besides."""

    q: Tensor
    v: Tensor
    extra: Tensor


class Varied(NamedTuple):
    """Numbers of the model that differ between episodes. They end the state and `Rows.extra`."""

    size: int
    draw: Callable[[int, torch.Generator], Tensor]  # [B, size] of new episodes
    read: Callable[[Tensor], Tensor]  # [B, size] from observations
    write: Callable[[Any, np.ndarray], None]  # one row of them into a model


@dataclass(frozen=True)
class Robot:
    """One environment. `extra` are numbers of MuJoCo's data that gymnasium reads after a step,
    while they still are those of the integrator's last stage; so they belong to the state."""

    xml: str
    frame_skip: int
    obs_dim: int
    observe: Callable[[Rows], Tensor]
    reward: Callable[[Rows, Rows, Tensor, Tensor, float], Tensor]  # old, new, action, ended, dt
    ended: Callable[[Rows], Tensor]
    terminates: Callable[[Tensor], Tensor]
    invert: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # obs -> q, v, possible
    start: Callable[[int, torch.Generator, Tensor, int], tuple[Tensor, Tensor]]
    extra: Callable[[Any], np.ndarray] | None = None
    restore: Callable[[Tensor, Tensor], Tensor] | None = None  # obs, extra -> extra seen in obs
    contact_forces: bool = False
    varied: Varied | None = None
    prepare: Callable[[Any], None] | None = None  # changes the model once, after it is compiled
    max_episode_steps: int = 1000


def start_noise(scale: float, gaussian_speed: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Starts: qpos0 plus uniform noise of `scale`, speeds uniform or normal of the same scale."""

    def start(count: int, generator: torch.Generator, q0: Tensor, nv: int) -> tuple[Tensor, Tensor]:
        q = q0 + uniform(count, -scale, scale, len(q0), generator).cpu()
        if gaussian_speed:
            return q, scale * normal(count, nv, generator).cpu()
        return q, uniform(count, -scale, scale, nv, generator).cpu()

    return start


def reacher_start(
    count: int, generator: torch.Generator, q0: Tensor, nv: int
) -> tuple[Tensor, Tensor]:
    """Joints within 0.1, target uniform on the disc of radius 0.2, joint speeds within 0.005."""
    q = q0 + uniform(count, -0.1, 0.1, len(q0), generator).cpu()
    polar = uniform(count, 0.0, 1.0, 2, generator).cpu()
    radius, angle = 0.2 * polar[:, 0].sqrt(), 2 * math.pi * polar[:, 1]
    q[:, 2:] = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    v = uniform(count, -0.005, 0.005, nv, generator).cpu()
    v[:, 2:] = 0.0
    return q, v


def never(rows: Rows) -> Tensor:
    return torch.zeros(len(rows.q), dtype=torch.bool)


def never_seen(obs: Tensor) -> Tensor:
    return torch.zeros(len(obs), dtype=torch.bool, device=obs.device)


def usable(obs: Tensor) -> Tensor:
    """[B] bool: finite and small enough for the simulator."""
    return finite_rows(obs) & (obs.abs() < REFUSED).all(dim=-1)


def squares(action: Tensor) -> Tensor:
    return action.square().sum(dim=-1)


# --- runners: Swimmer, Hopper, HalfCheetah, Walker2d ---------------------------------------------


def runner_observe(hidden: int, clip: bool) -> Callable[[Rows], Tensor]:
    """Positions without the first `hidden` (root x, or x and y), then speeds."""

    def observe(rows: Rows) -> Tensor:
        v = rows.v.clamp(-CLIP, CLIP) if clip else rows.v
        return torch.cat([rows.q[:, hidden:], v], dim=-1)

    return observe


def runner_invert(hidden: int, nq: int, clip: bool) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The hidden root coordinates are 0; impossible where a speed stands at its clip."""

    def invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = torch.cat([obs.new_zeros(len(obs), hidden), obs[:, : nq - hidden]], dim=-1)
        v = obs[:, nq - hidden :]
        possible = usable(obs)
        return q, v, possible & (v.abs() < CLIP).all(dim=-1) if clip else possible

    return invert


def runner_reward(
    control: float, alive: float = 0.0, alive_at_end: bool = True
) -> Callable[..., Tensor]:
    """Root speed along x over the step, plus the bonus for being alive, minus control cost."""

    def reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
        bonus = alive if alive_at_end else alive * (~ended).double()
        return (new.q[:, 0] - old.q[:, 0]) / dt + bonus - control * squares(action)

    return reward


def hopper_seen(obs: Tensor) -> Tensor:
    """Fallen: height <= 0.7, tilt beyond 0.2 rad, or another entry beyond 100."""
    healthy = (obs[:, 1:].abs() < 100).all(dim=-1) & (obs[:, 0] > 0.7) & (obs[:, 1].abs() < 0.2)
    return ~(healthy & torch.isfinite(obs[:, 0]))


def hopper_ended(rows: Rows) -> Tensor:
    rest = torch.cat([rows.q[:, 2:], rows.v], dim=-1)
    healthy = (rest.abs() < 100).all(dim=-1) & (rows.q[:, 1] > 0.7) & (rows.q[:, 2].abs() < 0.2)
    return ~healthy


def walker_seen(obs: Tensor) -> Tensor:
    """Fallen: height outside (0.8, 2) or tilt beyond 1 rad."""
    return ~((obs[:, 0] > 0.8) & (obs[:, 0] < 2.0) & (obs[:, 1].abs() < 1.0))


def walker_ended(rows: Rows) -> Tensor:
    return walker_seen(rows.q[:, 1:3])


# --- Ant -----------------------------------------------------------------------------------------


def ant_extra(data: Any) -> np.ndarray:
    return np.array(data.xpos[1, :2])


def ant_extra_v5(data: Any) -> np.ndarray:
    return np.concatenate([data.xpos[1, :2], data.cfrc_ext.ravel()])


def ant_observe_v5(rows: Rows) -> Tensor:
    forces = rows.extra[:, 8:].clamp(-1.0, 1.0)  # without the world body
    return torch.cat([rows.q[:, 2:], rows.v, forces], dim=-1)


def ant_restore_v5(obs: Tensor, extra: Tensor) -> Tensor:
    return torch.cat([extra[:, :8], obs[:, 27:]], dim=-1)


def ant_seen(obs: Tensor) -> Tensor:
    """Torso height outside [0.2, 1], or not finite."""
    return ~(finite_rows(obs[:, :27]) & (obs[:, 0] >= 0.2) & (obs[:, 0] <= 1.0))


def ant_ended(rows: Rows) -> Tensor:
    finite = finite_rows(rows.q) & finite_rows(rows.v)
    return ~(finite & (rows.q[:, 2] >= 0.2) & (rows.q[:, 2] <= 1.0))


def ant_reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    return (new.extra[:, 0] - old.extra[:, 0]) / dt + 1.0 - 0.5 * squares(action)


def ant_reward_v5(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    contact = 5e-4 * new.extra[:, 2:].clamp(-1.0, 1.0).square().sum(dim=-1)
    return ant_reward(old, new, action, ended, dt) - ended.double() - contact


def ant_invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x = y = 0; the orientation must be a quaternion of norm 1, or near it: starts carry noise of
    0.1 on each of its entries, which the first step normalises away."""
    q = torch.cat([obs.new_zeros(len(obs), 2), obs[:, :13]], dim=-1)
    norm = obs[:, 1:5].norm(dim=-1)
    return q, obs[:, 13:27], usable(obs) & (norm > 0.89) & (norm < 1.13)


# --- pendulums -----------------------------------------------------------------------------------


def pendulum_observe(rows: Rows) -> Tensor:
    return torch.cat([rows.q, rows.v], dim=-1)


def pendulum_seen(obs: Tensor) -> Tensor:
    """Tilt beyond 0.2 rad, or not finite."""
    return ~(finite_rows(obs) & (obs[:, 1].abs() <= 0.2))


def pendulum_ended(rows: Rows) -> Tensor:
    return pendulum_seen(pendulum_observe(rows))


def pendulum_reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    return torch.ones_like(new.q[:, 0])


def pendulum_reward_v5(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    return (~ended).double()


def pendulum_invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return obs[:, :2], obs[:, 2:], usable(obs)


def double_extra(data: Any) -> np.ndarray:
    """Tip x and height, then the three constraint forces."""
    return np.concatenate([data.site_xpos[0, [0, 2]], data.qfrc_constraint])


def double_observe(forces: int) -> Callable[[Rows], Tensor]:
    """Cart position, sin and cos of both hinges, clipped speeds and constraint forces."""

    def observe(rows: Rows) -> Tensor:
        hinge, force = rows.q[:, 1:], rows.extra[:, 2 : 2 + forces]
        parts = [rows.q[:, :1], hinge.sin(), hinge.cos()]
        parts += [rows.v.clamp(-CLIP, CLIP), force.clamp(-CLIP, CLIP)]
        return torch.cat(parts, dim=-1)

    return observe


def double_restore(obs: Tensor, extra: Tensor) -> Tensor:
    forces = obs.shape[1] - 8
    return torch.cat([extra[:, :2], obs[:, 8:], extra[:, 2 + forces :]], dim=-1)


def double_seen(obs: Tensor) -> Tensor:
    """The tip, 0.6 cos t1 + 0.6 cos(t1 + t2) above the cart, is at or below 1."""
    sin1, sin2, cos1, cos2 = obs[:, 1:5].unbind(-1)
    return ~(0.6 * cos1 + 0.6 * (cos1 * cos2 - sin1 * sin2) > 1.0)


def double_ended(rows: Rows) -> Tensor:
    return rows.extra[:, 1] <= 1.0


def double_reward(alive_at_end: bool) -> Callable[..., Tensor]:
    """10 while up, minus the tip's squared distance from (0, 2) and small speed terms."""

    def reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
        x, y = new.extra[:, 0], new.extra[:, 1]
        alive = 10.0 if alive_at_end else 10.0 * (~ended).double()
        speed = 1e-3 * new.v[:, 1].square() + 5e-3 * new.v[:, 2].square()
        return alive - (0.01 * x.square() + (y - 2).square()) - speed

    return reward


def double_invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hinges from atan2; impossible off the circle or where a speed stands at its clip."""
    sin1, sin2, cos1, cos2 = obs[:, 1:5].unbind(-1)
    q = torch.stack([obs[:, 0], torch.atan2(sin1, cos1), torch.atan2(sin2, cos2)], dim=-1)
    v = obs[:, 5:8]
    possible = usable(obs) & on_circle(cos1, sin1) & on_circle(cos2, sin2)
    return q, v, possible & (v.abs() < CLIP).all(dim=-1)


# --- Reacher -------------------------------------------------------------------------------------


def reacher_extra(data: Any) -> np.ndarray:
    """Vector from the target to the fingertip (bodies 4 and 3)."""
    return np.array(data.xpos[3] - data.xpos[4])


def reacher_observe(size: int) -> Callable[[Rows], Tensor]:
    """cos and sin of both joints, target, joint speeds, vector from target to fingertip."""

    def observe(rows: Rows) -> Tensor:
        joint = rows.q[:, :2]
        parts = [joint.cos(), joint.sin(), rows.q[:, 2:], rows.v[:, :2], rows.extra[:, :size]]
        return torch.cat(parts, dim=-1)

    return observe


def reacher_restore(obs: Tensor, extra: Tensor) -> Tensor:
    return torch.cat([obs[:, 8:], extra[:, obs.shape[1] - 8 :]], dim=-1)


def reacher_reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    distance: Tensor = old.extra.norm(dim=-1)
    return -distance - squares(action)


def reacher_reward_v5(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    distance: Tensor = new.extra.norm(dim=-1)
    return -distance - squares(action)


def reacher_invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Joints from atan2, target at rest. The elbow's soft stop at 3 rad gives way by up to 0.4 rad
    under a steady push, past pi, so an elbow beyond 2.88 could be on either side: impossible."""
    cos1, cos2, sin1, sin2 = obs[:, :4].unbind(-1)
    joints = torch.stack([torch.atan2(sin1, cos1), torch.atan2(sin2, cos2)], dim=-1)
    v = torch.cat([obs[:, 6:8], obs.new_zeros(len(obs), 2)], dim=-1)
    possible = usable(obs) & on_circle(cos1, sin1) & on_circle(cos2, sin2)
    q = torch.cat([joints, obs[:, 4:6]], dim=-1)
    return q, v, possible & (joints[:, 1].abs() <= 2.88)


# --- the table -----------------------------------------------------------------------------------


def _runner(
    xml: str,
    frame_skip: int,
    nq: int,
    control: float,
    start: Callable[..., tuple[Tensor, Tensor]],
    hidden: int = 1,
) -> Robot:
    """A runner that never ends and whose speeds are not clipped: Swimmer, HalfCheetah."""
    return Robot(
        xml=xml,
        frame_skip=frame_skip,
        obs_dim=2 * nq - hidden,
        observe=runner_observe(hidden, clip=False),
        reward=runner_reward(control),
        ended=never,
        terminates=never_seen,
        invert=runner_invert(hidden, nq, clip=False),
        start=start,
    )


def _faller(
    xml: str,
    nq: int,
    version: int,
    ended: Callable[[Rows], Tensor],
    terminates: Callable[[Tensor], Tensor],
) -> Robot:
    """A runner that ends when it falls and whose speeds are clipped: Hopper, Walker2d."""
    return Robot(
        xml=xml,
        frame_skip=4,
        obs_dim=2 * nq - 1,
        observe=runner_observe(1, clip=True),
        reward=runner_reward(1e-3, alive=1.0, alive_at_end=version == 4),
        ended=ended,
        terminates=terminates,
        invert=runner_invert(1, nq, clip=True),
        start=start_noise(5e-3, gaussian_speed=False),
    )


def _pendulum(version: int) -> Robot:
    return Robot(
        xml="inverted_pendulum.xml",
        frame_skip=2,
        obs_dim=4,
        observe=pendulum_observe,
        reward=pendulum_reward if version == 4 else pendulum_reward_v5,
        ended=pendulum_ended,
        terminates=pendulum_seen,
        invert=pendulum_invert,
        start=start_noise(0.01, gaussian_speed=False),
    )


def _double(version: int) -> Robot:
    forces = 3 if version == 4 else 1
    return Robot(
        xml="inverted_double_pendulum.xml",
        frame_skip=5,
        obs_dim=8 + forces,
        observe=double_observe(forces),
        reward=double_reward(alive_at_end=version == 4),
        ended=double_ended,
        terminates=double_seen,
        invert=double_invert,
        start=start_noise(0.1, gaussian_speed=True),
        extra=double_extra,
        restore=double_restore,
    )


def _reacher(version: int) -> Robot:
    size = 3 if version == 4 else 2
    return Robot(
        xml="reacher.xml",
        frame_skip=2,
        obs_dim=8 + size,
        observe=reacher_observe(size),
        reward=reacher_reward if version == 4 else reacher_reward_v5,
        ended=never,
        terminates=never_seen,
        invert=reacher_invert,
        start=reacher_start,
        extra=reacher_extra,
        restore=reacher_restore,
        max_episode_steps=50,
    )


def _ant(version: int) -> Robot:
    v5 = version == 5
    return Robot(
        xml="ant.xml",
        frame_skip=5,
        obs_dim=105 if v5 else 27,
        observe=ant_observe_v5 if v5 else runner_observe(2, clip=False),
        reward=ant_reward_v5 if v5 else ant_reward,
        ended=ant_ended,
        terminates=ant_seen,
        invert=ant_invert,
        start=start_noise(0.1, gaussian_speed=True),
        extra=ant_extra_v5 if v5 else ant_extra,
        restore=ant_restore_v5 if v5 else None,
        contact_forces=v5,
    )


_SWIMMER = _runner("swimmer.xml", 4, 5, 1e-4, start_noise(0.1, gaussian_speed=False), hidden=2)
_CHEETAH = _runner("half_cheetah.xml", 5, 9, 0.1, start_noise(0.1, gaussian_speed=True))

ROBOTS: dict[str, Robot] = {
    "InvertedPendulum-v4": _pendulum(4),
    "InvertedPendulum-v5": _pendulum(5),
    "InvertedDoublePendulum-v4": _double(4),
    "InvertedDoublePendulum-v5": _double(5),
    "Reacher-v4": _reacher(4),
    "Reacher-v5": _reacher(5),
    "Swimmer-v4": _SWIMMER,
    "Swimmer-v5": _SWIMMER,
    "Hopper-v4": _faller("hopper.xml", 6, 4, hopper_ended, hopper_seen),
    "Hopper-v5": _faller("hopper.xml", 6, 5, hopper_ended, hopper_seen),
    "HalfCheetah-v4": _CHEETAH,
    "HalfCheetah-v5": _CHEETAH,
    "Walker2d-v4": _faller("walker2d.xml", 9, 4, walker_ended, walker_seen),
    "Walker2d-v5": _faller("walker2d_v5.xml", 9, 5, walker_ended, walker_seen),
    "Ant-v4": _ant(4),
    "Ant-v5": _ant(5),
}
