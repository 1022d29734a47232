"""Ensembles of multi-layer perceptrons as one batched module (leading dimension: member).

`ensemble_values` is the scalar-output ReLU case with its own backward: it returns the values and,
on request, their action gradients, and takes cotangents for both in one shared backward chain.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.errors import unknown_name
from mbrl.native import passes
from mbrl.networks import ensemble_kernels
from mbrl.networks.normaliser import Normaliser

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

    __call__: Callable[..., Tensor]
    normaliser: Normaliser | None

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
        self.normaliser = None  # of the first inputs; see `standardise`
        sizes = [in_dim, *hidden, out_dim]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(sizes):
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

    def standardise(self, size: int) -> None:
        """Add a normaliser of the first `size` inputs, which is the identity until it is fitted."""
        self.normaliser = Normaliser(size)

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs as the first layer gets them."""
        if self.normaliser is None:
            return x
        size = len(self.normaliser.mean)
        return torch.cat([self.normaliser(x[..., :size]), x[..., size:]], -1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in] shared by all members, or [E, B, in], to [E, B, out]."""
        x = self.prepared(x)
        if passes.computes(x, self.weights, self.activation):
            norms = (*self.scales, *self.shifts)
            return passes.forward(x, [*self.weights], [*self.biases], self.activation, norms)
        if _fits_kernels(x) and not torch.is_grad_enabled() and not self.layer_norm:
            return ensemble_kernels.infer(x, list(self.weights), list(self.biases), self.activation)
        return self.batched(x)

    def batched(self, x: Tensor) -> Tensor:
        """`forward` as one product a layer for all members: ordinary autograd on any device."""
        activate = ACTIVATIONS[self.activation]
        h = x.expand(self.members, *x.shape) if x.ndim == 2 else x
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h, weight)
            if layer < last:
                if self.layer_norm:
                    h = _layer_norm(h, self.scales[layer], self.shifts[layer])
                h = activate(h)
        return h

    def chosen(self, x: Tensor, members: Tensor) -> Tensor:
        """[B, in] through the members named in `members` [M] int64 alone, to [M, B, out]."""
        if passes.computes(x, self.weights, self.activation):
            weights, biases = ([p[members] for p in ps] for ps in (self.weights, self.biases))
            norms = [p[members] for p in (*self.scales, *self.shifts)]
            return passes.forward(x, weights, biases, self.activation, norms)
        activate = ACTIVATIONS[self.activation]
        h = x.expand(len(members), *x.shape)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias[members], h, weight[members])
            if layer < last:
                if self.layer_norm:
                    h = _layer_norm(h, self.scales[layer][members], self.shifts[layer][members])
                h = activate(h)
        return h

    def member(self, x: Tensor, index: int) -> Tensor:
        """[B, in] through member `index` alone, to [B, out]."""
        if passes.computes(x, self.weights, self.activation):
            weights = [w[index, None] for w in self.weights]
            biases = [b[index, None] for b in self.biases]
            norms = [n[index, None] for n in (*self.scales, *self.shifts)]
            return passes.forward(x, weights, biases, self.activation, norms)[0]
        if _fits_kernels(x) and not torch.is_grad_enabled() and not self.layer_norm:
            weights = [w[index, None] for w in self.weights]
            biases = [b[index, None] for b in self.biases]
            return ensemble_kernels.infer(x, weights, biases, self.activation)[0]
        activate = ACTIVATIONS[self.activation]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias[index, 0], x, weight[index])
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
    if len(mlp.weights) < 2:
        raise ValueError("ensemble_values needs at least one hidden layer")
    x = mlp.prepared(x)
    weights = [w.detach() if frozen else w for w in mlp.weights]
    biases = [b.detach() if frozen else b for b in mlp.biases]
    if not _fits_kernels(x):
        return batched_values(x, action_dim, weights, biases)
    if action_dim == 0 and passes.computes(x, weights, mlp.activation):
        return passes.forward(x, weights, biases, mlp.activation)[..., 0], x.new_empty(0)
    if action_dim > 0:
        q, gradient = ensemble_kernels.ValuesAndGradients.apply(x, action_dim, *weights, *biases)
        return q, gradient
    params = [*weights, *biases]
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in params)):
        return ensemble_kernels.Values.apply(x, *params), x.new_empty(0)
    return ensemble_kernels.values(x, [p.detach() for p in params]), x.new_empty(0)


def _layer_norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm of h [E, B, W] with every member's own scale and shift [E, 1, W]; one pass over the
    normalised rows and not two."""
    return torch.addcmul(shift, F.layer_norm(h, h.shape[-1:]), scale)


def _fits_kernels(x: Tensor) -> bool:
    """Whether to run one member after the other; other devices and compiled code run the batched
    form."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def batched_values(
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


def minimum_value(mlp: EnsembleMLP, x: Tensor, action_dim: int) -> Tensor:
    """min over members of q(x) [B], differentiable in the last `action_dim` inputs only.

    The gradient of a minimum needs the chosen member's rows alone, so the backward chain runs on
    B rows instead of E * B (exact: the other rows have zero cotangent).
    """
    if mlp.activation != "relu" or mlp.layer_norm or len(mlp.weights) < 2:
        return mlp(x)[:, :, 0].min(0).values
    if not (_fits_kernels(x) and torch.is_grad_enabled() and x.requires_grad):
        return ensemble_values(mlp, x, frozen=True)[0].min(0).values
    x = mlp.prepared(x)
    result: Tensor = ensemble_kernels.Minimum.apply(x, action_dim, *mlp.weights, *mlp.biases)
    return result
