"""Encoders with memory over a tape as one function of autograd, in the compiled library."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mbrl.native.build import library
from mbrl.native.structs import addresses

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64
EMBEDDING, UNIT = 4, 14  # parameters of the first layer and of every recurrent unit


class _Forward(ctypes.Structure):
    """`Encoder` in recurrent.cpp."""

    _fields_ = (
        *((name, _Int) for name in ("rows", "in", "row", "width", "states", "units")),
        *((name, _Pointer) for name in ("x", "first", "parameters", "out", "memory", "kept")),
    )


class _Backward(ctypes.Structure):
    """`EncoderGradient` in recurrent.cpp."""

    _fields_ = (
        ("forward", _Forward),
        ("cotangent", _Pointer),
        ("gradients", _Pointer),
        ("input_gradient", _Pointer),
    )


def computes(x: Tensor, first: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the library does this pass: one tape of float32 on the CPU, and at least one unit;
    not while a graph is recorded for a compiler."""
    return (
        x.ndim == 2
        and len(x) == len(first) > 0
        and len(parameters) > EMBEDDING
        and x.shape[1] >= parameters[0].shape[1]
        and x.device.type == first.device.type == "cpu"
        and x.dtype == parameters[0].dtype == torch.float32
        and first.dtype == torch.bool
        and not torch.compiler.is_compiling()
        and library() is not None
    )


def forward(x: Tensor, first: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Features [T, width] of a tape `x` [T, in] on which sequences begin at `first` [T] bool, from
    the parameters in the order of recurrent.cpp."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
        result: Tensor = Pass.apply(x, first, *parameters)
        return result
    return _run(x, first, parameters)[0]


@torch.no_grad()
def states(x: Tensor, first: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The memory [T, units * 2 states] after every position of the tape, without gradients."""
    width, units = parameters[EMBEDDING].numel(), (len(parameters) - EMBEDDING) // UNIT
    memory = x.new_empty(len(x), 2 * width * units)
    _run(x, first, parameters, memory=memory)
    return memory


def _call(x: Tensor, first: Tensor, parameters: Sequence[Tensor]) -> tuple[_Forward, list[Any]]:
    """The struct without its results, and what its pointers refer to."""
    x, first = (x if x.stride(-1) == 1 else x.contiguous()), first.contiguous()
    parameters = [p.contiguous() for p in parameters]
    pointers = addresses(parameters)
    width, count = parameters[1].numel(), parameters[EMBEDDING].numel()
    units = (len(parameters) - EMBEDDING) // UNIT
    call = _Forward(len(x), x.shape[1], x.stride(0), width, count, units)
    call.x, call.first = x.data_ptr(), first.data_ptr()
    call.parameters = ctypes.cast(pointers, _Pointer)
    return call, [x, first, parameters, pointers]


def _run(
    x: Tensor,
    first: Tensor,
    parameters: Sequence[Tensor],
    *,
    keep: bool = False,
    memory: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Features, and with `keep` what a backward pass needs of the forward one."""
    loaded = library()
    assert loaded is not None
    call, kept = _call(x, first, parameters)
    out, saved = x.new_empty(len(x), call.width), None
    call.out = out.data_ptr()
    if keep:
        sizes = (call.rows, call.width, call.states, call.units)
        loaded.encoder_kept.restype = _Int
        saved = x.new_empty(loaded.encoder_kept(*map(_Int, sizes)))
        call.kept = saved.data_ptr()
    if memory is not None:
        call.memory = memory.data_ptr()
    loaded.encoder_forward(ctypes.byref(call))
    del kept
    return out, saved


class Pass(torch.autograd.Function):
    """`forward` with gradients in inputs and parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, *parameters: Tensor) -> Tensor:
        out, saved = _run(x, first, parameters, keep=True)
        assert saved is not None
        ctx.save_for_backward(x, first, saved, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        x, first, saved, *parameters = ctx.saved_tensors
        loaded = library()
        assert loaded is not None
        cotangent = cotangent.contiguous()
        call, kept = _call(x, first, parameters)
        call.kept = saved.data_ptr()
        gradients = [torch.empty(p.shape) for p in parameters]
        pointers = addresses(gradients)
        whole = _Backward(call, cotangent.data_ptr(), ctypes.cast(pointers, _Pointer))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty(x.shape)
            whole.input_gradient = dx.data_ptr()
        loaded.encoder_backward(ctypes.byref(whole))
        del kept
        return dx, None, *gradients
