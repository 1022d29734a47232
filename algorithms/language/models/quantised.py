"""A language model whose linear layers compute in few bits: one precision for sampling and for
learning, or for sampling alone. "Jet-RL: Enabling On-Policy FP8 Reinforcement Learning with Unified
Training and Rollout Precision Flow", arXiv 2601.14243."""

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from algorithms.language.models.experts import layers_with_experts
from algorithms.language.models.transformer import Block
from mbrl.errors import ConfigError

Precision = Literal["full", "fp8", "int8", "int4", "int3"]
LARGEST = {"fp8": 448.0, "int8": 127.0, "int4": 7.0, "int3": 3.0}  # of each number format
GROUP = 128  # inputs that share a scale (the paper's 1 x 128, and 128 x 128 of weights)
# Products of integers often lie half-way between two numbers, on either side by the order in which
# they were summed. All of them go away from zero.
TIE = 1e-5
HEADS = ("head", "lm_head")  # stay as they are


def quantised(x: Tensor, precision: Precision, rows: int = 1) -> Tensor:
    """`x` [..., n] with each number the nearest of its format times the scale of its group, which
    brings the group's largest to the format's largest. A group is up to 128 entries of the last
    dimension, of `rows` rows (more than one: of a matrix). The gradient is that of `x`."""
    if precision == "full":
        return x
    with torch.no_grad():
        grouped = padded(x, 1 if rows == 1 else min(rows, x.shape[0]))
        scale = grouped.abs().amax((-1, -3), keepdim=True) / LARGEST[precision]
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        near = grouped / scale * (1 + TIE)
        # The format of 8 bits with 4 of exponent (E4M3), or integers.
        near = near.to(torch.float8_e4m3fn).to(x) if precision == "fp8" else near.round()
        whole = (near * scale).flatten(-2)[..., : x.shape[-1]]
        whole = whole.flatten(-3, -2)[..., : x.shape[-2] if x.ndim > 1 else 1, :]
        change = whole.reshape(x.shape) - x
    return x + change


def padded(x: Tensor, rows: int) -> Tensor:
    """`x` [..., m, n] as [..., m / rows, rows, n / group, group], with zeros where that does not
    divide."""
    group = min(GROUP, x.shape[-1])
    matrix = x if x.ndim > 1 else x[None]
    matrix = F.pad(matrix, (0, -x.shape[-1] % group, 0, -matrix.shape[-2] % rows))
    grouped: Tensor = matrix.unflatten(-1, (-1, group)).unflatten(-3, (-1, rows))
    return grouped


class QuantisedLinear(nn.Module):
    """`linear`, whose parameters it shares, with inputs and weights in `precision`."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__()
        self.linear, self.precision = linear, precision
        self.in_features, self.kept = linear.in_features, (-1, linear.weight)

    @property
    def weight(self) -> Tensor:
        """The weights in the precision, with gradients to the linear layer's own."""
        own = self.linear.weight
        if torch.is_grad_enabled() and own.requires_grad:
            return quantised(own, self.precision, GROUP)
        if self.kept[0] != own._version:  # of samplers, which use the same weights many times
            self.kept = (own._version, quantised(own.detach(), self.precision, GROUP))
        return self.kept[1]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(quantised(x, self.precision), self.weight, self.linear.bias)


class Rounded(nn.Module):
    """`module` with outputs in `precision`."""

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module, self.precision = module, precision

    def forward(self, x: Tensor) -> Tensor:
        return quantised(self.module(x), self.precision)


def in_precision(model: Any, precision: Precision) -> Any:
    """`model`, or one that shares its parameters and has every linear layer but the head in
    `precision`. Embeddings, norms, attention and the head stay in full precision. Scales are of
    single tokens, so that what a token gets depends neither on the batch nor on how much of a
    conversation is computed at once. Raises `ConfigError` for a model with experts."""
    if precision == "full":
        return model
    if layers_with_experts(model):
        raise ConfigError(
            f"precision is {precision}, and the model has experts, whose weights are no linear "
            "layers; use full precision, or a model without experts"
        )
    return viewed(model, precision)


def viewed(module: nn.Module, precision: Precision) -> nn.Module:
    other = copy.copy(module)
    other._modules = {
        name: part if part is None or name in HEADS else replaced(part, precision)
        for name, part in module._modules.items()
    }
    if isinstance(module, Block):  # reads a part of the weights itself, for a part of the places
        other.attention_norm = Rounded(module.attention_norm, precision)
    return other


def replaced(part: nn.Module, precision: Precision) -> nn.Module:
    return QuantisedLinear(part, precision) if type(part) is nn.Linear else viewed(part, precision)
