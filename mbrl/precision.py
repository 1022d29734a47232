"""How precisely matrix products are computed: in single precision, or where the processor gains by
it with operands rounded to bfloat16."""

import contextlib
import ctypes
import warnings
from collections.abc import Iterator
from typing import Literal

import torch

from mbrl.errors import unknown_name
from mbrl.native.build import library

MatmulPrecision = Literal["highest", "high", "medium"]
PRECISIONS = ("highest", "high", "medium")


def has_tiles() -> bool:
    """Whether compiled updates can multiply bfloat16 on this processor: an x86 one with AMX or
    AVX-512's bfloat16."""
    return _kind() > 0


def _kind() -> int:
    """2: by AMX, 1: by AVX-512, 0: not."""
    loaded = library()
    return 0 if loaded is None else int(loaded.has_tiles())


def set_matmul_precision(precision: str) -> bool:
    """`torch.set_float32_matmul_precision` for this process, compiled updates included: "medium"
    lets products round their operands to bfloat16 (8 bits of precision; sums stay in float32) where
    that is faster. On CPUs compiled updates do so where there is AMX or AVX-512's bfloat16, in
    layers of at least 16 inputs and outputs; "high" is "highest" there. Returns whether they do;
    warns if "medium" can do nothing on this machine. Raises `ConfigError` for another name."""
    if precision not in PRECISIONS:
        raise unknown_name("precision of matrix products", precision, PRECISIONS)
    torch.set_float32_matmul_precision(precision)
    wanted, loaded = precision == "medium", library()
    taken = wanted and has_tiles()
    if loaded is not None:
        loaded.use_tiles(ctypes.c_int64(_kind() if taken else 0))
    if wanted and not taken and not torch.cuda.is_available():
        warnings.warn(
            "matrix products of medium precision: this processor has no products of bfloat16 (by "
            "AMX or AVX-512), so that compiled updates stay in single precision, as with "
            '"highest"',
            stacklevel=2,
        )
    return taken


def takes_bfloat16() -> bool:
    """Whether products of this process may round their operands to bfloat16 and gain by it on its
    processor."""
    return torch.get_float32_matmul_precision() == "medium" and has_tiles()


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[bool]:
    """`set_matmul_precision` for the length of a block."""
    before = torch.get_float32_matmul_precision()
    try:
        yield set_matmul_precision(precision)
    finally:
        set_matmul_precision(before)
