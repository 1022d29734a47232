"""Policies of stable-baselines3 as agents here: to evaluate, and to record data with. The package
is imported only where a file of it is read."""

import importlib
import inspect
import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import Parameter

from mbrl.errors import ConfigError
from mbrl.types import Spec

ALGORITHMS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")


class SB3Policy:
    """`model.predict` as a policy of this library; observations are the flat ones of the task.

    Raises `ConfigError` for a model of Dict observations, of other sizes than `spec`'s, or with
    memory. Warns of one that was trained in a `VecNormalize` which it no longer has.
    """

    def __init__(self, model: Any, spec: Spec) -> None:
        self.model = model
        shape = getattr(model.observation_space, "shape", None)
        if shape is None or len(shape) != 1:
            raise ConfigError(
                f"the model's observations are {model.observation_space}, those of {spec.task!r} "
                f"here are flat, [{spec.obs_dim}]; train it on "
                "gymnasium.wrappers.FlattenObservation(env)"
            )
        actions = getattr(model.action_space, "n", None), model.action_space.shape or (1,)
        if (shape[0], actions[0], int(np.prod(actions[1]))) != (
            spec.obs_dim, spec.num_actions, spec.action_dim,
        ):  # fmt: skip
            raise ConfigError(
                f"the model takes {model.observation_space} and gives {model.action_space}; task "
                f"{spec.task!r} has {spec.obs_dim} observations and "
                f"{spec.num_actions or spec.action_dim} actions"
            )
        if hasattr(model.policy, "lstm_actor"):
            raise ConfigError(
                f"the model is a {type(model).__name__}, whose memory is not carried from step to "
                "step here; evaluate it with stable_baselines3.common.evaluation.evaluate_policy"
            )
        scaled = getattr(model, "get_vec_normalize_env", lambda: None)()
        self._normalised = scaled if scaled is not None and scaled.norm_obs else None
        # Set where training begins in a VecNormalize, and in a model's file, unlike that.
        if scaled is None and getattr(model, "_last_original_obs", None) is not None:
            warnings.warn(
                f"the model is a {type(model).__name__} that was trained in a VecNormalize, which "
                "its file does not hold: if that scaled observations, the model now sees others "
                "than it learned from. Give it back, model.set_env(VecNormalize.load(FILE, env)), "
                "and then the model to lr.evaluate or lr.collect",
                stacklevel=3,
            )
        self._masks = "action_masks" in inspect.signature(model.predict).parameters
        self._kind = model.observation_space.dtype

    def __call__(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._predict(obs, mask, deterministic=True)

    def explore(
        self, obs: Tensor, generator: Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """Sampled actions. stable-baselines3 draws from torch's own generator, which is seeded from
        `generator` for the call and put back after it."""
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self._predict(obs, mask, deterministic=False)

    def parameters(self) -> Iterator[Parameter]:
        weights: Iterator[Parameter] = self.model.policy.parameters()
        return weights

    def state_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = self.model.policy.state_dict()
        return values

    def _predict(self, obs: Tensor, mask: Tensor | None, *, deterministic: bool) -> Tensor:
        options: dict[str, Any] = {"deterministic": deterministic}
        if mask is not None and self._masks:  # sb3-contrib's MaskablePPO
            options["action_masks"] = mask.cpu().numpy()
        rows = obs.cpu().numpy().astype(self._kind)
        if self._normalised is not None:  # with the moments of its training
            rows = self._normalised.normalize_obs(rows)
        action, _ = self.model.predict(rows, **options)
        return torch.as_tensor(np.asarray(action)).to(obs.device)


class SB3Agent:
    """A model of stable-baselines3 with what evaluation asks of an agent: a policy, and a spec."""

    def __init__(self, model: Any, spec: Spec) -> None:
        self.spec, self.policy = spec, SB3Policy(model, spec)


def is_model(agent: Any) -> bool:
    """Whether `agent` looks like a model of stable-baselines3."""
    return hasattr(agent, "predict") and hasattr(agent, "observation_space")


def load_model(path: str | Path) -> Any:
    """The model in a zip file of stable-baselines3, whose algorithm the file tells. The package
    unpickles parts of it: load only files that you trust. Raises `ConfigError` for another file
    or where the package is missing."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read("data"))
        module = content["policy_class"]["__module__"]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as problem:
        raise ConfigError(
            f"{path} is no model of stable-baselines3 (a zip that model.save wrote): {problem}"
        ) from problem
    name = _algorithm(module, content)
    package = "sb3_contrib" if module.startswith("sb3_contrib") else "stable_baselines3"
    try:
        algorithm = getattr(importlib.import_module(package), name)
    except ImportError as problem:
        text = package.replace("_", "-")
        raise ConfigError(f"{path} needs {text}; pip install {text}") from problem
    return algorithm.load(path, device="cpu")


def _algorithm(module: str, content: dict[str, Any]) -> str:
    """The algorithm of a file, by the module of its policy and its settings."""
    part = module.split(".")[1]
    if module.startswith("stable_baselines3.common"):
        return "PPO" if "clip_range" in content else "A2C"
    if module.startswith("sb3_contrib.common.maskable"):
        return "MaskablePPO"
    known = {name.lower(): name for name in ALGORITHMS}
    if part not in known or not module.startswith("stable_baselines3."):
        raise ConfigError(
            f"the policy of the file is of {module}; known are those of {', '.join(ALGORITHMS)}. "
            "Load it with its own class and give the model to lr.evaluate"
        )
    return known[part]
