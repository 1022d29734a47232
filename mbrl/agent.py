"""The methods every algorithm class shares, as functions: `act`, `explored`, `predict`, `fit`,
`save`, `load`. An algorithm takes them over by name in its class body."""

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from mbrl import checkpoint
from mbrl import config as configs
from mbrl.errors import CheckpointError, ConfigError, DataError
from mbrl.progress import Progress
from mbrl.tasks import Task
from mbrl.training import Agent, Callback, Metrics, carries, train
from mbrl.types import Dataset, Spec

A = TypeVar("A", bound=Agent)


class Acting(Agent, Protocol):
    """An agent that has a way of its own to gather experience, or its policy's (`explored`)."""

    def explored(self, obs: Tensor, generator: torch.Generator | None) -> Tensor: ...


def explored(self: Agent, obs: Tensor, generator: torch.Generator | None) -> Tensor:
    """A stochastic action of the policy at raw observations [B, S], in the task's units."""
    action: Tensor = self.policy.explore(obs, generator)
    return action


def act(
    self: Acting,
    obs: Any,
    *,
    deterministic: bool = True,
    state: Any = None,
    generator: torch.Generator | None = None,
) -> tuple[Any, Any]:
    """Action in the task's units for raw observations [S] or [B, S], array or tensor; the same
    kind comes back. `state` is what the call for the step before returned (None for Markov agents
    and at an episode's start); a policy with memory wants to hear the reward in between:
    `state = agent.policy.heard(state, reward)`. A stochastic action, and a planner's, draws from
    `generator`."""
    batch = batched(self, obs)
    with torch.no_grad():
        if carries(self.policy):
            action, state = self.policy.proceed(
                batch, state, generator, deterministic=deterministic
            )
        else:
            action = self.policy(batch) if deterministic else self.explored(batch, generator)
    return alike(action, obs), state


def batched(self: Agent, obs: Any) -> Tensor:
    """Raw observations [S] or [B, S], array or tensor, as a batch [B, S] for the policy."""
    tensor = obs if isinstance(obs, Tensor) else torch.as_tensor(np.asarray(obs))
    if tensor.ndim not in (1, 2) or tensor.shape[-1] != self.spec.obs_dim:
        raise ConfigError(
            f"obs has shape {tuple(tensor.shape)}, task {self.spec.task!r} needs "
            f"[{self.spec.obs_dim}] or [B, {self.spec.obs_dim}]"
        )
    parameter = next(self.policy.parameters())
    return tensor.to(parameter.device, parameter.dtype).reshape(-1, self.spec.obs_dim)


def alike(action: Tensor, obs: Any) -> Any:
    """Actions [B, A] in the form of `obs`: an array or a tensor, one or a batch."""
    if np.ndim(obs) == 1:
        action = action[0]
    return action if isinstance(obs, Tensor) else action.cpu().numpy()


def predict(
    self: Acting,
    observation: Any,
    state: Any = None,
    episode_start: Any = None,
    deterministic: bool = False,
) -> tuple[np.ndarray, Any]:
    """Stable-Baselines3's signature, for its evaluation helpers and wrappers: where `episode_start`
    is True the memory is empty. An agent with memory hears no reward this way, since the signature
    has none; `mbrl.evaluation` tells it, and measures it as it was trained."""
    if state is not None and episode_start is not None:
        over = torch.as_tensor(np.asarray(episode_start, dtype=bool)).reshape(-1, 1)
        state = torch.where(over.to(state.device), torch.zeros_like(state), state)
    action, state = act(self, np.asarray(observation), deterministic=deterministic, state=state)
    return action, state


def fit(
    self: A,
    dataset: Dataset,
    steps: int,
    *,
    callbacks: Sequence[Callback] | None = None,
) -> A:
    """Train offline for `steps` further updates and return the agent.

    What comes first (normaliser, world model) is prepared unless it is there already. Without
    `callbacks` a progress bar is shown where the output is a terminal.
    """
    if steps < 0:
        raise ConfigError(f"steps is {steps}, it must be 0 or more")
    require_match(self.spec, dataset)
    if callbacks is None:
        callbacks = [Progress(total=self.step + steps)]

    def on_progress(metrics: Metrics) -> None:
        for callback in callbacks:
            callback("prepare", self, metrics)

    self.prepare(dataset, on_progress)
    train(self, self.step + steps, callbacks)
    return self


def learn(self: A, task: Task, steps: int, *, callbacks: Sequence[Callback] | None = None) -> A:
    """Interact with `task` for `steps` steps of each parallel copy. Without `callbacks` a progress
    line is shown. Raises `ConfigError` for a negative `steps`."""
    if steps < 0:
        raise ConfigError(f"steps is {steps}, it must be 0 or more")
    if callbacks is None:
        callbacks = [Progress(total=self.step + steps)]
    train(self, self.step + steps, callbacks, self.collector(task))  # type: ignore[attr-defined]
    return self


def require_match(spec: Spec, dataset: Dataset) -> None:
    """Raise `ConfigError` unless the dataset's observations and actions are those of `spec`."""
    mine = (spec.obs_dim, spec.action_dim, spec.num_actions)
    theirs = (dataset.spec.obs_dim, dataset.spec.action_dim, dataset.spec.num_actions)
    if mine != theirs:
        raise ConfigError(
            f"agent and dataset differ in (obs_dim, action_dim, num_actions): {mine} against "
            f"{theirs}; build the agent from dataset.spec"
        )
    if len(dataset) == 0:
        raise DataError(f"dataset {dataset.provenance.card!r} has no transitions")


def content(self: Agent) -> dict[str, Any]:
    """Everything a checkpoint of this agent holds."""
    return {
        "algorithm": type(self).__name__,
        "version": self.version,
        "spec": configs.to_dict(self.spec),
        "config": configs.to_dict(self.config),
        "seed": self.seed,
        "step": self.step,
        "state": self.state_dict(),
    }


def save(self: Agent, path: str | Path) -> None:
    """Write the whole agent, optimisers and generators included, to one file."""
    checkpoint.save(path, content(self))


def load(cls: type[A], path: str | Path, device: str = "cpu") -> A:
    """Read an agent that `save` wrote."""
    return restore(cls, checkpoint.load(path), device)


def restore(cls: type[A], values: dict[str, Any], device: str = "cpu") -> A:
    """Build an agent of class `cls` from a checkpoint's content."""
    if values.get("algorithm") != cls.__name__:
        raise CheckpointError(
            f"the checkpoint holds {values.get('algorithm')!r}, not {cls.__name__!r}; use "
            "algorithms.load, which reads the name"
        )
    if values["version"] != cls.version:
        raise CheckpointError(
            f"the checkpoint is of {cls.__name__} version {values['version']}, this library has "
            f"version {cls.version}; load it with the release that wrote it"
        )
    spec = Spec.from_dict(values["spec"])
    config_class = typing.get_type_hints(cls.__init__)["config"]
    if not dataclasses.is_dataclass(config_class):
        config_class = next(c for c in typing.get_args(config_class) if dataclasses.is_dataclass(c))
    config = configs.from_dict(config_class, values["config"])  # type: ignore[arg-type]
    agent: A = cls(spec, config, device=device, seed=values["seed"])  # type: ignore[call-arg]
    agent.load_state_dict(values["state"])
    agent.step = values["step"]
    return agent


def resolve_device(name: str) -> torch.device:
    """The torch device called `name`; `ConfigError` where there is none on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices here; "
            "use cpu, or install a CUDA build of torch"
        )
    return device


def generators(seed: int, device: torch.device) -> tuple[torch.Generator, torch.Generator]:
    """One generator for initial weights (always on the CPU, so that they do not depend on the
    device) and one for everything drawn while training."""
    initial = torch.Generator().manual_seed(seed)
    running = torch.Generator(device=device).manual_seed(seed + 1_000_003)
    return initial, running
