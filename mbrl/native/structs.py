"""The structs of the compiled library that hold pointers to networks and settings."""

import ctypes
from collections.abc import Sequence
from typing import Any

from torch import Tensor

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


class NetworkStruct(ctypes.Structure):
    """`Network` in networks.h."""

    _fields_ = (
        ("members", _Int),
        ("depth", _Int),
        ("transposed", _Int),
        ("norm", _Int),
        ("sizes", _Pointer),
        ("parameters", _Pointer),
        ("first_moments", _Pointer),
        ("second_moments", _Pointer),
        ("steps", _Pointer),
    )


SIZES = tuple((name, _Int) for name in ("rows", "obs_dim", "action_dim"))  # of every step's batch
ADAM = ("rate", "beta1", "beta2", "eps", "l2", "decay")


class AdamStruct(ctypes.Structure):
    """`Adam` in networks.h."""

    _fields_ = tuple((name, ctypes.c_double) for name in ADAM)


class NormaliserStruct(ctypes.Structure):
    """`Normaliser` in actor_critic.cpp."""

    _fields_ = (("mean", _Pointer), ("std", _Pointer))


class Column(ctypes.Structure):
    """`Column` in actor_critic.cpp."""

    _fields_ = (("data", _Pointer), ("row", _Int))


def addresses(tensors: Sequence[Tensor]) -> Any:
    """A C array of the tensors' addresses."""
    return (_Pointer * len(tensors))(*[t.data_ptr() for t in tensors])


def adam_struct(group: dict[str, Any]) -> AdamStruct:
    """The settings of a parameter group of Adam or AdamW."""
    rate, decay = group["lr"], group["weight_decay"]
    own = (0.0, rate * decay) if group["decoupled_weight_decay"] else (decay, 0.0)
    return AdamStruct(rate, *group["betas"], group["eps"], *own)
