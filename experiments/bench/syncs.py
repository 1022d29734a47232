"""What an update asks of a device: a trace of its operations, and those among them that make the
host wait. A GPU runs behind the program; an operation whose result the program must see, or whose
result has a size that depends on values, stops it. An update without any, whose operations and
shapes are the same every time, can be captured as a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = frozenset(
    (
        *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select"),
        *("unique_dim", "unique_consecutive", "_unique2", "bincount", "repeat_interleave"),
        "isin",
    )
)
READING = (Tensor.tolist, Tensor.numpy, Tensor.__array__)  # which are no operations on the CPU
Operation = tuple[str, tuple[tuple[int, ...], ...]]  # its name and the shapes of its inputs


@dataclass
class Trace:
    """The operations that ran, in order, and the names of those that make the host wait."""

    operations: list[Operation] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


class _Reads(TorchFunctionMode):
    """Records calls that read a tensor's values."""

    trace: Trace

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in READING:
            self.trace.waits.append(func.__name__)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Records every operation."""

    trace: Trace

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        shapes = tuple(tuple(t.shape) for t in _tensors(args))
        self.trace.operations.append((name, shapes))
        if name in WAITING or _by_mask(name, args) or _leaves_device(name, args, kwargs or {}):
            self.trace.waits.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def traced() -> Iterator[Trace]:
    """Records what runs in it."""
    trace, (reads, operations) = Trace(), _modes()
    reads.trace = operations.trace = trace
    with reads, operations:
        yield trace


def _modes() -> tuple[Any, Any]:
    return _Reads(), _Operations()  # type: ignore[no-untyped-call]


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """An index of booleans is one of positions that have to be counted first."""
    return name in ("index", "index_put", "index_put_") and any(
        t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1])
    )


def _leaves_device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "_to_copy":
        to = kwargs.get("device")
        return to is not None and torch.device(to).type != args[0].device.type
    return name == "copy_" and args[0].device.type != args[1].device.type


@contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """On a GPU, an operation that makes the host wait raises an error in here."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
