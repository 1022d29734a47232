"""What the sampler and the trainer need of a language model: our transformer, or one from disk."""

from collections.abc import Iterator
from typing import Any, Protocol, Self

from torch import Tensor
from torch.nn import Parameter


class Cached(Protocol):
    """The columns of a batch so far: `used` of them, with holes where a row had no token."""

    used: int

    def select(self, rows: Tensor) -> Self:
        """The cache of these rows, which may repeat."""
        ...

    def put_back(self, part: Self, rows: Tensor) -> None:
        """Take over what `part`, made by `select(rows)`, has got since; `rows` are distinct."""
        ...


class LanguageModel(Protocol):
    """Tokens [B, T] to logits [B, T, V], whole sequences or column by column."""

    size: int

    def __call__(self, tokens: Tensor) -> Tensor: ...
    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        """Logits [n, V] after those of `tokens` that `here` [B, T], with n of them, marks."""
        ...

    def features(self, tokens: Tensor) -> Tensor:
        """What the head reads, [B, T, width]."""
        ...

    def read(self, features: Tensor) -> Tensor:
        """Logits [..., V] of features [..., width]."""
        ...

    def cache(self, rows: int, capacity: int) -> Any:
        """An empty cache for `rows` rows and `capacity` columns."""
        ...

    def extend(self, tokens: Tensor, real: Tensor, cache: Any) -> Tensor:
        """Append `tokens` [B, N], of which those that are not `real` are holes; logits [B, V] after
        the last column, which mean something for rows whose last column is real."""
        ...

    def parameters(self) -> Iterator[Parameter]: ...
    def state_dict(self) -> dict[str, Any]: ...
