"""The soft actor-critic learner's steps in the compiled library (`actor_critic.cpp`): the maths of
`algorithms/learners/soft_actor_critic.py`, an update in four calls."""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from mbrl.buffer import Batch
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
from mbrl.networks import EnsembleMLP, Normaliser, SquashedGaussianPolicy
from mbrl.types import Spec

_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_Network = ctypes.POINTER(NetworkStruct)


class _PolicyStep(ctypes.Structure):
    _fields_ = (
        ("actor", _Network),
        ("critic", _Network),
        ("actor_inputs", NormaliserStruct),
        ("critic_inputs", NormaliserStruct),
        ("obs", Column),
        ("noise", _Pointer),
        *SIZES,
        ("log_alpha", _Pointer),
        ("alpha_moment", _Pointer),
        ("alpha_square", _Pointer),
        ("alpha_step", _Pointer),
        ("learn_alpha", _Int),
        ("of_mean", _Int),
        ("target_entropy", _Float),
        ("actor_adam", AdamStruct),
        ("alpha_adam", AdamStruct),
        ("metrics", _Pointer),
    )


class _SoftTarget(ctypes.Structure):
    _fields_ = (
        ("actor", _Network),
        ("critic", _Network),
        ("actor_inputs", NormaliserStruct),
        ("critic_inputs", NormaliserStruct),
        ("obs", Column),
        ("reward", Column),
        ("discount", Column),
        ("noise", _Pointer),
        ("subset", _Pointer),
        ("subset_size", _Int),
        *SIZES,
        ("log_alpha", _Float),
        ("with_entropy", _Int),
        ("target", _Pointer),
    )


class _CriticStep(ctypes.Structure):
    _fields_ = (
        ("critic", _Network),
        ("inputs", NormaliserStruct),
        ("obs", Column),
        ("action", Column),
        ("target", _Pointer),
        *SIZES,
        ("huber", _Float),
        ("eta", _Float),
        ("scale", ctypes.c_double),
        ("adam", AdamStruct),
        ("metrics", _Pointer),
    )


class CriticSteps:
    """Steps of `critic` Q(s, a), trained by `optimiser`, on its errors against given targets: their
    sum over members of the batch mean of squares (or Huber's, with a threshold `huber`) times
    `scale`, and `eta` times EDAC's diversity term. `inputs` standardises observations."""

    def __init__(
        self,
        spec: Spec,
        critic: EnsembleMLP,
        optimiser: torch.optim.Optimizer,
        *,
        inputs: Normaliser | None = None,
        huber: float | None = None,
        eta: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        loaded = library()
        assert loaded is not None
        self.library, self.optimiser = loaded, optimiser
        self.network, self.inputs = Network(critic, optimiser), inputs
        self._step = _CriticStep(
            critic=ctypes.pointer(self.network.struct),
            inputs=normaliser(inputs),
            obs_dim=spec.obs_dim,
            action_dim=spec.action_dim,
            huber=huber or 0.0,
            eta=eta,
            scale=scale,
        )

    def ready(self, batch: Batch) -> bool:
        """Whether the optimiser has taken a first step and the batch is as the library reads it."""
        columns = (batch.obs, batch.action, batch.next_obs)
        return (
            not torch.compiler.is_compiling()
            and self.network.follow()
            and all(readable(t) for t in columns)
        )

    def step(self, batch: Batch, target: Tensor) -> Tensor:
        """One step towards `target` [B]; [5]: loss, mean value, its spread over members, mean less
        minimum, diversity."""
        step, metrics, target = self._step, torch.empty(5), target.contiguous()
        step.obs, step.action, step.rows = column(batch.obs), column(batch.action), len(batch.obs)
        step.target, step.metrics = target.data_ptr(), metrics.data_ptr()
        step.adam = adam_struct(self.optimiser.param_groups[0])
        self.library.critic_step(ctypes.byref(step))
        return metrics


def critic_steps(
    spec: Spec, critic: EnsembleMLP, optimiser: torch.optim.Optimizer, **settings: Any
) -> CriticSteps | None:
    """The steps of this critic, or None where the library is not there or cannot compute it."""
    if spec.discrete or critic.out_dim != 1 or not fits(critic) or library() is None:
        return None
    return CriticSteps(spec, critic, optimiser, **settings)


class SoftSteps:
    """Steps of a learner with `actor`, `critic`, `target`, `log_alpha` and optimisers of these
    names, as `SoftActorCritic` has them, on their own tensors."""

    def __init__(self, learner: Any) -> None:
        loaded = library()
        assert loaded is not None
        self.library, self.learner, self.config = loaded, learner, learner.config
        optimisers = learner.optimisers
        self.actor = Network(learner.actor.net, optimisers["actor"])
        c = self.config
        self.critics = CriticSteps(
            learner.spec,
            learner.critic,
            optimisers["critic"],
            inputs=learner.critic.normaliser,
            huber=c.huber,
            eta=c.eta,
        )
        self.critic = self.critics.network
        self.target = Network(learner.target)
        spec = learner.spec
        self.dims = {"obs_dim": spec.obs_dim, "action_dim": spec.action_dim}
        inputs = {
            "actor_inputs": normaliser(learner.actor.normaliser),
            "critic_inputs": normaliser(learner.critic.normaliser),
        }
        actor, critic, target = (
            ctypes.pointer(n.struct) for n in (self.actor, self.critic, self.target)
        )
        self._policy = _PolicyStep(actor=actor, critic=critic, **inputs, **self.dims)
        self._policy.log_alpha = learner.log_alpha.data_ptr()
        self._policy.learn_alpha, self._policy.of_mean = c.learn_alpha, c.actor_value == "mean"
        self._policy.target_entropy = learner.target_entropy
        self._target = _SoftTarget(actor=actor, critic=target, **inputs, **self.dims)
        self._target.with_entropy = c.entropy_in_target

    def ready(self, batch: Batch) -> bool:
        """Whether the optimisers have taken a first step and the batch is as the library reads
        it."""
        alpha = self.learner.optimisers["alpha"].state.get(self.learner.log_alpha)
        if self.config.learn_alpha:
            if not alpha:
                return False
            self._policy.alpha_moment = alpha["exp_avg"].data_ptr()
            self._policy.alpha_square = alpha["exp_avg_sq"].data_ptr()
            self._policy.alpha_step = alpha["step"].data_ptr()
        return self.actor.follow() and self.target.follow() and self.critics.ready(batch)

    def policy(self, batch: Batch) -> Tensor:
        """A step of temperature and actor; [3]: loss, entropy, temperature."""
        step, metrics, noise = self._policy, torch.empty(3), batch.noise
        assert noise is not None and noise.is_contiguous()
        step.obs, step.rows = column(batch.obs), len(batch.obs)
        step.noise, step.metrics = noise.data_ptr(), metrics.data_ptr()
        step.actor_adam = adam_struct(self.learner.optimisers["actor"].param_groups[0])
        step.alpha_adam = adam_struct(self.learner.optimisers["alpha"].param_groups[0])
        self.library.policy_step(ctypes.byref(step))
        return metrics

    def soft_target(self, batch: Batch, reward: Tensor) -> Tensor:
        """The soft target [B] with these rewards [B]."""
        step, target, noise = self._target, torch.empty(len(batch.obs)), batch.noise
        assert noise is not None
        step.obs, step.rows = column(batch.next_obs), len(batch.obs)
        step.reward, step.discount = column(reward), column(batch.discount)
        step.noise, step.target = noise[1].data_ptr(), target.data_ptr()
        step.subset = None if batch.subset is None else batch.subset.data_ptr()
        step.subset_size = 0 if batch.subset is None else len(batch.subset)
        step.log_alpha = self.learner.log_alpha.item()
        self.library.soft_target(ctypes.byref(step))
        return target

    def average(self) -> None:
        """Move the target average."""
        self.library.average_weights(
            ctypes.byref(self.target.struct),
            ctypes.byref(self.critic.struct),
            ctypes.c_double(self.config.tau),
        )


def soft_steps(learner: Any) -> SoftSteps | None:
    """The steps of this learner, or None where the library is not there or cannot compute its
    networks."""
    actor: SquashedGaussianPolicy = learner.actor
    critic: EnsembleMLP = learner.critic
    bounds = actor.log_std_bounds == (-5.0, 2.0) and math.isfinite(learner.target_entropy)
    if not (bounds and fits(actor.net) and fits(critic) and critic.out_dim == 1):
        return None
    return None if library() is None else SoftSteps(learner)


def readable(values: Tensor) -> bool:
    """Whether the rows of `values` are float32 in memory of the CPU, each in one piece."""
    return values.dtype == torch.float32 and values.device.type == "cpu" and values.stride(-1) == 1
