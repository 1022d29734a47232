"""Networks over windows of tokens: a one-dimensional U-Net, and a transformer. Both take x
[B, L, F] and a number c [B] that says how noisy it is, and return [B, L, F]."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.errors import ConfigError
from mbrl.native import unet

GROUPS = 8  # of the U-Net's group normalisation
# Features from which PyTorch's convolutions gain by bfloat16 where a processor multiplies it.
# Narrower ones lose more by conversions than products save.
WIDE = 64


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Weights and biases of all linear maps and convolutions uniform within 1 / sqrt(fan_in), as
    torch has them, from `generator`."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d):
            bound = 1.0 / math.sqrt(part.weight[0].numel())
            for p in (part.weight, part.bias):
                if p is not None:
                    nn.init.uniform_(p, -bound, bound, generator=generator)


class NoiseEmbedding(nn.Module):
    """Sines and cosines of c at frequencies from 1 to 64, then two layers."""

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        count = max(4, width // 8)
        self.register_buffer("frequencies", torch.logspace(0, math.log10(64.0), count))
        self.first, self.second = nn.Linear(2 * count, width), nn.Linear(width, width)

    def forward(self, c: Tensor) -> Tensor:
        angle = c[:, None] * self.frequencies
        h = F.silu(self.first(torch.cat([angle.sin(), angle.cos()], -1)))
        return F.silu(self.second(h))


class Convolution(nn.Module):
    """A convolution over time with "same" padding, noise added, group normalisation, ReLU, of x
    [B, C, 1, L]. Features lie side by side in memory, as they do in tokens: convolutions of images
    take that layout without reordering it, those over time alone do not (`side_by_side`)."""

    def __init__(self, in_dim: int, out_dim: int, kernel: int, noise: int | None = None) -> None:
        super().__init__()
        # What an even kernel needs more on the right is padded beforehand.
        self.pad, self.more = (0, (kernel - 1) // 2), 1 - kernel % 2
        self.conv = nn.Conv1d(in_dim, out_dim, kernel)
        self.noise = None if noise is None else nn.Linear(noise, out_dim)
        self.norm = nn.GroupNorm(GROUPS, out_dim)
        self.laid = unet.Laid()

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        if self.more:
            x = F.pad(x, (0, self.more))
        h = F.conv2d(x, self.conv.weight[:, :, None], self.conv.bias, padding=self.pad)
        if self.noise is not None:
            h = h + self.noise(embedded)[:, :, None, None]
        return F.relu(self.norm(h))


@torch.no_grad()
def side_by_side(module: nn.Module) -> None:
    """Lay the weights [out, in, kernel] of all convolutions out in memory as [out, kernel, in];
    their shapes and values stay."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d):
            part.weight.data = part.weight.mT.contiguous().mT


class TemporalUNet(nn.Module):
    """The network of policy-guided diffusion (arXiv 2404.06356): at level i two convolutions of
    `width` 2^i features, the noise level added in the first; max-pooling down, nearest-neighbour
    doubling up, the skipped features beside them. The paper's width is 1024 with 3 levels.

    Differences: the noise level is embedded with frequencies of 1 to 64, those of the authors' code
    run from 1 down to 1e-4, where a level of -2 to 1 hardly changes anything; 1e-5 guards group
    normalisation (theirs: 1e-6); where the levels do not halve a length evenly, the nearest feature
    is that at the floor of the place, theirs that at the middle of the step.
    """

    def __init__(self, features: int, width: int, levels: int, generator: torch.Generator) -> None:
        super().__init__()
        if width % GROUPS or width < GROUPS or levels < 1:
            raise ConfigError(
                f"width is {width}, it must be a multiple of {GROUPS}; levels is {levels}, it must "
                "be at least 1"
            )
        self.width, self.embedding = width, NoiseEmbedding(width)
        sizes = [width * 2**i for i in range(levels)]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = features
        for size in sizes:
            self.down.append(
                nn.ModuleList([Convolution(before, size, 3, width), Convolution(size, size, 3)])
            )
            before = size
        for size in reversed(sizes[:-1]):
            parts = [
                Convolution(before, size, 2, width),
                Convolution(2 * size, size, 3),
                Convolution(size, size, 3),
            ]
            self.up.append(nn.ModuleList(parts))
            before = size
        self.out = nn.Conv1d(before, features, 1)
        initialise(self, generator)
        side_by_side(self)
        self.all = tuple(self.parameters())
        self.parts = [part for stage in (*self.down, *self.up) for part in stage]

    def is_compiled(self, x: Tensor) -> bool:
        """Whether the compiled library makes this pass. Windows of a wrong size are left to
        PyTorch, which refuses them."""
        fits = x.ndim == 3 and x.shape[1] >= 2 ** (len(self.down) - 1)
        fits = fits and x.shape[2] == self.out.out_channels
        return fits and unet.computes(x, self.all, self.width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        embedded, h = self.embedding(c), x.mT[:, :, None]
        if self.is_compiled(x):
            return unet.forward(x, embedded, self.parts, self.out, len(self.down))
        skipped: list[Tensor] = []
        for index, stage in enumerate(self.down):
            if index > 0:
                h = F.max_pool2d(h, (1, 2))
            for part in stage:  # type: ignore[attr-defined]
                h = part(h, embedded)
            skipped.append(h)
        skipped.pop()
        for stage in self.up:
            beside = skipped.pop()
            h = stage[0](F.interpolate(h, size=beside.shape[-2:]), embedded)  # type: ignore[index]
            h = stage[1](torch.cat([h, beside], 1), embedded)  # type: ignore[index]
            h = stage[2](h, embedded)  # type: ignore[index]
        return F.linear(h[:, :, 0].mT, self.out.weight[:, :, 0], self.out.bias)


class SamplingUNet(nn.Module):
    """A U-Net's function with weights, products and features in bfloat16, for sampling: what comes
    in and out and the noise embedding, whose angles are large, stay in float32."""

    def __init__(self, network: TemporalUNet) -> None:
        super().__init__()
        self.embedding = copy.deepcopy(network.embedding)
        self.inner = copy.deepcopy(network).bfloat16()
        self.inner.embedding = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        embedded = self.embedding(c).bfloat16()
        out: Tensor = self.inner(x.bfloat16(), embedded)
        return out.to(x.dtype)


class Block(nn.Module):
    """Attention over all positions, then two layers, each after a LayerNorm that the noise level
    scales, shifts and gates (Scalable Diffusion Models with Transformers, arXiv 2212.09748)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        change = self.modulation(embedded)[:, None].chunk(6, -1)
        h = self.norms[0](x) * (1 + change[0]) + change[1]
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(h).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + change[2] * self.joined(attended)
        h = self.norms[1](x) * (1 + change[3]) + change[4]
        out: Tensor = x + change[5] * self.narrow(F.gelu(self.wide(h)))
        return out


class WindowTransformer(nn.Module):
    """A transformer over the tokens of a window, with a learned place for each position; without
    one where `length` is 0, so that tokens are a set: what comes out is in their order."""

    def __init__(
        self,
        features: int,
        length: int,
        width: int,
        levels: int,
        generator: torch.Generator,
        heads: int = 4,
    ) -> None:
        super().__init__()
        if width % heads or width < heads or levels < 1:
            raise ConfigError(
                f"width is {width}, it must be a multiple of {heads} (heads); levels is {levels}, "
                "it must be at least 1"
            )
        self.embedding, self.into = NoiseEmbedding(width), nn.Linear(features, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(levels))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, features)
        initialise(self, generator)
        # Of the size of what it is added to, or attention tells no position from another at first.
        place = 0.5 * torch.randn(length, width, generator=generator)
        self.place = nn.Parameter(place) if length > 0 else None

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        embedded, h = self.embedding(c), self.into(x)
        if self.place is not None:
            h = h + self.place
        for block in self.blocks:
            h = block(h, embedded)
        result: Tensor = self.out(self.norm(h))
        return result
