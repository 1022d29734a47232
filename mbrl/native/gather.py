"""Rows gathered from the columns of a dataset in the compiled library (`gather.cpp`)."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mbrl.native.build import library

Kind = Literal["copy", "scaled", "action", "discount", "whole", "flag"]
KINDS: tuple[Kind, ...] = ("copy", "scaled", "action", "discount", "whole", "flag")
DTYPES = {"discount": torch.bool, "flag": torch.bool, "whole": torch.int64}  # others: float32
_Pointer, _Int = ctypes.c_void_p, ctypes.c_int64


class _Field(ctypes.Structure):
    _fields_ = (
        ("data", _Pointer),
        ("stride", _Int),
        ("width", _Int),
        ("kind", _Int),
        ("centre", _Pointer),
        ("half", _Pointer),
        ("factor", ctypes.c_float),
    )


@dataclass(frozen=True)
class Field:
    """A column [N] or [N, D] on the CPU and how its numbers enter a row: "copy" as they are,
    "scaled" times `factor`, "action" as (x - centre) / half within [-1, 1], "discount" as `factor`,
    or 0 where the flag is set, "whole" numbers and "flag"s as float32."""

    kind: Kind
    values: Tensor
    factor: float = 1.0
    centre: Tensor | None = None
    half: Tensor | None = None

    def of(self, values: Tensor) -> Tensor:
        """The numbers of a row for rows [B] or [B, D] of the column."""
        if self.kind == "scaled":
            return values * self.factor
        if self.kind == "discount":
            return self.factor * (1.0 - values.float())
        if self.kind == "action":
            assert self.centre is not None and self.half is not None
            return ((values - self.centre) / self.half).clamp(-1, 1)
        return values.float()


class Gather:
    """Rows [B, width] of fields side by side."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = [_readable(field) for field in fields]
        self.width = sum(map(_width, self.fields))
        self._structs: Any = (_Field * len(self.fields))(*map(_struct, self.fields))

    def __call__(self, index: Tensor) -> Tensor:
        """The rows at `index` [B] int64, each from 0 below N."""
        loaded = library()
        if loaded is None or torch.compiler.is_compiling():
            return self._by_operations(index)
        index = index.contiguous()
        out = torch.empty(len(index), self.width)
        loaded.gather_rows(
            self._structs,
            _Int(len(self.fields)),
            _Pointer(index.data_ptr()),
            _Int(len(index)),
            _Pointer(out.data_ptr()),
        )
        return out

    def _by_operations(self, index: Tensor) -> Tensor:
        parts = [field.of(field.values.index_select(0, index)) for field in self.fields]
        return torch.cat([part.reshape(len(index), -1) for part in parts], 1)


def _width(field: Field) -> int:
    return 1 if field.values.ndim == 1 else field.values.shape[1]


def _readable(field: Field) -> Field:
    """The field with values of the type that the library reads, without gaps inside a row."""
    values = field.values.to(DTYPES.get(field.kind, torch.float32))
    if values.ndim == 2 and values.stride(1) != 1:
        values = values.contiguous()
    return Field(field.kind, values, field.factor, field.centre, field.half)


def _struct(field: Field) -> _Field:
    centre, half = (None if t is None else t.data_ptr() for t in (field.centre, field.half))
    return _Field(
        field.values.data_ptr(),
        field.values.stride(0) * field.values.element_size(),
        _width(field),
        KINDS.index(field.kind),
        centre,
        half,
        field.factor,
    )
