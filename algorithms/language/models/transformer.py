"""A small decoder-only transformer with a key-value cache.

The architecture is Llama's: rotary positions, RMS norms before each part, gated linear units, no
biases. Right-padding needs no mask here: attention is causal, and what stands after a token never
reaches it.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from algorithms.language.models.experts import Experts
from mbrl.config import Count, CountOrZero, NonNegative, Positive, Settings
from mbrl.errors import ConfigError

LEAST_ROOM = 32  # columns that a cache has memory for beyond those it holds, at least


@dataclass(frozen=True)
class TransformerConfig(Settings):
    """Sizes of a transformer."""

    width: Count = 128
    layers: Count = 4
    heads: Count = 4
    hidden: Count = 344  # of the gated units, about 8/3 of the width
    experts: CountOrZero = 0  # gated units of each layer, of which a token takes some; 0: one
    active: Count = 1  # experts that a token takes
    tied: bool = True  # one matrix embeds tokens and reads them out
    base: Positive = 10_000.0  # of the rotary frequencies
    eps: NonNegative = 1e-6  # of the norms

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"width is {self.width}, it must be a multiple of twice the {self.heads} heads"
            )
        if self.experts == 1 or self.active > max(1, self.experts):
            raise ConfigError(
                f"experts is {self.experts} and active {self.active}; give 0 experts, or 2 or more "
                "of which no more are active"
            )


class Cache:
    """Keys and values of the columns so far, [layers, B, H, columns, D] each, with room for more
    columns that grows up to the capacity. `real` [B, capacity] says which columns of a row are
    tokens and which are holes; `count` [B] its tokens so far."""

    def __init__(self, keys: Tensor, values: Tensor, real: Tensor, count: Tensor) -> None:
        self.keys, self.values, self.real, self.count = keys, values, real, count
        self.used = 0

    @property
    def capacity(self) -> int:
        return self.real.shape[1]

    def select(self, rows: Tensor) -> Self:
        """The cache of these rows. Only the columns so far are copied, early in a conversation a
        small part of the capacity."""
        room = self.room(self.used)
        chosen = type(self)(
            self.begun(self.keys, rows, room),
            self.begun(self.values, rows, room),
            self.real[rows],
            self.count[rows],
        )
        chosen.used = self.used
        return chosen

    def reserve(self, columns: int) -> None:
        """Have room for so many columns, which are within the capacity."""
        if columns > self.keys.shape[3]:
            room, rows = self.room(columns), torch.arange(len(self.count), device=self.count.device)
            self.keys = self.begun(self.keys, rows, room)
            self.values = self.begun(self.values, rows, room)

    def room(self, columns: int) -> int:
        """What to allocate for `columns`: half as many again, so that growing stays cheap."""
        return min(self.capacity, columns + max(LEAST_ROOM, columns // 2))

    def begun(self, whole: Tensor, rows: Tensor, room: int) -> Tensor:
        layers, _, heads, _, dim = whole.shape
        out = whole.new_empty(layers, len(rows), heads, room, dim)
        # Straight into its place: indexing makes a copy first, which takes several times as long.
        columns = slice(self.used)
        torch.index_select(whole[:, :, :, columns], 1, rows, out=out[:, :, :, columns])
        return out

    def put_back(self, part: Self, rows: Tensor) -> None:
        """Take over the columns that `part`, made by `select(rows)`, has got since; for the other
        rows they are holes."""
        new = slice(self.used, part.used)
        self.reserve(part.used)
        for whole, other in ((self.keys, part.keys), (self.values, part.values)):
            whole[:, :, :, new] = 0.0  # in a hole anything may stand that is finite
            whole[:, rows, :, new] = other[:, :, :, new]
        self.real[rows, new] = part.real[:, new]
        self.count[rows] = part.count
        self.used = part.used


class Transformer(nn.Module):
    """Logits of the next token. `size` tokens; weights drawn with `generator`. Not `causal`, every
    place sees all others, and `forward` alone can be used."""

    def __init__(
        self,
        size: int,
        config: TransformerConfig,
        generator: torch.Generator | None = None,
        *,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.size, self.config = size, config
        self.embedding = nn.Embedding(size, config.width)
        self.blocks = nn.ModuleList(Block(config, causal) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.eps)
        self.head = nn.Linear(config.width, size, bias=False)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim >= 2:
                    deep = name.endswith(("out.weight", "down.weight", "units.down"))
                    std = 0.02 / math.sqrt(2 * config.layers) if deep else 0.02
                    weight.normal_(0.0, std, generator=generator)
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, V] after each of `tokens` [B, T]."""
        return self.read(self.features(tokens))

    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        """Logits [n, V] after the tokens that `here` [B, T] marks. The last block needs what the
        others are about, but works for these alone."""
        return self.read(self.features(tokens, here))

    def features(self, tokens: Tensor, here: Tensor | None = None) -> Tensor:
        """What the head reads, [B, T, width], or [n, width] of the n tokens that `here` marks."""
        x = self.embedding(tokens)
        at = torch.arange(tokens.shape[1], device=tokens.device)
        turn = rotation(at, self.config, x.dtype)
        *first, last = self.blocks
        for block in first:
            x = block(x, turn)
        normed: Tensor = self.norm(last(x, turn, here))
        return normed

    def read(self, features: Tensor) -> Tensor:
        """Logits [..., V] of features [..., width]."""
        logits: Tensor = self.head(features)
        return logits

    def embeddings(self) -> Tensor:
        """What stands for every token before the first layer, [V, width]."""
        return self.embedding.weight

    def cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` rows and at most `capacity` columns."""
        c, like = self.config, self.embedding.weight
        shape = (c.layers, rows, c.heads, min(capacity, LEAST_ROOM), c.width // c.heads)
        keys, values = (torch.empty(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        real = torch.zeros(rows, capacity, dtype=torch.bool, device=like.device)
        return Cache(keys, values, real, torch.zeros(rows, dtype=torch.int64, device=like.device))

    def extend(self, tokens: Tensor, real: Tensor, cache: Cache) -> Tensor:
        """Append `tokens` [B, N], of which those that are not `real` [B, N] are holes, and return
        the logits [B, V] after the last column. Raises `ConfigError` beyond the capacity."""
        return self.read(self.extended(tokens, real, cache)[:, -1])

    def extended(self, tokens: Tensor, real: Tensor, cache: Cache) -> Tensor:
        """As `extend`, but the features [B, N, width] of the new columns."""
        start, stop = cache.used, cache.used + tokens.shape[1]
        if stop > cache.capacity:
            raise ConfigError(
                f"{stop} columns do not fit into a cache of {cache.capacity}; ask for a larger one"
            )
        cache.reserve(stop)
        positions = (cache.count[:, None] + real.cumsum(1) - 1).clamp_min(0)
        cache.real[:, start:stop] = real
        cache.count = cache.count + real.sum(1)
        cache.used = stop
        x = self.embedding(tokens)
        turn = rotation(positions, self.config, x.dtype)
        turn = turn[:, None]  # over the heads
        seen = cache.real[:, None, None, :stop]
        if stop - start > 1:
            at = torch.arange(stop, device=tokens.device)
            new = at[start:, None]
            # A hole sees itself alone, so that nothing it leaves behind is undefined.
            seen = (seen & (at <= new)) | (at == new)
        else:
            seen = seen | (torch.arange(stop, device=tokens.device) == start)
        hidden = torch.zeros(seen.shape, dtype=x.dtype, device=x.device)
        hidden = hidden.masked_fill(~seen, -torch.inf)  # once for all layers
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = block.extend(x, turn, hidden, cache.keys[i], cache.values[i], start, stop)
        normed: Tensor = self.norm(x)
        return normed


class Block(nn.Module):
    """Attention, then gated units, each added to what came in."""

    def __init__(self, config: TransformerConfig, causal: bool = True) -> None:
        super().__init__()
        w, h = config.width, config.hidden
        self.heads, self.causal = config.heads, causal
        self.attention_norm = nn.RMSNorm(w, config.eps)
        self.qkv = nn.Linear(w, 3 * w, bias=False)
        self.out = nn.Linear(w, w, bias=False)
        self.unit_norm = nn.RMSNorm(w, config.eps)
        self.units: Experts | None = None
        if config.experts:
            self.units = Experts(w, h, config.experts, config.active)
        else:
            self.gate_up = nn.Linear(w, 2 * h, bias=False)
            self.down = nn.Linear(h, w, bias=False)

    def forward(self, x: Tensor, turn: Tensor, here: Tensor | None = None) -> Tensor:
        """[B, T, width] of `x`, or [n, width] of the n places that `here` [B, T] marks."""
        if here is None:
            q, k, v = self.projected(x, turn)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.finish(x, mixed.transpose(1, 2))
        # Queries of the marked places, first in their rows and filled up to the longest row.
        most = int(here.sum(1).max())
        places = here.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        marked = here.gather(1, places)
        normed, width = self.attention_norm(x), x.shape[-1]
        asked = normed.gather(1, places[..., None].expand(-1, -1, width))
        wq, wkv = self.qkv.weight.tensor_split((width,))
        q = rotated(self.by_head(F.linear(asked, wq)), turn[places][:, None])
        k, v = self.by_head(F.linear(normed, wkv)).chunk(2, 1)
        later = torch.arange(x.shape[1], device=x.device) > places[..., None]
        hidden = torch.zeros(later.shape, dtype=x.dtype, device=x.device)
        hidden = hidden.masked_fill(later, -torch.inf)[:, None]
        mixed = F.scaled_dot_product_attention(q, rotated(k, turn), v, attn_mask=hidden)
        return self.finish(x[here], mixed.transpose(1, 2)[marked])

    def extend(
        self,
        x: Tensor,
        turn: Tensor,
        hidden: Tensor,
        keys: Tensor,
        values: Tensor,
        start: int,
        stop: int,
    ) -> Tensor:
        q, k, v = self.projected(x, turn)
        keys[:, :, start:stop], values[:, :, start:stop] = k, v
        keys, values = keys[:, :, :stop], values[:, :, :stop]
        if stop - start == 1:  # for one query the plain products are faster than the fused kernel
            score = torch.matmul(q * q.shape[-1] ** -0.5, keys.transpose(-1, -2))
            mixed = torch.matmul((score + hidden).softmax(-1), values)
        else:
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=hidden)
        return self.finish(x, mixed.transpose(1, 2))

    def projected(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, [B, H, N, D] each."""
        both, v = self.qkv(self.attention_norm(x)).tensor_split((2 * x.shape[-1],), -1)
        q, k = rotated(self.by_head(both), turn).chunk(2, 1)
        return q, k, self.by_head(v)

    def by_head(self, x: Tensor) -> Tensor:
        """[B, heads, N, D] of [B, N, heads * D]."""
        result: Tensor = x.unflatten(-1, (-1, self.out.in_features // self.heads)).transpose(1, 2)
        return result

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """[..., width] of the places' `x` [..., width] and what they attended to [..., H, D]."""
        x = x + self.out(mixed.flatten(-2))
        normed = self.unit_norm(x)
        if self.units is not None:
            routed: Tensor = x + self.units(normed)
            return routed
        gate, up = self.gate_up(normed).chunk(2, -1)
        added: Tensor = x + self.down(F.silu(gate) * up)
        return added


def rotation(positions: Tensor, config: TransformerConfig, dtype: torch.dtype) -> Tensor:
    """Unit complex numbers [..., D / 2] of the rotary angles at `positions` [...] ("RoFormer:
    Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864)."""
    dim = config.width // config.heads
    exponent = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim
    angle = positions[..., None].double() * config.base**-exponent
    return torch.polar(torch.ones_like(angle), angle).to(dtype.to_complex())


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """`x` [..., D] with neighbours as the two coordinates of each rotation."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2)
