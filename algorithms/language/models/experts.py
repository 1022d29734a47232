"""Gated units of several experts, of which every token takes a few, and which ones it took."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Experts(nn.Module):
    """`count` gated units of `hidden` each. A linear router gives each token a number for every
    expert; the `active` largest are taken, weighted by the softmax over these alone. Where `forced`
    [..., active] holds ids, these are taken in place of the largest, and weighted as ever, so that
    the router still learns; `noted` keeps the ids of every call, while it is a list."""

    def __init__(self, width: int, hidden: int, count: int, active: int) -> None:
        super().__init__()
        self.active = active
        self.router = nn.Linear(width, count, bias=False)
        self.gate_up = nn.Parameter(torch.zeros(count, width, 2 * hidden))
        self.down = nn.Parameter(torch.zeros(count, hidden, width))
        self.forced: Tensor | None = None
        self.noted: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] of [..., width]."""
        numbers = self.router(x)
        ids = numbers.topk(self.active, -1).indices if self.forced is None else self.forced
        if self.noted is not None:
            self.noted.append(ids)
        weight = numbers.gather(-1, ids).softmax(-1)
        gate, up = torch.einsum("...w,ewh->...eh", x, self.gate_up).chunk(2, -1)
        every = torch.einsum("...eh,ehw->...ew", F.silu(gate) * up, self.down)
        taken = every.gather(-2, ids[..., None].expand(*ids.shape, x.shape[-1]))
        result: Tensor = (weight[..., None] * taken).sum(-2)
        return result


def layers_with_experts(model: nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


@torch.no_grad()
def routing(model: Any, tokens: Tensor) -> Tensor:
    """int64 [L, B, T, active]: the experts that `model` takes at each of `tokens` [B, T], ascending
    in every layer, so that equal sets are equal."""
    layers = layers_with_experts(model)
    for layer in layers:
        layer.noted = []
    try:
        model.features(tokens)
        return torch.stack([layer.noted[0] for layer in layers if layer.noted]).sort(-1).values
    finally:
        for layer in layers:
            layer.noted = None


class Replayed:
    """`model`, whose tokens take the experts `ids` [L, B, T, active]."""

    def __init__(self, model: Any, ids: Tensor) -> None:
        self.model, self.ids = model, ids

    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        """As the model's; its last layer works for the marked tokens alone."""
        steps = tokens.shape[1]
        every = list(self.ids[:, :, :steps])
        every[-1] = every[-1][here]
        with taking(self.model, every):
            logits: Tensor = self.model.logits_at(tokens, here)
        return logits


@contextmanager
def taking(model: nn.Module, ids: list[Tensor]) -> Iterator[None]:
    """Have the layers take these experts."""
    layers = layers_with_experts(model)
    for layer, own in zip(layers, ids, strict=True):
        layer.forced = own
    try:
        yield
    finally:
        for layer in layers:
            layer.forced = None


@torch.no_grad()
def rounded(model: Any, bits: int) -> Any:
    """A copy of `model` whose weights have `bits` bits of mantissa: what a sampler of less
    precision has."""
    other = copy.deepcopy(model)
    for weight in other.parameters():
        mantissa, exponent = torch.frexp(weight)
        weight.copy_(torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent))
    return other
