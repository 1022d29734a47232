"""MuJoCo tasks of NeoRL-2 (Gao et al., 2025, arXiv 2503.19267): gymnasium's robots with another
reward, another observation, or numbers of the model that each episode draws."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.tasks.common import uniform
from mbrl.tasks.mujoco_table import (
    REFUSED,
    ROBOTS,
    Robot,
    Rows,
    Varied,
    hopper_seen,
    runner_invert,
    runner_observe,
    runner_reward,
)

SPEED_LIMIT = 3.2096  # m/s; HalfCheetah's in Safety-Gymnasium


def safe_reward(old: Rows, new: Rows, action: Tensor, ended: Tensor, dt: float) -> Tensor:
    """HalfCheetah's reward, and -100 in its place beyond the speed limit."""
    speed = (new.q[:, 0] - old.q[:, 0]) / dt
    usual = runner_reward(0.1)(old, new, action, ended, dt)
    return torch.where(speed > SPEED_LIMIT, -100.0, usual)


def older_margin(model: Any) -> None:
    """Contacts with the floor at 1 mm, as in the data. Since version 3.5 MuJoCo adds the margins of
    the two geoms (1 mm each) where it took the larger one; with none of the floor's both agree."""
    model.geom("floor").margin[0] = 0.0


def friction_draw(count: int, generator: torch.Generator) -> Tensor:
    """[count, 1]: the foot's friction, uniform on [1.5, 2.5)."""
    return uniform(count, 1.5, 2.5, 1, generator).cpu()


def friction_write(model: Any, row: np.ndarray) -> None:
    """Set the foot's sliding friction, to two decimals: NeoRL-2 has one model file for each, while
    what is observed is the number as it was drawn."""
    model.geom("foot_geom").friction[0] = round(float(row[0]), 2)


def friction_observe(rows: Rows) -> Tensor:
    """All positions, clipped speeds, then the friction."""
    return torch.cat([runner_observe(0, clip=True)(rows), rows.extra], dim=-1)


def friction_invert(obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nothing is hidden; impossible where a speed stands at its clip."""
    q, v, possible = runner_invert(0, 6, clip=True)(obs[:, :12])
    friction = obs[:, 12]
    return q, v, possible & torch.isfinite(friction) & (friction > 0) & (friction < REFUSED)


def friction_seen(obs: Tensor) -> Tensor:
    """Hopper's rule on what is observed, where speeds are clipped."""
    return hopper_seen(obs[:, 1:12])


def friction_ended(rows: Rows) -> Tensor:
    return friction_seen(friction_observe(rows))


VARIANTS: dict[str, Robot] = {
    "SafetyHalfCheetah-v0": replace(
        ROBOTS["HalfCheetah-v4"],
        obs_dim=18,
        observe=runner_observe(0, clip=False),
        invert=runner_invert(0, 9, clip=False),
        reward=safe_reward,
    ),
    "RandomFrictionHopper-v0": replace(
        ROBOTS["Hopper-v4"],
        obs_dim=13,
        observe=friction_observe,
        reward=runner_reward(1e-3),
        ended=friction_ended,
        terminates=friction_seen,
        invert=friction_invert,
        varied=Varied(1, friction_draw, lambda obs: obs[:, 12:], friction_write),
        prepare=older_margin,
    ),
}
