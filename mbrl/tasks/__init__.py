"""Tasks by id: `make("Pendulum-v1")` gives a pure, batched simulator (`mbrl.tasks.base.Task`)."""

import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch

from mbrl.errors import ConfigError
from mbrl.tasks import randomness
from mbrl.tasks.base import LiveTask, Step, Task, as_live
from mbrl.tasks.classic import (
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
)
from mbrl.tasks.context_grid import ContextGrid
from mbrl.tasks.door_chain import DoorChain
from mbrl.tasks.glucose import Simglucose
from mbrl.tasks.gym_source import LIMIT as STEP_LIMIT
from mbrl.tasks.gym_source import is_known, require_declared, unknown_text
from mbrl.tasks.gym_task import GymTask
from mbrl.tasks.modes import Modes, Obstacle
from mbrl.tasks.mujoco import MUJOCO_TASKS, MujocoTask
from mbrl.tasks.neorl2 import DoubleMassSpring, Pipeline
from mbrl.tasks.point_maze import LAYOUTS, STEPS, PointMaze
from mbrl.tasks.push_blocks import LIMIT, MOST, PushBlocks
from mbrl.tasks.randomness import randomised
from mbrl.tasks.rocket import RocketRecovery
from mbrl.tasks.synthetic import CartPoleSwingUp, PointMass
from mbrl.tasks.winding_road import WindingRoad
from mbrl.types import Spec

__all__ = [
    "TASKS",
    "LiveTask",
    "Step",
    "Task",
    "as_live",
    "as_task",
    "is_task",
    "make",
    "make_for",
    "require_task",
]

TASKS: dict[str, Callable[..., Task]] = {
    "Pendulum-v1": Pendulum,
    "CartPole-v1": CartPole,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Acrobot-v1": Acrobot,
    "CartPoleSwingUp-v0": CartPoleSwingUp,
    "PointMass-v0": PointMass,
    "Modes-v0": Modes,
    "Obstacle-v0": Obstacle,
    "DMSD-v0": DoubleMassSpring,
    "Simglucose-v0": Simglucose,
    "Pipeline-v0": Pipeline,
    "RocketRecovery-v0": RocketRecovery,
    "WindingRoad-v0": WindingRoad,
    "DoorChain-v0": DoorChain,
    "ContextGrid-v0": ContextGrid,
    **{f"PointMaze-{maze}-v0": functools.partial(PointMaze, maze) for maze in LAYOUTS},
    **{
        f"PushBlocks-{blocks}-v0": functools.partial(PushBlocks, blocks)
        for blocks in range(1, MOST + 1)
    },
    **{robot: functools.partial(MujocoTask, robot) for robot in MUJOCO_TASKS},
}


OF_THE_MACHINE = ("threads",)  # options that change no step

KINDS: dict[type, tuple[Any, str]] = {  # what may be given, by the type of an option's default
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    tuple: (list | tuple, "a list"),
}
PYTHON = {"True": True, "False": False, "None": None}  # as Python writes them, not JSON

OWN = {  # those that are not gymnasium's, with their limits
    "CartPoleSwingUp-v0": 500,
    "PointMass-v0": 30,
    "Modes-v0": 1,
    "Obstacle-v0": 20,
    "DMSD-v0": 100,
    "SafetyHalfCheetah-v0": 1000,
    "Simglucose-v0": 480,
    "Pipeline-v0": 1000,
    "RocketRecovery-v0": 500,
    "RandomFrictionHopper-v0": 1000,
    "WindingRoad-v0": 250,
    "DoorChain-v0": 200,
    "ContextGrid-v0": 98,
    **{f"PointMaze-{maze}-v0": STEPS[maze] for maze in LAYOUTS},
    **{f"PushBlocks-{blocks}-v0": LIMIT * blocks for blocks in range(1, MOST + 1)},
}

for own, limit in OWN.items():  # `gymnasium.make("longreach/PointMass-v0")`; nothing is made yet
    gymnasium.register(
        f"longreach/{own}",
        entry_point="mbrl.tasks.gym_env:TaskEnvironment",
        kwargs={"task_id": own},
        max_episode_steps=limit,
    )


def make(
    task: Any,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Task:
    """The task called `task`; observations and rewards come in `dtype`, on `device`. Options may
    also stand behind the name: "CliffWalking-v1,max_episode_steps=200".

    Every task takes the options of `mbrl.tasks.randomness.Randomness` beside its own,
    "Pendulum-v1,sticky_actions=0.25", and `max_episode_steps`, another limit of its episodes, with
    which it has no reference returns.

    Beside the ids of this library it takes whatever `mbrl.tasks.gym_task.GymTask` does: other ids
    of gymnasium, an entry point "module:make_env", an environment, a function that makes one.
    """
    if isinstance(task, str):
        task, named = split_options(task)
        options = named | options
    options = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    own = {k: v for k, v in options.items() if k not in randomness.NAMES}
    chosen = {k: v for k, v in options.items() if k in randomness.NAMES}
    return randomised(_plain(task, device, dtype, own), chosen)


def _plain(
    task: Any, device: torch.device | str, dtype: torch.dtype, options: dict[str, Any]
) -> Task:
    if not isinstance(task, str) or task not in TASKS:
        return _gym_task(task, device=device, dtype=dtype, **options)
    constructor = TASKS[task]
    options = dict(options)
    limit = options.pop(STEP_LIMIT, None)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(constructor).parameters.items()
        if name not in ("device", "dtype")
    }
    unknown = sorted(set(options) - set(defaults))
    if unknown:
        raise ConfigError(
            f"task {task!r} has no option {', '.join(map(repr, unknown))}; "
            f"allowed: {', '.join(sorted(defaults)) or 'none'}; of every task: "
            f"{', '.join(sorted({STEP_LIMIT, *randomness.NAMES}))}"
        )
    for name, value in options.items():
        kind, text = KINDS.get(type(defaults[name]), (object, ""))
        if not isinstance(value, kind):
            raise ConfigError(f"task {task!r}: option {name} is {value!r}, it must be {text}")
    made: Any = constructor(device=device, dtype=dtype, **options)
    changed = {k: v for k, v in options.items() if k not in OF_THE_MACHINE and v != defaults[k]}
    # data that are recorded in the task are evaluated in it and not in the plain one
    made.spec = dataclasses.replace(made.spec, task_options=made.spec.task_options | changed)
    if limit not in (None, made.spec.max_episode_steps):
        given = made.spec.task_options | {STEP_LIMIT: limit}
        made.spec = dataclasses.replace(
            made.spec, max_episode_steps=limit, reference_returns=None, task_options=given
        )
    return cast(Task, made)


def make_for(spec: Spec, *, device: torch.device | str = "cpu") -> Task:
    """The task that `spec` describes, with the options that make it match the spec's data.

    A spec may come from a file of others, so of entry points only those are called that are
    environment classes or functions annotated to return one; `ConfigError` for others.
    """
    if spec.task not in TASKS and ":" in spec.task:
        require_declared(spec.task)
    return make(spec.task, device=device, **spec.task_options)


def as_task(value: Any) -> Task:
    """`value` where it is a task, else the task of an id, an environment or a factory."""
    if isinstance(value, str) or hasattr(value, "observation_space") or isinstance(value, type):
        return make(value)
    task: Task = value if hasattr(value, "observe") else make(value)
    return task


def is_task(name: str) -> bool:
    """Whether `name` is a task of this library, registered with gymnasium, or an entry point."""
    name, _, _ = name.partition(",")
    return name in TASKS or (not Path(name).exists() and is_known(name))


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """ "id,option=value,..." as the id and its options, whose values are JSON, True, False or None,
    or else text."""
    base, *rest = re.split(r",(?![^\[]*\])", name)  # not at commas of a list
    options: dict[str, Any] = {}
    for text in rest:
        option, equals, value = text.partition("=")
        if not equals or not option.isidentifier():
            raise ConfigError(
                f"{name!r}: {text!r} is no option; write them as {base},option=value,option=value"
            )
        try:
            options[option] = json.loads(value)
        except ValueError:
            options[option] = PYTHON.get(value, value)
    return base, options


def require_task(name: str) -> None:
    """Raise `ConfigError`, with the nearest names, unless `name` is a task."""
    if not is_task(name):
        raise ConfigError(unknown_text(name, tuple(TASKS)))


def _gym_task(source: Any, **options: Any) -> Task:
    if isinstance(source, str):
        require_task(source)
    return GymTask(source, **options)
