"""Compiled passes against PyTorch's own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.native import passes
from mbrl.native.build import library
from mbrl.networks import MLP, EnsembleMLP

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
SIZES = [(5, 3, 1), (64, 64, 9), (37, 50, 21, 2), (1, 1), (256, 200)]


def plain(net: EnsembleMLP | MLP, x: Tensor) -> Tensor:
    """The same network in PyTorch's operations alone, in double precision."""
    act = {
        "relu": F.relu,
        "leaky_relu": F.leaky_relu,
        "tanh": torch.tanh,
        "silu": F.silu,
        "gelu": F.gelu,
    }
    h = x.double()
    single = isinstance(net, MLP)
    layers: Any = (
        [(layer.weight.t(), layer.bias) for layer in net.layers]
        if single
        else list(zip(net.weights, net.biases, strict=True))
    )
    norms: Any = (
        [(norm.weight, norm.bias) for norm in net.norms]
        if single
        else list(zip(net.scales, net.shifts, strict=True))
    )
    for index, (w, b) in enumerate(layers):
        h = h @ w.double() + b.double()
        if index < len(layers) - 1:
            if norms:
                scale, shift = (part.double() for part in norms[index])
                h = F.layer_norm(h, h.shape[-1:]) * scale + shift
            h = act[net.activation](h)
    return h


def moved(net: EnsembleMLP | MLP, draw: torch.Generator) -> None:
    """Scales and shifts of LayerNorm away from ones and zeros."""
    parts = [*net.norms.parameters()] if isinstance(net, MLP) else [*net.scales, *net.shifts]
    with torch.no_grad():
        for part in parts:
            part.add_(0.5 * torch.randn(part.shape, generator=draw))


def compared(net: EnsembleMLP | MLP, x: Tensor, draw: torch.Generator, atol: float) -> Tensor:
    """Outputs of the compiled pass, once they and the gradients by `x` and all parameters are those
    of autograd, gradients to `atol`."""
    ours, theirs = net(x), plain(net, x)
    assert ours.grad_fn is not None and "Pass" in ours.grad_fn.name()
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
    g = torch.randn(ours.shape, generator=draw)
    wanted = [x, *net.parameters()]
    mine = torch.autograd.grad(ours, wanted, g)
    right = torch.autograd.grad(theirs, wanted, g.double())
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=atol)
    return ours


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "LayerNorm"])
@pytest.mark.parametrize("activation", passes.ACTIVATIONS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["network", "shared inputs", "own inputs", "part of wider rows"])
def test_outputs_and_gradients_are_those_of_autograd(
    kind: str, sizes: tuple[int, ...], activation: str, norm: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, width, (*hidden, out) = 77, 7, sizes
    net: EnsembleMLP | MLP
    if kind == "network":
        net = MLP(width, hidden, out, activation=activation, layer_norm=norm, generator=draw)
    else:
        net = EnsembleMLP(
            3, width, hidden, out, activation=activation, layer_norm=norm, generator=draw
        )
    if norm:
        moved(net, draw)
    shape = (3, rows, width) if kind == "own inputs" else (rows, width)
    x = torch.randn(*shape, generator=draw) * 2
    if kind == "part of wider rows":
        x = torch.randn(rows, width + 4, generator=draw)[:, 2 : 2 + width]
    x = x.detach().requires_grad_()
    ours = compared(net, x, draw, 2e-4)
    with torch.no_grad():
        torch.testing.assert_close(net(x), ours, rtol=1e-5, atol=1e-6)


def test_more_rows_than_a_chunk_and_leading_dimensions() -> None:
    draw = torch.Generator().manual_seed(0)
    net = MLP(4, (33,), 2, generator=draw)
    x = torch.randn(3, 700, 4, generator=draw)
    with torch.no_grad():
        torch.testing.assert_close(net(x).double(), plain(net, x), rtol=1e-5, atol=1e-6)
        assert net(x[0, 0]).shape == (2,) and net(x[:, :0]).shape == (3, 0, 2)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "LayerNorm"])
@pytest.mark.parametrize("kind", ["network", "shared inputs", "own inputs"])
def test_gradients_are_summed_over_chunks(kind: str, norm: bool) -> None:
    """2,700 rows are four chunks of 512 and one of 652."""
    draw = torch.Generator().manual_seed(0)
    net: EnsembleMLP | MLP
    if kind == "network":
        net = MLP(4, (33, 20), 2, activation="silu", layer_norm=norm, generator=draw)
    else:
        net = EnsembleMLP(3, 4, (33, 20), 1, layer_norm=norm, generator=draw)
    if norm:
        moved(net, draw)
    shape = (3, 2700, 4) if kind == "own inputs" else (2700, 4)
    x = torch.randn(*shape, generator=draw).requires_grad_()
    compared(net, x, draw, 1e-3)


def test_a_member_alone_is_that_of_all() -> None:
    draw = torch.Generator().manual_seed(0)
    net = EnsembleMLP(4, 3, (20, 20), 5, activation="silu", layer_norm=True, generator=draw)
    moved(net, draw)
    x = torch.randn(30, 3, generator=draw)
    torch.testing.assert_close(net.member(x, 2), net(x)[2])
    torch.testing.assert_close(net.member(x, 2), net.batched(x)[2], rtol=1e-4, atol=1e-6)


def test_rows_that_are_too_large_for_layer_norm_are_no_numbers() -> None:
    net = EnsembleMLP(2, 3, (8,), 1, layer_norm=True)
    x = torch.tensor([[1.0, 2.0, 3.0], [1e30, -1e30, 2e30], [float("nan"), 0.0, 1.0]])
    with torch.no_grad():
        ours, theirs = net(x), net.batched(x)
    assert torch.equal(torch.isfinite(ours), torch.isfinite(theirs))
    assert torch.isfinite(ours).all(-1).all(0).tolist() == [True, False, False]


def test_other_kinds_keep_to_pytorch() -> None:
    net = MLP(3, (8,), 2, layer_norm=True).double()
    assert "Pass" not in net(torch.randn(5, 3, dtype=torch.float64)).grad_fn.name()


def test_values_at_the_edges_of_the_exponentials() -> None:
    """Activations of numbers from the smallest to the largest, and of what is none."""
    x = torch.cat([torch.logspace(-30, 30, 121), -torch.logspace(-30, 30, 121)])
    x = torch.cat([x, torch.tensor([0.0, float("nan")])])[:, None]
    # The error function of GELU is good to 1.5e-7 of the number itself.
    cases = (("tanh", torch.tanh, 1e-37), ("silu", F.silu, 1e-37), ("gelu", F.gelu, 4e-7))
    for activation, function, least in cases:
        net = EnsembleMLP(1, 1, (1,), 2, activation=activation)
        with torch.no_grad():
            for w, b in zip(net.weights, net.biases, strict=True):
                w.fill_(1.0), b.zero_()
            found = net(x)[0, :, 0]
        torch.testing.assert_close(found, function(x[:, 0]), rtol=2e-6, atol=least, equal_nan=True)


def test_chosen_members_are_those_members() -> None:
    draw = torch.Generator().manual_seed(0)
    net = EnsembleMLP(5, 7, (9, 6), 2, activation="leaky_relu", layer_norm=True, generator=draw)
    moved(net, draw)
    x, members = torch.randn(11, 7, generator=draw), torch.tensor([3, 0])
    assert passes.computes(x, net.weights, net.activation)
    torch.testing.assert_close(net.chosen(x, members), net.batched(x)[members])


@pytest.mark.parametrize("shape", [(5, 3), (5, 5), (2, 5, 4), (4,), (7, 2, 3)])
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """As PyTorch refuses them; the compiled pass would read beyond them."""
    x = torch.randn(*shape)
    for net in (MLP(4, (8, 8), 2), EnsembleMLP(3, 4, (8, 8), 2)):
        if shape == (4,) and isinstance(net, MLP):
            assert net(x).shape == (2,)
        elif shape == (2, 5, 4) and isinstance(net, MLP):
            assert net(x).shape == (2, 5, 2)
        else:
            with pytest.raises((RuntimeError, IndexError)):
                net(x)


def test_no_rows_have_no_gradient() -> None:
    for net in (MLP(4, (8,), 2), EnsembleMLP(3, 4, (8,), 2)):
        out = net(torch.randn(0, 4))
        out.sum().backward()
        assert out.numel() == 0
        assert all(p.grad is None or not p.grad.any() for p in net.parameters())
