"""Whole networks as one function each of autograd, in the compiled library."""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mbrl.native.build import library
from mbrl.native.structs import NetworkStruct, addresses

ACTIVATIONS = ("relu", "leaky_relu", "tanh", "silu", "gelu")  # by their number in networks.h
OF_INPUTS = ("silu", "gelu")  # whose derivative is not a function of their value
_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


class _Forward(ctypes.Structure):
    _fields_ = (
        ("net", ctypes.POINTER(NetworkStruct)),
        ("x", _Pointer),
        ("row", _Int),
        ("member", _Int),
        ("rows", _Int),
        ("activation", _Int),
        ("out", _Pointer),
        ("hidden", _Pointer),
        ("before", _Pointer),
        ("normal", _Pointer),
        ("inverse", _Pointer),
    )


class _Backward(ctypes.Structure):
    _fields_ = (
        ("forward", _Forward),
        ("cotangent", _Pointer),
        ("gradients", _Pointer),
        ("input_gradient", _Pointer),
        ("input_member", _Int),
    )


def layer_sizes(weights: Sequence[Tensor]) -> tuple[int, ...]:
    """Input width and the widths of all layers, of weights [E, in, out] each or [out, in] each."""
    shapes = [w.shape[::-1] if w.ndim == 2 else w.shape[1:] for w in weights]
    return (shapes[0][0], *(shape[1] for shape in shapes))


def struct(weights: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[NetworkStruct, Any]:
    """The network of these parameters (weights, then biases, scales and shifts of LayerNorm), and
    what its pointers refer to."""
    sizes = layer_sizes(weights)
    transposed = weights[0].ndim == 2
    kept = ((_Int * len(sizes))(*sizes), addresses(parameters))
    members = 1 if transposed else len(weights[0])
    norm = len(parameters) > 2 * len(weights)
    return NetworkStruct(
        members, len(weights), transposed, norm, *(ctypes.cast(k, _Pointer) for k in kept)
    ), kept


def computes(x: Tensor, weights: Iterable[Tensor], activation: str) -> bool:
    """Whether the library does this pass: float32 on the CPU, known activation, hidden layers, and
    rows that fit; not while a graph is recorded for a compiler."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and activation in ACTIVATIONS
        and len(layers := list(weights)) > 1
        and layers[0].dtype == torch.float32
        and _fits(x, layers[0])
        and not torch.compiler.is_compiling()
        and library() is not None
    )


def _fits(x: Tensor, first: Tensor) -> bool:
    """Whether `x` has rows, of the width and for the members of the first layer's weight."""
    if x.ndim == 0 or x.numel() == 0:
        return False
    if first.ndim == 2:
        return x.shape[-1] == first.shape[1]
    return x.shape[-1] == first.shape[1] and (x.ndim == 2 or x.shape[0] == len(first))


def forward(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str,
    norms: Sequence[Tensor] = (),
) -> Tensor:
    """Outputs [E, B, out] of an ensemble with weights [E, in, out] and biases [E, 1, out] at `x`
    [B, in], shared by all members, or [E, B, in]; [B, out] of a network with weights [out, in].
    `norms`: scales and then shifts, like biases, of LayerNorm in all hidden layers."""
    tensors = (*weights, *biases, *norms)
    if torch.is_grad_enabled() and (x.requires_grad or any(t.requires_grad for t in tensors)):
        result: Tensor = Pass.apply(x, activation, len(weights), *tensors)
        return result
    return _run(x, tensors, len(weights), activation)[0]


KEPT = ("hidden", "before", "normal", "inverse")  # what a backward pass needs of the forward one


def _run(
    x: Tensor, tensors: Sequence[Tensor], depth: int, activation: str, *, keep: bool = False
) -> tuple[Tensor, list[Tensor | None]]:
    """Outputs, and with `keep` the tensors `KEPT`: the activations, for SiLU and GELU what they are
    activations of, and LayerNorm's standardised rows and what it multiplied them with."""
    loaded = library()
    assert loaded is not None
    weights = tensors[:depth]
    if x.stride(-1) != 1:
        x = x.contiguous()
    net, kept = struct(weights, tensors)
    call = _call(net, x, activation)
    shape: tuple[int, ...] = (call.rows, layer_sizes(weights)[-1])
    out = x.new_empty(shape if weights[0].ndim == 2 else (net.members, *shape))
    call.out = out.data_ptr()
    parts: list[Tensor | None] = [None] * len(KEPT)
    if keep:
        rows, width = net.members * call.rows, sum(layer_sizes(weights)[1:-1])
        sizes = (width, width * (activation in OF_INPUTS), width * net.norm, (depth - 1) * net.norm)
        parts = [x.new_empty(rows * size) if size else None for size in sizes]
        _refer(call, parts)
    loaded.forward_pass(ctypes.byref(call))
    del kept
    return out, parts


def _refer(call: _Forward, parts: Sequence[Tensor | None]) -> None:
    for name, part in zip(KEPT, parts, strict=True):
        setattr(call, name, None if part is None else part.data_ptr())


def _call(net: NetworkStruct, x: Tensor, activation: str) -> _Forward:
    return _Forward(
        ctypes.pointer(net),
        x.data_ptr(),
        x.stride(-2),
        x.stride(0) if x.ndim == 3 else 0,
        x.shape[-2],
        ACTIVATIONS.index(activation),
    )


class Pass(torch.autograd.Function):
    """`forward` with gradients in inputs and parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, depth: int, *tensors: Tensor) -> Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        out, parts = _run(x, tensors, depth, activation, keep=True)
        ctx.save_for_backward(x, *parts, *tensors)
        ctx.activation, ctx.depth = activation, depth
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, *saved = ctx.saved_tensors
        parts, tensors = saved[: len(KEPT)], saved[len(KEPT) :]
        loaded = library()
        assert loaded is not None
        g = g.contiguous()
        net, kept = struct(tensors[: ctx.depth], tensors)
        call = _Backward(_call(net, x, ctx.activation), g.data_ptr())
        _refer(call.forward, parts)
        gradients: list[Tensor] | list[None] = [None] * len(tensors)
        if any(ctx.needs_input_grad[3:]):
            gradients = [torch.empty_like(t) for t in tensors]
            pointers = addresses(gradients)
            call.gradients = ctypes.cast(pointers, _Pointer)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty(x.shape)
            call.input_gradient = dx.data_ptr()
            call.input_member = x.shape[1] * x.shape[2] if x.ndim == 3 else 0
        loaded.backward_pass(ctypes.byref(call))
        del kept
        return dx, None, None, *gradients
