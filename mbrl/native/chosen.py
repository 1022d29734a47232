"""Draws from a Gaussian ensemble, each row from the member chosen for it, compiled."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from mbrl.native.build import library
from mbrl.native.passes import ACTIVATIONS, struct
from mbrl.native.structs import NetworkStruct

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


class _ChosenDraws(ctypes.Structure):
    """`ChosenDraws` in chosen.cpp."""

    _fields_ = (
        ("net", ctypes.POINTER(NetworkStruct)),
        *((name, _Int) for name in ("rows", "activation", "size")),
        *((name, _Pointer) for name in ("x", "member", "low", "high", "noise", "out")),
    )


def draws(
    x: Tensor,
    member: Tensor,
    noise: Tensor,
    parameters: Sequence[Tensor],
    depth: int,
    activation: str,
    bounds: tuple[Tensor, Tensor],
) -> Tensor:
    """mean + noise sqrt(exp(low) + exp(high) sigmoid(l - high)) [B, D], where the member that
    `member` [B] int64 names of the ensemble of `depth` layers with these parameters (weights,
    biases, scales and shifts of LayerNorm) gives mean and l [2D] of each row `x` [B, in], with
    `bounds` low and high [D] and `noise` [B, D]. For what `passes.computes`; raises `IndexError`
    for a member that there is not."""
    loaded = library()
    assert loaded is not None
    x, noise, member = x.contiguous(), noise.contiguous(), member.contiguous()
    out = torch.empty_like(noise)
    net, kept = struct(parameters[:depth], parameters)
    sizes = (len(x), ACTIVATIONS.index(activation), noise.shape[1])
    pointers = [t.data_ptr() for t in (x, member, *bounds, noise, out)]
    call = _ChosenDraws(ctypes.pointer(net), *sizes, *pointers)
    loaded.chosen_draws.restype = _Int
    wrong = loaded.chosen_draws(ctypes.byref(call))
    del kept
    if wrong >= 0:
        raise IndexError(
            f"member[{wrong}] is {int(member[wrong])}, the ensemble has 0 to {net.members - 1}"
        )
    return out
