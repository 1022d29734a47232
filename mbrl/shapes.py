"""Checks of ranks and sizes at the door of public maths functions, where broadcasting would turn a
wrong shape into a wrong number in silence."""

from functools import cache

import torch
from torch import Tensor

from mbrl.errors import ConfigError

Named = tuple[Tensor | None, str]  # a tensor and the words for its dimensions


def check_shapes(**named: Named) -> None:
    """Raise `ValueError` unless every tensor has the dimensions that its words name: equal words
    are equal sizes, a number is that size, and a leading `...` stands for any more dimensions (the
    same ones wherever it is written). None passes. Nothing is checked under `torch.compile`.

    `check_shapes(reward=(reward, "B"), next_q=(next_q, "N B"))`
    """
    if torch.compiler.is_compiling():
        return
    sizes: dict[str, int] = {}
    for value, words in named.values():
        if value is None:
            continue
        shape, dims = value.shape, _split(words)
        if len(shape) != len(dims):
            return _check_all(named)
        for dim, size in zip(dims, shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                return _check_all(named)
    if not sizes.keys().isdisjoint(_DIGITS):
        _check_all(named)


_DIGITS = frozenset("0123456789")
_split = cache(str.split)


def _check_all(named: dict[str, Named]) -> None:
    """The whole rule; the common case was decided before."""
    sizes: dict[str, tuple[int, ...]] = {}
    for value, words in named.values():
        if value is None:
            continue
        dims, shape = _split(words), tuple(value.shape)
        lead = len(shape) - len(dims) + 1 if dims[:1] == ["..."] else 0
        if lead < 0 or len(shape) - lead != len(dims) - (dims[:1] == ["..."]):
            raise ValueError(_message(named))
        actual = [shape[:lead]] if dims[:1] == ["..."] else []
        actual += [(size,) for size in shape[lead:]]
        for dim, size in zip(dims, actual, strict=True):
            if ((int(dim),) if dim.isdigit() else sizes.setdefault(dim, size)) != size:
                raise ValueError(_message(named))


def _message(named: dict[str, Named]) -> str:
    given = [
        f"{name} {list(value.shape)} for [{words.replace(' ', ', ')}]"
        for name, (value, words) in named.items()
        if value is not None
    ]
    return f"shapes do not fit together: {'; '.join(given)}; equal names are equal sizes"


def require_single_precision() -> None:
    """Raise `ConfigError` where torch makes numbers of another size than those of the data."""
    kind = torch.get_default_dtype()
    if kind != torch.float32:
        raise ConfigError(
            f"torch's default dtype is {kind}, and agents are of float32; call "
            "torch.set_default_dtype(torch.float32) first"
        )
