"""Tasks by id: `make("Pendulum-v1")` gives a pure, batched simulator (`mbrl.tasks.base.Task`)."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from mbrl.errors import ConfigError, unknown_name
from mbrl.tasks.base import Step, Task
from mbrl.tasks.classic import (
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
)
from mbrl.tasks.mujoco import MujocoTask
from mbrl.tasks.mujoco_table import ROBOTS
from mbrl.tasks.synthetic import CartPoleSwingUp, PointMass
from mbrl.types import Spec

__all__ = ["TASKS", "Step", "Task", "make", "make_for"]

TASKS: dict[str, Callable[..., Task]] = {
    "Pendulum-v1": Pendulum,
    "CartPole-v1": CartPole,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Acrobot-v1": Acrobot,
    "CartPoleSwingUp-v0": CartPoleSwingUp,
    "PointMass-v0": PointMass,
    **{robot: functools.partial(MujocoTask, robot) for robot in ROBOTS},
}


def make(
    task_id: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Task:
    """The task called `task_id`; observations and rewards come in `dtype`, on `device`."""
    if task_id not in TASKS:
        raise unknown_name("task", task_id, TASKS)
    constructor = TASKS[task_id]
    allowed = sorted(set(inspect.signature(constructor).parameters) - {"device", "dtype"})
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ConfigError(
            f"task {task_id!r} has no option {', '.join(map(repr, unknown))}; "
            f"allowed: {', '.join(allowed) or 'none'}"
        )
    return constructor(device=device, dtype=dtype, **options)


def make_for(spec: Spec, *, device: torch.device | str = "cpu") -> Task:
    """The task that `spec` describes, with the options that make it match the spec's data."""
    return make(spec.task, device=device, **spec.task_options)
