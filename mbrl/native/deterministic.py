"""The steps of learners with a deterministic policy in the compiled library (`deterministic.cpp`):
the maths of `algorithms/learners/td3.py` and of cloning by squared errors."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.buffer import Batch
from mbrl.native.actor_critic import readable
from mbrl.native.build import library
from mbrl.native.networks import Network, column, fits, normaliser
from mbrl.native.structs import (
    SIZES,
    AdamStruct,
    Column,
    NetworkStruct,
    NormaliserStruct,
    adam_struct,
)
from mbrl.networks import DeterministicPolicy, EnsembleMLP
from mbrl.types import Spec

_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_Network = ctypes.POINTER(NetworkStruct)


class _Target(ctypes.Structure):
    _fields_ = (
        ("policy", _Network),
        ("critic", _Network),
        ("inputs", NormaliserStruct),
        ("obs", Column),
        ("reward", Column),
        ("discount", Column),
        ("next_action", Column),
        ("has_next", Column),
        ("noise", _Pointer),
        *SIZES,
        ("deviation", _Float),
        ("bound", _Float),
        ("penalty", _Float),
        ("target", _Pointer),
    )


class _PolicyStep(ctypes.Structure):
    _fields_ = (
        ("policy", _Network),
        ("critic", _Network),
        ("inputs", NormaliserStruct),
        ("obs", Column),
        ("logged", Column),
        *SIZES,
        ("of_minimum", _Int),
        ("normalised", _Int),
        ("value_weight", _Float),
        ("clone_weight", _Float),
        ("distance_scale", _Float),
        ("adam", AdamStruct),
        ("metrics", _Pointer),
    )


@dataclass(frozen=True)
class PolicyLoss:
    """mean (`clone_weight` `distance_scale` |a - logged|^2 - `value_weight` Q(s, a)), with the
    first critic's value or the minimum of all, divided by its mean size where `normalised`."""

    clone_weight: float
    distance_scale: float = 1.0
    value_weight: float = 0.0
    of_minimum: bool = False
    normalised: bool = False


class PolicySteps:
    """Steps of `policy`, trained by `optimiser`, on a `loss`; `critic` None: without values."""

    def __init__(
        self,
        spec: Spec,
        policy: DeterministicPolicy,
        optimiser: torch.optim.Optimizer,
        loss: PolicyLoss,
        critic: EnsembleMLP | None = None,
    ) -> None:
        loaded = library()
        assert loaded is not None
        self.library, self.optimiser = loaded, optimiser
        self.policy = Network(policy.net, optimiser)
        self.critic = None if critic is None else Network(critic)
        self._step = _PolicyStep(
            policy=ctypes.pointer(self.policy.struct),
            critic=ctypes.pointer((self.critic or self.policy).struct),
            inputs=normaliser(policy.normaliser),
            obs_dim=spec.obs_dim,
            action_dim=spec.action_dim,
            of_minimum=loss.of_minimum,
            normalised=loss.normalised,
            value_weight=loss.value_weight,
            clone_weight=loss.clone_weight * loss.distance_scale,
            distance_scale=loss.distance_scale,
        )

    def ready(self, batch: Batch) -> bool:
        """Whether the optimiser has taken a first step and the batch is as the library reads it."""
        return (
            not torch.compiler.is_compiling()
            and self.policy.follow()
            and (self.critic is None or self.critic.follow())
            and all(readable(t) for t in (batch.obs, batch.action, batch.next_obs))
        )

    def step(self, batch: Batch) -> Tensor:
        """One step; [2]: the loss, and the mean over rows of the scaled |a - logged|^2."""
        step, metrics = self._step, torch.empty(2)
        step.obs, step.logged, step.rows = column(batch.obs), column(batch.action), len(batch.obs)
        step.adam, step.metrics = adam_struct(self.optimiser.param_groups[0]), metrics.data_ptr()
        self.library.deterministic_policy_step(ctypes.byref(step))
        return metrics


class Targets:
    """Targets of `critic` [B] after `policy`'s noisy next action, both target averages:
    r + discount (min_n Q_n(s', a') - `penalty` |a' - logged|^2)."""

    def __init__(
        self,
        spec: Spec,
        policy: DeterministicPolicy,
        critic: EnsembleMLP,
        deviation: float,
        bound: float,
        penalty: float = 0.0,
    ) -> None:
        loaded = library()
        assert loaded is not None
        self.library = loaded
        self.policy, self.critic = Network(policy.net), Network(critic)
        self._step = _Target(
            policy=ctypes.pointer(self.policy.struct),
            critic=ctypes.pointer(self.critic.struct),
            inputs=normaliser(policy.normaliser),
            obs_dim=spec.obs_dim,
            action_dim=spec.action_dim,
            deviation=deviation,
            bound=bound,
            penalty=penalty,
        )

    def __call__(self, batch: Batch) -> Tensor:
        """The targets [B] of a batch with noise [1, B, A]."""
        self.policy.follow()
        self.critic.follow()
        step, target = self._step, torch.empty(len(batch.obs))
        assert batch.noise is not None and batch.noise.is_contiguous()
        step.obs, step.rows = column(batch.next_obs), len(batch.obs)
        step.reward, step.discount = column(batch.reward), column(batch.discount)
        if batch.next_action is not None and batch.has_next is not None:
            step.next_action, step.has_next = column(batch.next_action), column(batch.has_next)
        step.noise, step.target = batch.noise.data_ptr(), target.data_ptr()
        self.library.deterministic_target(ctypes.byref(step))
        return target

    def average(self, policy: Network, critic: Network, rate: float) -> None:
        """Move both target averages towards `policy` and `critic`."""
        for target, source in ((self.policy, policy), (self.critic, critic)):
            self.library.average_weights(
                ctypes.byref(target.struct), ctypes.byref(source.struct), ctypes.c_double(rate)
            )


def policy_steps(
    spec: Spec,
    policy: DeterministicPolicy,
    optimiser: torch.optim.Optimizer,
    loss: PolicyLoss,
    critic: EnsembleMLP | None = None,
) -> PolicySteps | None:
    """The steps of this policy, or None where the library is not there or cannot compute it."""
    if not fits(policy.net) or (critic is not None and not fits(critic)) or library() is None:
        return None
    return PolicySteps(spec, policy, optimiser, loss, critic)
