"""Recording a dataset of any task: a random policy, a function, an agent, or a model of
stable-baselines3 acts in it."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import algorithms
from experiments.recording.actor_arrays import Actor, actor_of
from experiments.recording.behaviour import (
    Behaviour,
    RecordingFailed,
    Report,
    TimedBehaviour,
    at_step,
    record,
    step_limit,
    uniform_actions,
    with_noise,
)
from mbrl.data import from_arrays
from mbrl.errors import ConfigError, TaskError
from mbrl.evaluation import require_fit
from mbrl.sb3 import SB3Policy, is_model, load_model
from mbrl.tasks import Task, as_task
from mbrl.training import chosen_action, is_stateful
from mbrl.types import Dataset, Provenance, Spec, Transitions

STEPS = 10_000  # transitions recorded where nothing else is said
RECORDED = [name for name in Transitions.__dataclass_fields__ if name != "weight"]


class RecordingStopped(TaskError):
    """The environment failed; `dataset` has the transitions before that."""

    def __init__(self, problem: RecordingFailed, dataset: Dataset) -> None:
        super().__init__(str(problem))
        self.dataset = dataset


def collect(
    task: Any,
    policy: Any = "random",
    steps: int = STEPS,
    *,
    seed: int = 0,
    greedy: bool = False,
    noise: float = 0.0,
) -> Dataset:
    """A dataset of whole episodes, at least `steps` transitions in all, of `policy` in `task`.

    `task` is a task, an id, a gymnasium environment or a function that makes one. `policy` is
    "random" (uniform over the actions), an agent, a model of stable-baselines3, an `Actor` of
    arrays, or a function of flat observations [B, S] (a tensor) and a `torch.Generator` to actions
    [B, A] in the task's units ([B] int64 where discrete; where the task masks actions a third
    argument says which are allowed, [B, n]). `greedy` takes the greedy actions of an agent, a model
    or an actor instead of sampled ones; `noise` adds Gaussian noise of that share of the action
    range. Raises `RecordingStopped`, with what was recorded, where the environment fails.
    """
    return record_dataset(as_task(task), policy, steps, seed=seed, greedy=greedy, noise=noise)


def record_dataset(
    task: Task,
    policy: Any,
    steps: int,
    *,
    seed: int,
    greedy: bool,
    noise: float = 0.0,
    recipe: str | None = None,
    report: Report = lambda done: None,
) -> Dataset:
    """`collect` with the `recipe` for the provenance, and progress by `report`."""
    act = with_noise(behaviour(policy, task.spec, greedy=greedy), task.spec, noise)
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            rows = record(task, act, steps, generator, report=report)
    except RecordingFailed as problem:
        if problem.rows is None:
            raise
        raise RecordingStopped(
            problem, dataset_of_rows(problem.rows, task.spec, recipe)
        ) from problem
    return dataset_of_rows(rows, task.spec, recipe)


def dataset_of_rows(rows: Transitions, spec: Spec, recipe: str | None) -> Dataset:
    """The verified dataset of rows that were recorded in the task of `spec`."""
    arrays = {name: getattr(rows, name) for name in RECORDED}
    provenance = Provenance(card=f"recorded in {spec.task}", recipe=recipe)
    return from_arrays(**arrays, spec=spec, provenance=provenance)


def behaviour(policy: Any, spec: Spec, *, greedy: bool = False) -> Behaviour | TimedBehaviour:
    """What acts for `policy` in a task of `spec`. Raises `ConfigError` for what cannot."""
    if isinstance(policy, str) and policy == "random":
        return uniform_actions(spec)
    if isinstance(policy, Actor):
        return policy.behaviour(spec, greedy=greedy)
    acting: Any
    if is_model(policy):
        acting = SB3Policy(policy, spec)
    elif hasattr(policy, "policy") and hasattr(policy, "spec"):
        require_fit(policy.spec, spec)
        if spec.action_mask and not policy.takes_masks:
            raise ConfigError(f"{type(policy).__name__} does not keep to the task's action masks")
        acting = policy.policy
    elif callable(policy):
        return _checked(policy, spec)
    else:
        raise ConfigError(
            f"policy is {policy!r}; give 'random', an agent, a model of stable-baselines3, or a "
            "function of observations and a generator"
        )
    if is_stateful(acting):
        raise ConfigError(
            f"{type(policy).__name__} has a memory or a plan; record with a policy that acts upon "
            "the observation alone"
        )
    device = next(acting.parameters()).device
    draws: dict[str, torch.Generator] = {}

    def act(obs: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
        if device.type != "cpu" and not draws:  # a generator draws on its own device
            draws["there"] = torch.Generator(device).manual_seed(generator.initial_seed())
        source = draws.get("there", generator)
        seen = obs.to(device, torch.float32)
        return chosen_action(acting, seen, source, deterministic=greedy, mask=mask).cpu()

    return act


@torch.no_grad()
def policy_returns(
    task: Task, policy: Any, episodes: int, *, seed: int = 0, greedy: bool = False
) -> Tensor:
    """Undiscounted returns [episodes], float64, of `policy` (as in `collect`) in a task of this
    library, all episodes side by side."""
    acting = behaviour(policy, task.spec, greedy=greedy)
    generator = torch.Generator().manual_seed(seed)
    state = task.reset(episodes, generator)
    obs, going = task.observe(state), torch.arange(episodes)
    total = torch.zeros(episodes, dtype=torch.float64)
    for t in range(step_limit(task.spec)):
        step = task.step(state, at_step(acting, t)(obs, generator))
        total[going] += step.reward.double()
        alive = ~step.ended
        going, state, obs = going[alive], step.state[alive], step.obs[alive]
        if not len(going):
            break
    return total


def _checked(function: Any, spec: Spec) -> Behaviour:
    """`function` as a behaviour, whose answers become tensors of the right type."""
    dtype = torch.int64 if spec.discrete else torch.float32

    def act(obs: Tensor, generator: torch.Generator, *mask: Tensor) -> Tensor:
        given = torch.as_tensor(function(obs, generator, *mask))
        action = given.to(dtype)
        if spec.discrete and bool((action != given).any()):
            raise ConfigError(
                f"the policy gave {given.flatten()[:3].tolist()} for {spec.task!r}, whose actions "
                "are discrete; it must give whole numbers, [B] int64"
            )
        shape = (len(obs),) if spec.discrete else (len(obs), spec.action_dim)
        if tuple(action.shape) != shape:
            raise ConfigError(
                f"the policy gave actions of shape {tuple(action.shape)} for {len(obs)} "
                f"observations of {spec.task!r}; it must give {shape}"
            )
        if not spec.discrete:
            require_bounds(action, spec)
        return action

    return act


def require_bounds(action: Tensor, spec: Spec) -> None:
    """Raise `ConfigError` for actions [B, A] of a policy that lie outside of the task's bounds."""
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    slack = 1e-5 * (high - low)  # rounding of a bound
    outside = ~((action >= low - slack) & (action <= high + slack))
    if bool(outside.any()):
        row, entry = outside.nonzero()[0].tolist()
        raise ConfigError(
            f"the policy gave {float(action[row, entry]):g} for entry {entry} of an action of "
            f"{spec.task!r}, whose bounds are {spec.action_low[entry]:g} and "
            f"{spec.action_high[entry]:g}; clip its actions"
        )


def named_policy(name: str) -> Any:
    """The policy that a name on the command line stands for: random, a run folder or checkpoint, a
    zip of stable-baselines3, an actor's arrays (npz), or an entry point module:function."""
    path = Path(name)
    if name == "random":
        return name
    if path.suffix == ".zip":
        return load_model(path)
    if path.suffix == ".npz":
        return actor_of(path)
    if path.is_dir() or path.suffix == ".pt":
        return algorithms.load(path / "checkpoint.pt" if path.is_dir() else path)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(
            f"policy is {name!r}; allowed: random, a run folder, a checkpoint (.pt), a model of "
            "stable-baselines3 (.zip), arrays of an actor (.npz), or mypackage.policies:act"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"policy {name!r} cannot be imported: {problem}") from problem
    if not callable(function):
        raise ConfigError(f"policy {name!r} is a {type(function).__name__}, not a function")
    return function
