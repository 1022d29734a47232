"""Implicit Q-learning's value and policy steps in the compiled library (`implicit.cpp`)."""

import ctypes

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
from mbrl.networks import MLP, EnsembleMLP, TanhMeanGaussianPolicy
from mbrl.types import Spec

_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_Network = ctypes.POINTER(NetworkStruct)


class _Step(ctypes.Structure):
    _fields_ = (
        ("value", _Network),
        ("policy", _Network),
        ("critic", _Network),
        ("inputs", NormaliserStruct),
        ("obs", Column),
        ("action", Column),
        ("reward", Column),
        ("discount", Column),
        ("next_obs", Column),
        *SIZES,
        ("expectile", _Float),
        ("temperature", _Float),
        ("max_weight", _Float),
        ("log_std", _Pointer),
        ("log_std_moment", _Pointer),
        ("log_std_square", _Pointer),
        ("log_std_step", _Pointer),
        ("value_adam", AdamStruct),
        ("policy_adam", AdamStruct),
        ("target", _Pointer),
        ("metrics", _Pointer),
    )


class ImplicitSteps:
    """Steps of `value` and `policy`, each with its optimiser, against the target average
    `critic`."""

    def __init__(
        self,
        spec: Spec,
        value: tuple[MLP, torch.optim.Optimizer],
        policy: tuple[TanhMeanGaussianPolicy, torch.optim.Optimizer],
        critic: EnsembleMLP,
        *,
        expectile: float,
        temperature: float,
        max_weight: float,
    ) -> None:
        loaded = library()
        assert loaded is not None
        self.library = loaded
        self.value = Network(*value)
        self.policy = Network(policy[0].net, policy[1])
        self.critic = Network(critic)
        self.log_std, self.optimisers = policy[0].log_std, (value[1], policy[1])
        value_net, policy_net, critic_net = (
            ctypes.pointer(n.struct) for n in (self.value, self.policy, self.critic)
        )
        self._step = _Step(
            value=value_net,
            policy=policy_net,
            critic=critic_net,
            inputs=normaliser(policy[0].normaliser),
            obs_dim=spec.obs_dim,
            action_dim=spec.action_dim,
            expectile=expectile,
            temperature=temperature,
            max_weight=max_weight,
        )

    def ready(self, batch: Batch) -> bool:
        """Whether the optimisers have taken a first step and the batch is as the library reads
        it."""
        state = self.optimisers[1].state.get(self.log_std)
        networks = (self.value, self.policy, self.critic)
        if torch.compiler.is_compiling() or not state or not all(n.follow() for n in networks):
            return False
        self._step.log_std = self.log_std.data_ptr()
        self._step.log_std_moment = state["exp_avg"].data_ptr()
        self._step.log_std_square = state["exp_avg_sq"].data_ptr()
        self._step.log_std_step = state["step"].data_ptr()
        return all(readable(t) for t in (batch.obs, batch.action, batch.next_obs))

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One step of both; the critics' targets [B], and [3]: the value's loss, the policy's loss
        and the mean weight."""
        step, target, metrics = self._step, torch.empty(len(batch.obs)), torch.empty(3)
        step.obs, step.action, step.rows = column(batch.obs), column(batch.action), len(batch.obs)
        step.reward, step.discount = column(batch.reward), column(batch.discount)
        step.next_obs = column(batch.next_obs)
        step.value_adam, step.policy_adam = (
            adam_struct(o.param_groups[0]) for o in self.optimisers
        )
        step.target, step.metrics = target.data_ptr(), metrics.data_ptr()
        self.library.implicit_step(ctypes.byref(step))
        return target, metrics

    def average(self, critic: Network, rate: float) -> None:
        """Move the target average towards `critic`."""
        self.library.average_weights(
            ctypes.byref(self.critic.struct), ctypes.byref(critic.struct), ctypes.c_double(rate)
        )


def computes(value: MLP, policy: object, critic: EnsembleMLP) -> bool:
    """Whether the library is there and computes these networks."""
    return (
        isinstance(policy, TanhMeanGaussianPolicy)
        and fits(value)
        and fits(policy.net)
        and fits(critic)
        and library() is not None
    )
