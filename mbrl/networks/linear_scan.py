"""Diagonal linear recurrences over long sequences, with resets, in linear time:
h_t = a_t h_{t-1} + b_t, in chunks that run side by side.

The recurrence is that of Linear Recurrent Units, "Resurrecting Recurrent Neural Networks for Long
Sequences", arXiv 2303.06349; the chunking is this library's.
"""

import math
from typing import Any

import torch
from torch import Tensor

SHORT = 16  # steps that are walked one after the other
WIDE = 1024  # and numbers of a step from which that is faster than chunks, whose work is threefold


def linear_scan(a: Tensor, b: Tensor) -> Tensor:
    """h [T, ...] with h_t = a_t h_{t-1} + b_t and h before the first step 0, from `a` (T in front,
    broadcastable to `b`) and `b` [T, ...], real or complex.

    A reset at step t is a_t = 0. Cost: 3 T multiplications, in about sqrt(T) steps one after the
    other; with many numbers a step, T multiplications in T steps.
    """
    result: Tensor = _Scan.apply(a if a.ndim == b.ndim else a.expand_as(b), b)
    return result


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        h = _scanned(a, b)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """g_t = dL/dh_t + conj(a_{t+1}) g_{t+1}, a scan from the end, is dL/db_t; dL/da_t is
        g_t conj(h_{t-1})."""
        a, h = ctx.saved_tensors
        later = torch.cat([a[1:], torch.zeros_like(a[:1])]).conj()
        g = _scanned(later.resolve_conj(), gradients[0].resolve_conj(), back=True)
        moved = (g[1:] * h[:-1].conj()).sum_to_size(a[1:].shape)  # summed before it is copied
        return torch.cat([torch.zeros_like(a[:1]), moved]), g


@torch.no_grad()
def _scanned(a: Tensor, b: Tensor, back: bool = False) -> Tensor:
    """The scan without gradients, `back` from the last step to the first."""
    if len(b) > SHORT and b[0].numel() < WIDE:
        a = a.expand_as(b)
        return _chunked(a.flip(0), b.flip(0)).flip(0) if back else _chunked(a, b)
    h = b.clone(memory_format=torch.contiguous_format)
    values, factors = h.unbind(0), a.unbind(0)
    order = range(len(b) - 2, -1, -1) if back else range(1, len(b))
    for t in order:
        values[t].addcmul_(factors[t], values[t + 1 if back else t - 1])
    return h


@torch.no_grad()
def _chunked(a: Tensor, b: Tensor) -> Tensor:
    """The scan without gradients, `a` and `b` [T, ...] alike, T > 16. All chunks run their steps
    side by side from 0; then what enters each chunk, itself a scan over chunks, is added in."""
    steps = len(b)
    size = math.isqrt(steps) // 2
    within, through = _by_step(b, size), _by_step(a, size)
    values, products = within.unbind(0), through.unbind(0)
    for t in range(1, size):
        values[t].addcmul_(products[t], values[t - 1])
        products[t].mul_(products[t - 1])
    entering = _scanned(products[-1], values[-1])[:-1]
    within[:, 1:].addcmul_(through[:, 1:], entering)
    return within.transpose(0, 1).flatten(0, 1)[:steps]


def _by_step(x: Tensor, size: int) -> Tensor:
    """A copy [size, chunks, ...], in which the chunks' equal steps lie together; 0 at the end."""
    rest = -len(x) % size
    if rest:
        x = torch.cat([x, x.new_zeros(rest, *x.shape[1:])])
    chunks: Tensor = x.unflatten(0, (-1, size))
    return chunks.transpose(0, 1).clone(memory_format=torch.contiguous_format)
