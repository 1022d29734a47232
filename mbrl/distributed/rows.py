"""Batches as rows: cut, padded and put together again, whatever they are made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mbrl.errors import ConfigError


def count(value: Any) -> int:
    """Rows of a tensor, an array, a list, a mapping of them, or whatever has a length and
    `select(rows)`. Raises `ConfigError` for anything else."""
    if isinstance(value, Mapping):
        sizes = {name: count(part) for name, part in value.items()}
        if len(set(sizes.values())) != 1:
            raise ConfigError(f"the parts of a batch have different numbers of rows: {sizes}")
        return next(iter(sizes.values()))
    if isinstance(value, torch.Tensor | np.ndarray | Sequence) or hasattr(value, "select"):
        return len(value)
    raise ConfigError(
        f"a batch of type {type(value).__name__} has no rows; give a tensor, an array, a list, a "
        "mapping of them, or an object with a length and select(rows)"
    )


def select(value: Any, rows: Sequence[int]) -> Any:
    """These rows, in this order."""
    if isinstance(value, Mapping):
        return {name: select(part, rows) for name, part in value.items()}
    if isinstance(value, torch.Tensor | np.ndarray):
        return value[list(rows)]
    if hasattr(value, "select"):
        return value.select(torch.as_tensor(rows, dtype=torch.int64))
    return [value[i] for i in rows]


def join(parts: Sequence[Any]) -> Any:
    """The rows of `parts` one after the other."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: join([part[name] for part in parts]) for name in first}
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, np.ndarray):
        return np.concatenate(list(parts))
    if isinstance(first, list):
        return [row for part in parts for row in part]
    raise ConfigError(
        f"results of type {type(first).__name__} cannot be put together; return tensors, arrays, "
        "lists or mappings of them, or collect by `metric`"
    )


def padded_shares(rows: int, parts: int) -> list[list[int]]:
    """Which rows each of `parts` gets: equally many, in order; the last ones get rows from the
    beginning again, as padding."""
    each = -(-rows // parts)
    order = [i % rows for i in range(each * parts)]
    return [order[k * each : (k + 1) * each] for k in range(parts)]


def even_shares(rows: int, parts: int) -> list[list[int]]:
    """The same without padding: shares differ by one row at most, and may be empty."""
    return [share.tolist() for share in np.array_split(np.arange(rows), parts)]


def split(value: Any, shares: Sequence[Sequence[int]]) -> list[Any]:
    """A batch for each of `shares`."""
    return [select(value, share) for share in shares]


def unpadded(parts: Sequence[Any], rows: int) -> Any:
    """`parts` of equal size put together, without what is beyond the first `rows`. Raises
    `ConfigError` where they are not one result a row."""
    sizes, each = [count(part) for part in parts], -(-rows // len(parts))
    if any(size != each for size in sizes):
        raise ConfigError(
            f"a method that splits rows returned {sizes} rows for shares of {each}; it must return "
            "one a row, in order"
        )
    return select(join(parts), range(rows))
