"""Policies that others publish as arrays in an npz file: agents of stable-baselines3 (the RL
Zoo's), the DAPG experts of Adroit, and the tianshou actors that recorded NeoRL-2's datasets."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.recording.behaviour import (
    Behaviour,
    TimedBehaviour,
    Weights,
    bounds,
    load_weights,
    step_limit,
)
from mbrl.errors import ConfigError
from mbrl.types import Spec

Activation = Callable[[Tensor], Tensor]
# Inputs [B, n] to the mean [B, A] and the standard deviation [A] or [B, A] (None: no distribution).
Head = Callable[[Tensor], tuple[Tensor, Tensor | None]]

LAYERS = ("preprocess.model.model.0", "preprocess.model.model.2", "mu.model.0")
KINDS = (
    "stable-baselines3's A2C, PPO and TRPO (action_net, log_std), ARS (action_net), SAC and TQC "
    "(actor.latent_pi, actor.mu), DDPG and TD3 (actor.mu.0, actor.mu.2, ...), DAPG's (w0, b0, ..., "
    f"log_std), tianshou's ({', '.join(LAYERS)})"
)
LOG_STD = (-20.0, 2.0)  # bounds of SAC's and TQC's log standard deviation
CONTACTS = {"Ant-v4": 84}  # forces that read zero in the simulators the Zoo's agents learned in
SDE_MEAN = 2.0  # SAC's clip of the mean where its exploration depends on the state


@dataclass(frozen=True)
class Actor:
    """A policy of continuous actions read from arrays.

    `head` gives mean and standard deviation of the actions before the bounds: `squashed` ones go
    through tanh and are scaled to the bounds of the task, others are clipped to them. `inputs` is
    how many numbers it takes: those of the observation, in Ant-v4 perhaps 84 contact forces, which
    are zero as they were when the agents were trained, and perhaps the share 1 - t / T of the
    episode's T steps that are left at step t (the time feature of rl-baselines3-zoo).
    """

    name: str
    head: Head
    inputs: int
    actions: int
    squashed: bool = False

    def behaviour(self, spec: Spec, *, greedy: bool = False) -> Behaviour | TimedBehaviour:
        """What acts in a task of `spec`: sampled from the distribution where there is one, else
        (and if `greedy`) the mean. Raises `ConfigError` where sizes do not fit, or actions are
        discrete."""
        contacts = self._contacts(spec)
        low, high = bounds(spec)

        def act(seen: Tensor, generator: torch.Generator) -> Tensor:
            action, sd = self.head(seen.float())
            if sd is not None and not greedy:
                action = action + sd * torch.randn(action.shape, generator=generator)
            if self.squashed:
                return low + 0.5 * (action.tanh() + 1.0) * (high - low)
            return action.clamp(low, high)

        extra = self.inputs - spec.obs_dim
        if extra == 0:
            return act
        horizon = step_limit(spec)

        def timed(obs: Tensor, generator: torch.Generator, elapsed: int) -> Tensor:
            appended = obs.new_zeros((len(obs), extra))
            appended[:, contacts:] = 1.0 - elapsed / horizon
            return act(torch.cat([obs, appended], dim=1), generator)

        return TimedBehaviour(timed)

    def _contacts(self, spec: Spec) -> int:
        """How many contact forces it takes that the task does not show."""
        if spec.discrete:
            raise ConfigError(
                f"{self.name} gives continuous actions; those of {spec.task!r} are discrete"
            )
        extra = self.inputs - spec.obs_dim
        hidden = CONTACTS.get(spec.task, 0)
        contacts = hidden if extra >= hidden else 0
        if self.actions != spec.action_dim or extra - contacts not in (0, 1):
            raise ConfigError(
                f"{self.name} takes {self.inputs} numbers and gives {self.actions}; {spec.task!r} "
                f"has {spec.obs_dim} observations, to which the time is added where one more is "
                f"taken, and {spec.action_dim} actions"
            )
        return contacts


def actor_of(path: Path) -> Actor:
    """The actor in an npz file. Raises `ConfigError` for a file that is not there, or is of no kind
    that is read (`KINDS`).

    Actors of stable-baselines3 have a `meta` JSON (algorithm, policy_kwargs) beside the parameters
    under their torch names, and `obs_mean`, `obs_var`, `obs_clip` where VecNormalize standardised
    observations. State-dependent exploration is sampled from its marginal at each step, where
    stable-baselines3 keeps one draw of the noise matrix for several. Tianshou's take no noise:
    every logged action of NeoRL-2's SafetyHalfCheetah and RandomFrictionHopper is the clipped mean
    of one of these files, to 1e-3. DAPG's are sampled with their log_std, as D4RL's script
    hand_dapg_policies.py does for the expert sets.
    """
    if not path.is_file():
        raise ConfigError(f"policy {path} does not exist")
    weights = load_weights(path)
    if f"{LAYERS[0]}.weight" in weights:
        return _tianshou(path.name, weights)
    if "w0" in weights and "log_std" in weights:
        return _dapg(path.name, weights)
    if "meta" in weights:
        actor = _stable_baselines(path.name, weights)
        if actor is not None:
            return actor
    raise ConfigError(f"policy {path} holds {', '.join(sorted(weights))[:200]}; read are {KINDS}")


def _tianshou(name: str, weights: Weights) -> Actor:
    return _network(name, layers_of(weights, LAYERS), torch.relu)


def _dapg(name: str, weights: Weights) -> Actor:
    """DAPG's network of tanh units over shifted and scaled inputs (mjrl's: no shift where none is
    stored), its output scaled and shifted."""
    count = sum(re.fullmatch(r"w\d+", key) is not None for key in weights)
    layers = [(_tensor(weights[f"w{i}"]), _tensor(weights[f"b{i}"])) for i in range(count)]
    actor = _network(name, layers, torch.tanh, sd=_tensor(weights["log_std"]).exp())
    if "in_shift" not in weights:
        return actor
    shift, scale = _tensor(weights["in_shift"]), _tensor(weights["in_scale"])
    out_shift, out_scale = _tensor(weights["out_shift"]), _tensor(weights["out_scale"])

    def head(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        mean, sd = actor.head((inputs - shift) / (scale + 1e-8))
        return mean * out_scale + out_shift, sd

    return Actor(name, head, actor.inputs, actor.actions)


def _stable_baselines(name: str, weights: Weights) -> Actor | None:
    """The actor of one of stable-baselines3's agents; None where it is none that is read."""
    meta = json.loads(weights["meta"].item())
    units = torch.relu if "ReLU" in str(meta.get("policy_kwargs", {})) else torch.tanh
    policy = sequence(weights, "mlp_extractor.policy_net")
    if policy and "log_std" in weights:
        actor = _gaussian(name, weights, policy, units)
    elif policy and "action_net.weight" in weights:
        raise ConfigError(f"policy {name} is of discrete actions; only continuous ones are read")
    elif "action_net.weight" in weights:
        actor = _network(name, layers_of(weights, ["action_net"]), torch.relu)
    elif sequence(weights, "action_net"):  # ARS with hidden layers squashes, without it clips
        layers = layers_of(weights, sequence(weights, "action_net"))
        actor = _network(name, layers, torch.relu, squashed=True)
    elif sequence(weights, "actor.latent_pi"):
        actor = _squashed_gaussian(name, weights)
    elif sequence(weights, "actor.mu"):
        layers = layers_of(weights, sequence(weights, "actor.mu"))
        actor = _network(name, layers, torch.relu, squashed=True)
    else:
        return None
    return _standardised(actor, weights)


def _gaussian(name: str, weights: Weights, policy: list[str], units: Activation) -> Actor:
    """A2C, PPO, TRPO: a diagonal Gaussian, with one spread an action or, where `log_std` is a
    matrix [H, A], one that depends on the last hidden layer (gSDE)."""
    hidden, log_std = layers_of(weights, policy), _tensor(weights["log_std"])
    ((weight, bias),) = layers_of(weights, ["action_net"])

    def head(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        latent = units(_forward(hidden, inputs, units))
        sd = log_std.exp() if log_std.ndim == 1 else marginal(latent, log_std)
        return latent @ weight.T + bias, sd

    return Actor(name, head, hidden[0][0].shape[1], len(weight))


def _squashed_gaussian(name: str, weights: Weights) -> Actor:
    """SAC and TQC: a Gaussian before the tanh, with or without gSDE."""
    hidden = layers_of(weights, sequence(weights, "actor.latent_pi"))
    sde = "actor.log_std" in weights
    ((weight, bias),) = layers_of(weights, ["actor.mu.0" if sde else "actor.mu"])
    spread = [] if sde else layers_of(weights, ["actor.log_std"])

    def head(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        latent = torch.relu(_forward(hidden, inputs, torch.relu))
        mean = latent @ weight.T + bias
        if sde:
            sd = marginal(latent, _tensor(weights["actor.log_std"]))
            return mean.clamp(-SDE_MEAN, SDE_MEAN), sd
        return mean, _forward(spread, latent, torch.relu).clamp(*LOG_STD).exp()

    return Actor(name, head, hidden[0][0].shape[1], len(weight), squashed=True)


def _standardised(actor: Actor, weights: Weights) -> Actor:
    """`actor` on observations as VecNormalize gives them, where it did."""
    if "obs_mean" not in weights or not bool(weights["norm_obs"]):
        return actor
    mean, clip = _tensor(weights["obs_mean"]), float(weights["obs_clip"])
    sd = _tensor(np.sqrt(weights["obs_var"] + 1e-8))
    head = actor.head

    def standardised(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        return head(((inputs - mean) / sd).clamp(-clip, clip))

    return Actor(actor.name, standardised, actor.inputs, actor.actions, actor.squashed)


def _network(
    name: str,
    layers: list[tuple[Tensor, Tensor]],
    units: Activation,
    *,
    sd: Tensor | None = None,
    squashed: bool = False,
) -> Actor:
    """A network whose output is the mean."""

    def head(inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        return _forward(layers, inputs, units), sd

    return Actor(name, head, layers[0][0].shape[1], len(layers[-1][0]), squashed)


def _forward(layers: list[tuple[Tensor, Tensor]], value: Tensor, units: Activation) -> Tensor:
    for i, (weight, bias) in enumerate(layers):
        value = (units(value) if i else value) @ weight.T + bias
    return value


def marginal(latent: Tensor, log_std: Tensor) -> Tensor:
    """Standard deviation [B, A] of latent [B, H] times a matrix of independent normals with the log
    standard deviations [H, A] ("Smooth Exploration for Robotic Reinforcement Learning", Raffin et
    al., https://arxiv.org/abs/2005.05719, equation 6)."""
    return (latent.square() @ (2 * log_std).exp() + 1e-6).sqrt()


def sequence(weights: Weights, prefix: str) -> list[str]:
    """Names of the layers `prefix`.0, `prefix`.2, ... in order."""
    pattern = re.compile(rf"{re.escape(prefix)}\.(\d+)\.weight")
    numbers = sorted(int(m[1]) for m in map(pattern.fullmatch, weights) if m)
    return [f"{prefix}.{n}" for n in numbers]


def layers_of(weights: Weights, names: Any) -> list[tuple[Tensor, Tensor]]:
    """Weight [out, in] and bias [out] (zero where none is stored) of each layer."""
    layers = []
    for name in names:
        if f"{name}.weight" not in weights:
            raise ConfigError(f"the policy has no {name}.weight; it has {', '.join(weights)[:200]}")
        weight = _tensor(weights[f"{name}.weight"])
        bias = weights.get(f"{name}.bias")
        layers.append((weight, torch.zeros(len(weight)) if bias is None else _tensor(bias)))
    return layers


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))
