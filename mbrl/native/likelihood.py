"""The Gaussian negative log-likelihood of an ensemble and its gradients, compiled."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mbrl.native.build import library
from mbrl.native.passes import ACTIVATIONS, struct
from mbrl.native.structs import NetworkStruct, addresses

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


class _Likelihood(ctypes.Structure):
    """`Likelihood` in likelihood.cpp."""

    _fields_ = (
        ("net", ctypes.POINTER(NetworkStruct)),
        *((name, _Int) for name in ("rows", "activation")),
        *((name, _Pointer) for name in ("x", "target", "low", "high")),
        *((name, _Pointer) for name in ("gradients", "d_low", "d_high")),
    )


def gradients(
    x: Tensor,
    target: Tensor,
    parameters: Sequence[Tensor],
    depth: int,
    activation: str,
    bounds: tuple[Tensor, Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """sum_e mean_{b,d} [ s + (y - mu)^2 exp(-s) ] at inputs `x` [E, B, in] and targets y [E, B, D],
    where the network of `depth` layers with these parameters (weights, biases, scales and shifts of
    LayerNorm) gives mu and l [E, B, 2D] and s = low + softplus(high - softplus(high - l) - low),
    with `bounds` low and high [D]; and its gradients in the parameters and both bounds. For what
    `passes.computes`."""
    loaded = library()
    assert loaded is not None
    x, target = x.contiguous(), target.contiguous()
    low, high = (bound.contiguous() for bound in bounds)
    made = [torch.empty_like(p, requires_grad=False) for p in parameters]
    made += [torch.zeros_like(bound, requires_grad=False) for bound in (low, high)]
    net, kept = struct(parameters[:depth], parameters)
    pointers = addresses(made[:-2])
    call = _Likelihood(ctypes.pointer(net), x.shape[1], ACTIVATIONS.index(activation))
    call.x, call.target, call.low, call.high = (t.data_ptr() for t in (x, target, low, high))
    call.gradients = ctypes.cast(pointers, _Pointer)
    call.d_low, call.d_high = (t.data_ptr() for t in made[-2:])
    loaded.likelihood_gradients.restype = ctypes.c_double
    value = loaded.likelihood_gradients(ctypes.byref(call))
    del kept
    return x.new_tensor(value), made
