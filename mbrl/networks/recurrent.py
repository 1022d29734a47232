"""Networks with memory: encoders of a sequence of inputs, over a tape of whole episodes at once or
a step at a time."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.native import passes
from mbrl.native import recurrent as native
from mbrl.networks.linear_scan import linear_scan

Kind = Literal["lru", "gru", "none"]


class NormedLayer(nn.Module):
    """Linear, LayerNorm, LeakyReLU(0.01): the block that NEUBAY's networks are made of."""

    __call__: Callable[..., Tensor]

    def __init__(self, in_dim: int, out_dim: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(in_dim, out_dim), nn.LayerNorm(out_dim)
        uniform_initialisation(self.linear, generator)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.linear(x)), 0.01)


def normed_network(layers: nn.Sequential, x: Tensor) -> Tensor:
    """`layers` (blocks, then a linear layer) at `x` [..., in], as one compiled pass where it can
    be."""
    blocks, last = [b for b in layers if isinstance(b, NormedLayer)], layers[-1]
    assert isinstance(last, nn.Linear) and len(layers) == len(blocks) + 1
    linear = [*(b.linear for b in blocks), last]
    weights: list[Tensor] = [layer.weight for layer in linear]
    if x.ndim != 2 or not passes.computes(x, weights, "leaky_relu"):
        out: Tensor = layers(x)
        return out
    biases: list[Tensor] = [layer.bias for layer in linear]
    norms: list[Tensor] = [b.norm.weight for b in blocks]
    norms += [b.norm.bias for b in blocks]
    return passes.forward(x, weights, biases, "leaky_relu", norms)


@torch.no_grad()
def uniform_initialisation(layer: nn.Linear, generator: torch.Generator | None) -> None:
    """Weights and biases uniform within 1 / sqrt(fan_in), as `torch.nn.Linear` (and Equinox, the
    library of NEUBAY's authors) has them, from `generator`."""
    bound = 1.0 / math.sqrt(layer.in_features)
    for p in (layer.weight, layer.bias):
        nn.init.uniform_(p, -bound, bound, generator=generator)


class LRULayer(nn.Module):
    """A linear recurrent unit with its gate and residual: pre-LayerNorm, a diagonal complex
    recurrence, Re(C h) + D u, GELU, a gated linear unit.

    Resurrecting Recurrent Neural Networks for Long Sequences (arXiv 2303.06349): |lambda| =
    exp(-exp(nu)), its phase exp(theta), inputs scaled by sqrt(1 - |lambda|^2). Moduli start uniform
    in area between `low` and `high`, phases uniform up to `phase`.
    """

    def __init__(
        self,
        width: int,
        states: int,
        *,
        low: float = 0.0,
        high: float = 0.9,
        phase: float = 6.28,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.states = states

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator).clamp_min(1e-6)

        modulus = (uniform(states) * (high**2 - low**2) + low**2).sqrt()
        self.nu = nn.Parameter((-modulus.log()).log())
        self.theta = nn.Parameter((phase * uniform(states)).log())
        self.scale = nn.Parameter((1 - modulus.square()).sqrt().log())

        def normal(fan: int, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) / math.sqrt(fan))

        self.norm = nn.LayerNorm(width)
        self.into_real, self.into_imag = (normal(2 * width, width, states) for _ in range(2))
        self.out_real, self.out_imag = (normal(states, states, width) for _ in range(2))
        self.skip = nn.Parameter(torch.randn(width, generator=generator))
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.value, self.gate):
            uniform_initialisation(layer, generator)

    def in_order(self) -> list[Tensor]:
        """The parameters in the order of the compiled pass."""
        return [
            *(self.nu, self.theta, self.scale, *self.norm.parameters()),
            *(self.into_real, self.into_imag, self.out_real, self.out_imag, self.skip),
            *(*self.value.parameters(), *self.gate.parameters()),
        ]

    def decay(self) -> Tensor:
        """lambda [states], complex, of modulus below 1."""
        return torch.polar(torch.exp(-self.nu.exp()), self.theta.exp())

    def inputs(self, u: Tensor) -> Tensor:
        """What enters the recurrence [..., states], complex, from normalised inputs u."""
        return torch.view_as_complex(self._inputs(u))

    def _inputs(self, u: Tensor) -> Tensor:
        """`inputs` [..., states, 2] in real and imaginary parts."""
        # One product for real and imaginary parts, laid out as complex numbers are: no copies.
        into = torch.stack((self.into_real, self.into_imag), -1) * self.scale.exp()[:, None]
        parts: Tensor = (u @ into.flatten(1)).unflatten(-1, (-1, 2))
        return parts

    def outputs(self, x: Tensor, u: Tensor, h: Tensor) -> Tensor:
        return self._outputs(x, u, torch.view_as_real(h))

    def _outputs(self, x: Tensor, u: Tensor, h: Tensor) -> Tensor:
        """`outputs`, of states [..., states, 2] in real and imaginary parts."""
        out = torch.stack((self.out_real, -self.out_imag), 1).flatten(0, 1)
        y = F.gelu(torch.addcmul(h.flatten(-2) @ out, self.skip, u))
        weight = torch.cat((self.value.weight, self.gate.weight))
        return x + F.glu(F.linear(y, weight, torch.cat((self.value.bias, self.gate.bias))))

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """[T, ..., width] of tapes on which sequences begin wherever `first` [T] is True."""
        u = self.norm(x)
        return self.outputs(x, u, self.scanned(u, first))

    def with_states(self, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """`forward`, and the state [T, ..., 2 states] after every position."""
        u = self.norm(x)
        h = self.scanned(u, first)
        return self.outputs(x, u, h), torch.cat([h.real, h.imag], -1)

    def scanned(self, u: Tensor, first: Tensor) -> Tensor:
        """The complex states [T, ..., states] after every position, from normalised inputs u."""
        keep = (~first).to(u.dtype).view(-1, *[1] * (u.ndim - 1))
        return linear_scan(self.decay() * keep, self.inputs(u))

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of B sequences: [B, width] and the state [B, 2 states] (real, imaginary)."""
        if torch.compiler.is_exporting():
            return self._real_step(x, state)
        u = self.norm(x)
        before = torch.complex(*state.split(self.states, -1))
        h = self.decay() * before + self.inputs(u)
        return self.outputs(x, u, h), torch.cat([h.real, h.imag], -1)

    def _real_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`step` without complex numbers, which the formats of exported policies do not have."""
        u = self.norm(x)
        entering = self._inputs(u)
        modulus, phase = torch.exp(-self.nu.exp()), self.theta.exp()
        keep, turn = modulus * phase.cos(), modulus * phase.sin()
        real, imaginary = state.split(self.states, -1)
        after = (
            keep * real - turn * imaginary + entering[..., 0],
            keep * imaginary + turn * real + entering[..., 1],
        )
        return self._outputs(x, u, torch.stack(after, -1)), torch.cat(after, -1)

    @property
    def state_size(self) -> int:
        return 2 * self.states


class GRULayer(nn.Module):
    """A gated recurrent unit with a residual, for comparison; a tape is walked step by step."""

    def __init__(self, width: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        bound = 1.0 / math.sqrt(width)
        with torch.no_grad():
            for p in self.cell.parameters():
                p.copy_(torch.rand(p.shape, generator=generator) * (2 * bound) - bound)
        self.norm = nn.LayerNorm(width)
        self.state_size = width

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """[T, ..., width] of tapes on which sequences begin wherever `first` [T] is True."""
        return self.with_states(x, first)[0]

    def with_states(self, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """`forward`, and the state [T, ..., width] after every position."""
        # Split at once: the gradient of a slice is as long as the tape, for every step of it.
        rows = self.norm(x).reshape(len(x), -1, self.state_size)
        inputs, keep = rows.unbind(0), (~first).to(x.dtype).unbind(0)
        state, states = torch.zeros_like(rows[0]), []
        for u, kept in zip(inputs, keep, strict=True):
            state = self.cell(u, state * kept)
            states.append(state)
        after = torch.stack(states).view_as(x)
        return x + after, after

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of B sequences: [B, width] and the state [B, width]."""
        state = self.cell(self.norm(x), state)
        return x + state, state


class MemoryEncoder(nn.Module):
    """Inputs of a sequence to features of its history: a normed layer, then recurrent layers.
    `none` is the encoder of a Markov agent: the layer alone. Of an input's numbers the first
    `in_dim` are read: a Markov agent's are the observation, and what else comes is the past."""

    def __init__(
        self,
        in_dim: int,
        width: int,
        *,
        kind: Kind = "lru",
        layers: int = 2,
        states: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.embed = NormedLayer(in_dim, width, generator)
        recurrent: list[LRULayer | GRULayer] = []
        if kind == "lru":
            recurrent = [LRULayer(width, states, generator=generator) for _ in range(layers)]
        elif kind == "gru":
            recurrent = [GRULayer(width, generator=generator) for _ in range(layers)]
        self.layers, self.sizes = nn.ModuleList(recurrent), [r.state_size for r in recurrent]
        self.width = width

    @property
    def state_size(self) -> int:
        """Numbers that a sequence's memory is: rows of zeros are an empty one."""
        return sum(self.sizes)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """[T, ..., in_dim] of a tape, or of several side by side, to [T, ..., width]; `first` [T]
        bool marks where sequences begin, on all of them alike."""
        parameters = self.in_order()
        if native.computes(x, first, parameters):
            return native.forward(x[:, : self.in_dim], first, parameters)
        h = self.embed(x[..., : self.in_dim])
        for layer in self.layers:
            h = layer(h, first)
        return h

    def in_order(self) -> list[Tensor]:
        """All parameters as the compiled pass takes them; none where layers are of another kind."""
        if not self.layers or not all(isinstance(layer, LRULayer) for layer in self.layers):
            return []
        embed = self.embed
        tensors: list[Tensor] = [*embed.linear.parameters(), *embed.norm.parameters()]
        for layer in self.layers:
            assert isinstance(layer, LRULayer)
            tensors += layer.in_order()
        return tensors

    def memory(self, x: Tensor, first: Tensor) -> Tensor:
        """The memory [T, ..., state_size] after every position; `step` goes on from it."""
        parameters = self.in_order()
        if not torch.is_grad_enabled() and native.computes(x, first, parameters):
            return native.states(x[:, : self.in_dim], first, parameters)
        h, states = self.embed(x[..., : self.in_dim]), []
        for layer in self.layers:
            assert isinstance(layer, LRULayer | GRULayer)
            h, after = layer.with_states(h, first)
            states.append(after)
        return torch.cat(states, -1) if states else x.new_zeros(*x.shape[:-1], 0)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of B sequences: features [B, width] and the memory [B, state_size] after it."""
        h, states = self.embed(x[..., : self.in_dim]), []
        parts = state.split(self.sizes, -1) if self.sizes else ()
        for layer, part in zip(self.layers, parts, strict=True):
            assert isinstance(layer, LRULayer | GRULayer)
            h, after = layer.step(h, part)
            states.append(after)
        return h, torch.cat(states, -1) if states else state
