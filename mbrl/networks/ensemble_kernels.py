"""Ensemble products one member after the other, with their own backward: on a CPU a member's
activations then stay in cache. The maths is that of the batched forms in `ensemble_mlp`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "silu": lambda z: F.silu(z, inplace=True),
    "leaky_relu": lambda z: F.leaky_relu(z, inplace=True),
    "tanh": torch.tanh_,
    "gelu": torch.ops.aten.gelu_,
}
_threshold_backward = torch.ops.aten.threshold_backward.grad_input

Layers = Sequence[Sequence[Tensor]]  # [layer][member]


def infer(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str
) -> Tensor:
    """[B, in] or [E, B, in] to [E, B, out], nothing saved for a backward pass."""
    activate = IN_PLACE[activation]
    members, batch = weights[0].shape[0], x.shape[-2]
    out = x.new_empty(members, batch, weights[-1].shape[2])
    buffers = [x.new_empty(batch, w.shape[2]) for w in weights[:-1]]
    inputs = x.unbind(0) if x.ndim == 3 else [x] * members
    vectors = [b[:, 0] for b in biases]
    for h, target, *layers in zip(inputs, out, *weights, *vectors, strict=True):
        pairs = list(zip(layers[: len(weights)], layers[len(weights) :], strict=True))
        for (weight, bias), buffer in zip(pairs, buffers, strict=False):
            h = activate(torch.addmm(bias, h, weight, out=buffer))
        torch.addmm(pairs[-1][1], h, pairs[-1][0], out=target)
    return out


def values(x: Tensor, params: Sequence[Tensor]) -> Tensor:
    """q [E, B] of a scalar-output ReLU ensemble, nothing saved."""
    weights, biases = _split(params)
    batch = x.shape[0]
    hidden = [[x.new_empty(batch, w[0].shape[1])] * len(w) for w in weights[:-1]]
    return _forward(x, weights, biases, hidden)


def _split(params: Sequence[Tensor]) -> tuple[Layers, Layers]:
    """Parameters of all layers as views [layer][member]; the head's weight as a vector."""
    depth = len(params) // 2
    weights = [w.unbind(0) for w in params[: depth - 1]]
    weights.append(params[depth - 1][:, :, 0].unbind(0))
    # A bias that is a vector goes into the product's own pass; a [1, out] one is copied first.
    return weights, [b[:, 0].unbind(0) for b in params[depth:]]


def _forward(x: Tensor, weights: Layers, biases: Layers, hidden: Layers) -> Tensor:
    """Fill `hidden` with the activations and return q."""
    q = x.new_empty(len(weights[0]), x.shape[0])
    for e, row in enumerate(q.unbind(0)):
        _activations(x, e, weights, biases, hidden)
        torch.addmv(biases[-1][e], hidden[-1][e], weights[-1][e], out=row)
    return q


def _activations(x: Tensor, e: int, weights: Layers, biases: Layers, hidden: Layers) -> None:
    h = x
    for weight, bias, out in zip(weights[:-1], biases[:-1], hidden, strict=True):
        h = torch.addmm(bias[e], h, weight[e], out=out[e]).relu_()


def _unit_chain(e: int, weights: Layers, hidden: Layers, chain: Layers) -> None:
    """Write d_l = dq/dz_l of member `e` into `chain[l][e]`, last layer first."""
    d, h = chain[-1][e], hidden[-1][e]
    _threshold_backward(weights[-1][e].expand_as(h), h, 0.0, grad_input=d)
    for layer in range(len(hidden) - 2, -1, -1):
        out = chain[layer][e]
        torch.mm(d, weights[layer + 1][e].t(), out=out)
        d = _threshold_backward(out, hidden[layer][e], 0.0, grad_input=out)


def _stack(like: Tensor, members: int, params: Sequence[Tensor]) -> list[Tensor]:
    """Uninitialised [members, B, width] for each hidden layer."""
    depth = len(params) // 2
    return [like.new_empty(members, like.shape[0], w.shape[2]) for w in params[: depth - 1]]


def _buffers(like: Tensor, params: Sequence[Tensor]) -> list[list[Tensor]]:
    """Three [B, width] buffers for each hidden layer; layers of one width share theirs."""
    widths = [w.shape[2] for w in params[: len(params) // 2 - 1]]
    kinds = {n: [like.new_empty(like.shape[0], n) for _ in range(3)] for n in widths}
    return [kinds[n] for n in widths]


class Values(torch.autograd.Function):
    """q [E, B] alone: the backward chain carries the cotangent, so that every weight gradient is
    one product h^T d."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *params: Tensor) -> Tensor:
        weights, biases = _split(params)
        hidden = _stack(x, len(weights[0]), params)
        q = _forward(x, weights, biases, [h.unbind(0) for h in hidden])
        ctx.save_for_backward(x, *params, *hidden)
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, *saved = ctx.saved_tensors
        depth = (len(saved) + 1) // 3
        params = saved[: 2 * depth]
        weights, _ = _split(params)
        hidden = [h.unbind(0) for h in saved[2 * depth :]]
        wants_params = any(ctx.needs_input_grad[1:])
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        grads = [torch.empty_like(p) for p in params] if wants_params else []
        split = _split(grads) if wants_params else None
        buffers = _buffers(x, params)
        for e, row in enumerate(g.contiguous().unbind(0)):
            _value_gradients(e, x, row, weights, hidden, buffers, grad_x, split)
        if not wants_params:
            return grad_x, *([None] * (2 * depth))
        torch.sum(g, 1, out=grads[-1][:, 0, 0])
        return grad_x, *grads


def _value_gradients(
    e: int,
    x: Tensor,
    g: Tensor,
    weights: Layers,
    hidden: Layers,
    buffers: Sequence[Sequence[Tensor]],
    grad_x: Tensor | None,
    grads: tuple[Layers, Layers] | None,
) -> None:
    """Gradients of member `e` from the cotangent `g` [B] of q, layer by layer down, so that each
    g dq/dz_l is used while it is in cache; that in `x` is added to `grad_x`."""
    last = len(hidden) - 1
    d = torch.mul(g.unsqueeze(1), weights[-1][e], out=buffers[last][0])
    for layer in range(last, -1, -1):
        if layer < last:
            out = buffers[layer][(last - layer) % 2]
            d = torch.mm(d, weights[layer + 1][e].t(), out=out)
        _threshold_backward(d, hidden[layer][e], 0.0, grad_input=d)
        if grads is not None:
            below = x if layer == 0 else hidden[layer - 1][e]
            torch.mm(below.t(), d, out=grads[0][layer][e])
            torch.sum(d, 0, out=grads[1][layer][e])
    if grads is not None:
        torch.mv(hidden[-1][e].t(), g, out=grads[0][-1][e])
    if grad_x is not None:
        grad_x.addmm_(d, weights[0][e].t())


class ValuesAndGradients(torch.autograd.Function):
    """q [E, B] and dq/da [E, B, A] with one shared backward chain.

    With unit cotangent the chain d_l = dq/dz_l serves both. For cotangents g (of q) and G (of
    dq/da) the weight gradient of layer l is (g h_{l-1} + u_{l-1})^T d_l, where u is the adjoint
    chain u_0 = [0, G], u_l = (u_{l-1} W_l) * mask_l: one merged product a layer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, action_dim: int, *params: Tensor) -> tuple[Tensor, Tensor]:
        weights, biases = _split(params)
        members, batch = len(weights[0]), x.shape[0]
        hidden, chain = _stack(x, members, params), _stack(x, members, params)
        slots, links = [h.unbind(0) for h in hidden], [c.unbind(0) for c in chain]
        q, gradient = x.new_empty(members, batch), x.new_empty(members, batch, action_dim)
        for e, (row, out) in enumerate(zip(q.unbind(0), gradient.unbind(0), strict=True)):
            _activations(x, e, weights, biases, slots)
            torch.addmv(biases[-1][e], slots[-1][e], weights[-1][e], out=row)
            _unit_chain(e, weights, slots, links)
            torch.mm(links[0][e], weights[0][e][-action_dim:].t(), out=out)
        ctx.save_for_backward(x, *params, *hidden, *chain)
        ctx.action_dim, ctx.depth = action_dim, len(weights)
        ctx.set_materialize_grads(False)
        return q, gradient

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, big_g: Tensor | None) -> tuple[Any, ...]:
        depth, action_dim = ctx.depth, ctx.action_dim
        x, *saved = ctx.saved_tensors
        params = saved[: 2 * depth]
        weights, _ = _split(params)
        members, batch = len(weights[0]), x.shape[0]
        hidden = [h.unbind(0) for h in saved[2 * depth : 3 * depth - 1]]
        chain = [c.unbind(0) for c in saved[3 * depth - 1 :]]
        g = x.new_zeros(members, batch) if g is None else g.contiguous()
        if big_g is None:
            big_g = x.new_zeros(members, batch, action_dim)
        wants_params = any(ctx.needs_input_grad[2:])
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        grads = [torch.empty_like(p) for p in params] if wants_params else []
        grads_w, grads_b = _split(grads) if wants_params else ([], [])
        buffers = _buffers(x, params)
        for e, row in enumerate(g.unbind(0)):
            if grad_x is not None:
                rows = torch.mm(chain[0][e], weights[0][e].t())
                grad_x.addcmul_(rows, row.unsqueeze(1))
            if wants_params:
                _merged_gradients(
                    e, x, row, big_g[e], weights, hidden, chain, buffers, grads_w, grads_b
                )
        if not wants_params:
            return grad_x, None, *([None] * (2 * depth))
        torch.sum(g, 1, out=grads[-1][:, 0, 0])
        return grad_x, None, *grads


def _merged_gradients(
    e: int,
    x: Tensor,
    g: Tensor,
    big_g: Tensor,
    weights: Layers,
    hidden: Layers,
    chain: Layers,
    buffers: Sequence[Sequence[Tensor]],
    grads_w: Layers,
    grads_b: Layers,
) -> None:
    """Parameter gradients of member `e` from the cotangents `g` [B] of q and `big_g` [B, A] of
    dq/da, layer by layer up, so that each adjoint is used while it is in cache."""
    actions, column = big_g.shape[1], g.unsqueeze(1)
    rows = x * column
    rows[:, -actions:] += big_g
    u, below = big_g, weights[0][e][-actions:]
    for layer, (d, h) in enumerate(zip(chain, hidden, strict=True)):
        torch.mm(rows.t(), d[e], out=grads_w[layer][e])
        torch.mv(d[e].t(), g, out=grads_b[layer][e])
        u = torch.mm(u, below, out=buffers[layer][layer % 2])
        _threshold_backward(u, h[e], 0.0, grad_input=u)
        if layer < len(hidden) - 1:
            rows = torch.addcmul(u, h[e], column, out=buffers[layer][2])
            below = weights[layer + 1][e]
    torch.mv(hidden[-1][e].t(), g, out=grads_w[-1][e]).add_(u.sum(0))


class Minimum(torch.autograd.Function):
    """min_e q_e(x) [B], differentiable in the last `action_dim` inputs: the backward chain runs on
    the rows where a member is the lowest, B rows in all instead of E * B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, action_dim: int, *params: Tensor) -> Tensor:
        weights, biases = _split(params)
        members = len(weights[0])
        hidden = [h.unbind(0) for h in _stack(x, members, params)]
        lowest, chosen = _forward(x, weights, biases, hidden).min(0)
        gradient = x.new_empty(x.shape[0], action_dim)
        order = torch.argsort(chosen)
        counts = torch.bincount(chosen, minlength=members).tolist()
        for e, rows in enumerate(torch.split(order, counts)):
            if len(rows) == 0:
                continue
            active = [h[e].index_select(0, rows) for h in hidden]
            head = weights[-1][e].expand_as(active[-1])
            d = torch.ops.aten.threshold_backward(head, active[-1], 0.0)
            for layer in range(len(active) - 2, -1, -1):
                d = torch.mm(d, weights[layer + 1][e].t())
                _threshold_backward(d, active[layer], 0.0, grad_input=d)
            gradient[rows] = torch.mm(d, weights[0][e][-action_dim:].t())
        ctx.save_for_backward(gradient)
        ctx.in_dim, ctx.params = x.shape[1], len(params)
        return lowest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        (gradient,) = ctx.saved_tensors
        grad_x = g.new_zeros(g.shape[0], ctx.in_dim)
        torch.mul(gradient, g.unsqueeze(1), out=grad_x[:, -gradient.shape[1] :])
        return grad_x, None, *([None] * ctx.params)
