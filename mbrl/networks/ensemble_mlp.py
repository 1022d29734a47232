"""Ensembles of multi-layer perceptrons as one batched module (leading dimension: member).

`ensemble_values` is the scalar-output ReLU case with its own backward: it returns the values and,
on request, their action gradients, and takes cotangents for both in one shared backward chain.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.errors import unknown_name

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
}


class EnsembleMLP(nn.Module):
    """`members` independent MLPs, evaluated together.

    Layer l holds `weights[l]` [E, in, out] and `biases[l]` [E, 1, out]. With `layer_norm` each
    hidden layer is Linear, LayerNorm (affine), activation. Initialised as `torch.nn.Linear` is,
    from `generator`, so that the same seed gives the same networks on every machine.
    """

    def __init__(
        self,
        members: int,
        in_dim: int,
        hidden: Sequence[int],
        out_dim: int,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.members, self.in_dim, self.out_dim = members, in_dim, out_dim
        self.activation, self.layer_norm = activation, layer_norm
        sizes = [in_dim, *hidden, out_dim]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
            bound = 1.0 / math.sqrt(fan_in)
            for shape, target in (
                ((members, fan_in, fan_out), self.weights),
                ((members, 1, fan_out), self.biases),
            ):
                values = torch.rand(shape, generator=generator) * (2 * bound) - bound
                target.append(nn.Parameter(values))
        if layer_norm:
            for width in hidden:
                self.scales.append(nn.Parameter(torch.ones(members, 1, width)))
                self.shifts.append(nn.Parameter(torch.zeros(members, 1, width)))

    def forward(self, x: Tensor) -> Tensor:
        """[B, in] shared by all members, or [E, B, in], to [E, B, out]."""
        activate = ACTIVATIONS[self.activation]
        h = x.expand(self.members, *x.shape) if x.ndim == 2 else x
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h, weight)
            if layer < last:
                if self.layer_norm:
                    h = F.layer_norm(h, h.shape[-1:]) * self.scales[layer] + self.shifts[layer]
                h = activate(h)
        return h

    def member(self, x: Tensor, index: int) -> Tensor:
        """[B, in] through member `index` alone, to [B, out]."""
        activate = ACTIVATIONS[self.activation]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias[index], x, weight[index])
            if layer < last:
                if self.layer_norm:
                    scale, shift = self.scales[layer][index, 0], self.shifts[layer][index, 0]
                    x = F.layer_norm(x, x.shape[-1:], scale, shift)
                x = activate(x)
        return x


def ensemble_values(
    mlp: EnsembleMLP, x: Tensor, action_dim: int = 0, *, frozen: bool = False
) -> tuple[Tensor, Tensor]:
    """Values q [E, B] of a scalar-output ensemble at `x` [B, in] and, where `action_dim` > 0,
    dq/da [E, B, action_dim] with respect to the last `action_dim` inputs (else an empty tensor).

    Both outputs are differentiable in the parameters; so is q in `x`. dq/da is piecewise constant
    in `x` for ReLU networks, so it passes no gradient to `x`. `frozen` leaves the parameters out
    of the graph (a policy loss has no use for their gradients).
    """
    if mlp.activation != "relu" or mlp.layer_norm or mlp.out_dim != 1:
        raise ValueError("ensemble_values needs a scalar-output ReLU ensemble without LayerNorm")
    weights = [w.detach() if frozen else w for w in mlp.weights]
    biases = [b.detach() if frozen else b for b in mlp.biases]
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        q, gradient = _MemberMajor.apply(x, action_dim, *weights, *biases)
        return q, gradient
    return _batched_values(x, action_dim, weights, biases)


def _batched_values(
    x: Tensor, action_dim: int, weights: list[Tensor], biases: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The plain batched form: ordinary autograd, static shapes, one kernel per layer."""
    h = x.expand(weights[0].shape[0], *x.shape)
    masks = []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        h = torch.relu(torch.baddbmm(bias, h, weight))
        masks.append((h > 0).to(h.dtype))
    head = weights[-1].transpose(1, 2)
    q = (h * head).sum(-1) + biases[-1][:, :, 0]
    if action_dim == 0:
        return q, q.new_empty(0)
    chain = head * masks[-1]
    for weight, mask in zip(reversed(weights[1:-1]), reversed(masks[:-1]), strict=True):
        chain = torch.bmm(chain, weight.transpose(1, 2)) * mask
    return q, torch.bmm(chain, weights[0][:, -action_dim:].transpose(1, 2))


class _MemberMajor(torch.autograd.Function):
    """One member after the other, so that its activations stay in cache.

    With unit cotangent the backward chain d_l = dq/dz_l serves the value loss and the gradient
    loss alike. For cotangents g (of q) and G (of dq/da) the weight gradient of layer l is
    (g h_{l-1} + u_{l-1})^T d_l, where u is the adjoint chain u_0 = [0, G],
    u_l = (u_{l-1} W_l) * mask_l: one merged product a layer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, action_dim: int, *params: Tensor) -> tuple[Tensor, Tensor]:
        depth = len(params) // 2
        weights, biases = params[:depth], params[depth:]
        members, batch = weights[0].shape[0], x.shape[0]
        saves = any(p.requires_grad for p in params) or x.requires_grad
        hidden = [
            x.new_empty(members if saves else 1, batch, w.shape[2]) for w in weights[:-1]
        ]
        wants_chain = action_dim > 0
        chain = [torch.empty_like(h) for h in hidden] if wants_chain else []
        q = x.new_empty(members, batch)
        gradient = x.new_empty((members, batch, action_dim) if wants_chain else (0,))
        for e in range(members):
            slot = e if saves else 0
            h = x
            for layer, out in enumerate(hidden):
                torch.addmm(biases[layer][e], h, weights[layer][e], out=out[slot])
                h = out[slot].relu_()
            torch.mv(h, weights[-1][e, :, 0], out=q[e])
            q[e].add_(biases[-1][e, 0, 0])
            if wants_chain:
                _backward_chain(e, slot, weights, hidden, chain)
                torch.mm(chain[0][slot], weights[0][e, -action_dim:].t(), out=gradient[e])
        if saves:
            ctx.save_for_backward(x, *weights, *hidden, *chain)
        ctx.depth, ctx.action_dim = depth, action_dim
        ctx.set_materialize_grads(False)
        return q, gradient

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, big_g: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        depth, action_dim = ctx.depth, ctx.action_dim
        x, *saved = ctx.saved_tensors
        weights, hidden, chain = saved[:depth], saved[depth : 2 * depth - 1], saved[2 * depth - 1 :]
        members, batch = weights[0].shape[0], x.shape[0]
        wants_x, wants_params = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        if g is None:
            g = x.new_zeros(members, batch)
        own_chain = not chain
        if own_chain:
            chain = [h.new_empty(1, *h.shape[1:]) for h in hidden]
        grad_x = torch.zeros_like(x) if wants_x else None
        grads_w = [torch.empty_like(w) for w in weights] if wants_params else []
        grads_b = [w.new_empty(members, 1, w.shape[2]) for w in weights] if wants_params else []
        for e in range(members):
            slot = 0 if own_chain else e
            if own_chain:
                _backward_chain(e, slot, weights, hidden, chain)
            column = g[e].unsqueeze(1)
            if grad_x is not None:
                grad_x.addcmul_(torch.mm(chain[0][slot], weights[0][e].t()), column)
            if wants_params:
                u = None if big_g is None or action_dim == 0 else big_g[e]
                _member_weight_gradients(
                    e, slot, x, column, u, weights, hidden, chain, grads_w, grads_b
                )
        if not wants_params:
            return grad_x, None, *([None] * (2 * depth))
        return grad_x, None, *grads_w, *grads_b


def _backward_chain(
    e: int, slot: int, weights: Sequence[Tensor], hidden: Sequence[Tensor], chain: Sequence[Tensor]
) -> None:
    """Write d_l = dq/dz_l of member `e` into `chain[l][slot]`, last layer first."""
    active = hidden[-1][min(e, hidden[-1].shape[0] - 1)]
    torch.mul(torch.sign(active), weights[-1][e, :, 0], out=chain[-1][slot])
    for layer in range(len(hidden) - 2, -1, -1):
        out = chain[layer][slot]
        torch.mm(chain[layer + 1][slot], weights[layer + 1][e].t(), out=out)
        h = hidden[layer][min(e, hidden[layer].shape[0] - 1)]
        torch.ops.aten.threshold_backward.grad_input(out, h, 0.0, grad_input=out)


def _member_weight_gradients(
    e: int,
    slot: int,
    x: Tensor,
    column: Tensor,
    u: Tensor | None,
    weights: Sequence[Tensor],
    hidden: Sequence[Tensor],
    chain: Sequence[Tensor],
    grads_w: Sequence[Tensor],
    grads_b: Sequence[Tensor],
) -> None:
    """Parameter gradients of member `e` from the value cotangent `column` [B, 1] and the cotangent
    `u` [B, A] of dq/da."""
    last = len(weights) - 1
    for layer in range(last):
        below = x if layer == 0 else hidden[layer - 1][e]
        rows = below * column
        if u is not None:
            if layer == 0:
                rows[:, -u.shape[1] :] += u
                u = torch.mm(u, weights[0][e, -u.shape[1] :])
            else:
                rows += u
                u = torch.mm(u, weights[layer][e])
            u = torch.ops.aten.threshold_backward(u, hidden[layer][e], 0.0)
        torch.mm(rows.t(), chain[layer][slot], out=grads_w[layer][e])
        torch.mm(column.t(), chain[layer][slot], out=grads_b[layer][e])
    top = torch.mv(hidden[-1][e].t(), column[:, 0])
    if u is not None:
        top = top + u.sum(0)
    grads_w[last][e, :, 0] = top
    grads_b[last][e, 0, 0] = column.sum()


def minimum_value(mlp: EnsembleMLP, x: Tensor, action_dim: int) -> Tensor:
    """min over members of q(x) [B], differentiable in the last `action_dim` inputs only.

    The gradient of a minimum needs the chosen member's rows alone, so the backward chain runs on
    B rows instead of E * B (exact: the other rows have zero cotangent).
    """
    weights, biases = list(mlp.weights), list(mlp.biases)
    plain = mlp.activation != "relu" or mlp.layer_norm
    if plain:
        return mlp(x)[:, :, 0].min(0).values
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return ensemble_values(mlp, x, frozen=True)[0].min(0).values
    result: Tensor = _MinimumValue.apply(x, action_dim, *weights, *biases)
    return result


class _MinimumValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, action_dim: int, *params: Tensor) -> Tensor:
        depth = len(params) // 2
        weights, biases = params[:depth], params[depth:]
        members, batch = weights[0].shape[0], x.shape[0]
        hidden = [x.new_empty(members, batch, w.shape[2]) for w in weights[:-1]]
        q = x.new_empty(members, batch)
        for e in range(members):
            h = x
            for layer, out in enumerate(hidden):
                torch.addmm(biases[layer][e], h, weights[layer][e], out=out[e])
                h = out[e].relu_()
            torch.mv(h, weights[-1][e, :, 0], out=q[e])
            q[e].add_(biases[-1][e, 0, 0])
        lowest, chosen = q.min(0)
        gradient = x.new_empty(batch, action_dim)
        if x.requires_grad:
            order = torch.argsort(chosen)
            counts = torch.bincount(chosen, minlength=members).tolist()
            for e, rows in enumerate(torch.split(order, counts)):
                if len(rows):
                    chain = torch.sign(hidden[-1][e, rows]) * weights[-1][e, :, 0]
                    for layer in range(depth - 3, -1, -1):
                        chain = torch.mm(chain, weights[layer + 1][e].t())
                        mask = hidden[layer][e, rows]
                        chain = torch.ops.aten.threshold_backward(chain, mask, 0.0)
                    gradient[rows] = torch.mm(chain, weights[0][e, -action_dim:].t())
        ctx.save_for_backward(gradient)
        ctx.in_dim, ctx.params = x.shape[1], 2 * depth
        return lowest

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        grad_x = g.new_zeros(g.shape[0], ctx.in_dim)
        torch.mul(gradient, g.unsqueeze(1), out=grad_x[:, -gradient.shape[1] :])
        return grad_x, None, *([None] * ctx.params)
