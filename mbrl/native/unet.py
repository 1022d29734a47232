"""The U-Net over windows without gradients, in the compiled library."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from mbrl.native.build import library

_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64
LEAST = 32  # windows of a thread
WIDEST = 64  # features of the first level up to which this is faster than PyTorch's convolutions


class _Convolution(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("in", "out", "kernel")),
        *((name, _Pointer) for name in ("weight", "bias", "noise", "scale", "shift")),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("windows", "length", "features", "levels", "groups")),
        ("eps", ctypes.c_double),
        *((name, _Pointer) for name in ("x", "out", "parts", "out_weight", "out_bias")),
    )


class Laid:
    """Weights [out, in, kernel] as [kernel, in, out] in memory, laid out anew when an
    optimiser or PyTorch changed them."""

    def __init__(self) -> None:
        self.of: tuple[int, int] | None = None
        self.weight = torch.empty(0)

    def out(self, weight: Tensor) -> Tensor:
        now = (weight.data_ptr(), weight._version)
        if now != self.of:
            self.of, self.weight = now, weight.permute(2, 1, 0).contiguous()
        return self.weight


def computes(x: Tensor, parameters: Sequence[Tensor], width: int) -> bool:
    """Whether the library does this pass of a network with `width` features at the first level:
    float32 on the CPU without gradients; not while a graph is recorded for a compiler."""
    return (
        width <= WIDEST
        and x.device.type == "cpu"
        and x.dtype == parameters[0].dtype == torch.float32
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)))
        and not torch.compiler.is_compiling()
        and library() is not None
    )


def forward(
    x: Tensor, embedded: Tensor, parts: Sequence[Any], out: nn.Conv1d, levels: int
) -> Tensor:
    """What a U-Net makes of windows `x` [B, L, F] and the embedded noise [B, D]: `parts` are its
    convolutions in the order of use, each with `conv`, `norm`, `laid`, and `noise` or None."""
    loaded = library()
    assert loaded is not None
    embedded = embedded.expand(len(x), -1)  # of one noise for all windows, too
    x, result = x.contiguous(), torch.empty(x.shape)
    kept: list[Tensor] = []
    rows = (_Convolution * len(parts))(*[_convolution(p, embedded, kept) for p in parts])
    assert out.bias is not None
    last = (out.weight[:, :, 0].T.contiguous(), out.bias)
    norm = parts[0].norm
    call = _Pass(
        *(*x.shape, levels, norm.num_groups, norm.eps),
        *(x.data_ptr(), result.data_ptr(), ctypes.cast(rows, _Pointer)),
        *(t.data_ptr() for t in last),
    )
    count = len(x)
    threads = max(1, min(torch.get_num_threads(), count // LEAST))
    ends = [count * i // threads for i in range(threads + 1)]

    def run(begin: int, end: int) -> None:
        loaded.unet_windows(ctypes.byref(call), _Int(begin), _Int(end))

    if threads == 1:
        run(0, count)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, ends[:-1], ends[1:]))
    del kept
    return result


def _convolution(part: Any, embedded: Tensor, kept: list[Tensor]) -> _Convolution:
    """The struct of a convolution; `kept` takes the tensors that it refers to."""
    outputs, inputs, kernel = part.conv.weight.shape
    weight = part.laid.out(part.conv.weight)
    noise = None if part.noise is None else part.noise(embedded).contiguous()
    tensors = (weight, part.conv.bias, noise, part.norm.weight, part.norm.bias)
    kept += [t for t in tensors if t is not None]
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    return _Convolution(inputs, outputs, kernel, *pointers)
