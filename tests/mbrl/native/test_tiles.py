"""Products of operands rounded to bfloat16, by AMX and by AVX-512, against the same in double
precision."""

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mbrl.native import passes
from mbrl.native.build import library
from mbrl.networks import MLP, EnsembleMLP
from mbrl.precision import has_tiles, matmul_precision

pytestmark = pytest.mark.skipif(
    not has_tiles(), reason="no products of bfloat16 here, or no C++ compiler"
)


@pytest.fixture(autouse=True, params=[1, 2], ids=["vectors", "AMX"])
def _medium(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each way to multiply bfloat16 that the processor has."""
    loaded = library()
    assert loaded is not None
    if request.param > loaded.has_tiles():
        pytest.skip("no processor with AMX")
    with matmul_precision("medium") as taken:
        assert taken
        loaded.use_tiles(ctypes.c_int64(request.param))
        yield


def rounded(x: Tensor) -> Tensor:
    return x.detach().bfloat16().double()


def reference(
    weights: list[Tensor], biases: list[Tensor], x: Tensor, g: Tensor, transposed: bool
) -> tuple[Tensor, list[Tensor]]:
    """Outputs of a network with weights [in, out], and gradients of the inputs, the weights and the
    biases by the cotangent `g`; operands are rounded where the second one is at least 16 by 16. Of
    a network whose weights lie `transposed` that is the input in the product of a gradient."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        if min(b.shape) >= 16:
            a, b = rounded(a), rounded(b)
        return a.double() @ b.double()

    inputs, h = [], x
    for index, (w, b) in enumerate(zip(weights, biases, strict=True)):
        inputs.append(h)
        h = product(h, w) + b
        if index < len(weights) - 1:
            h = h.clamp(min=0).float()
    out, d = h, g
    of_weights: list[Tensor] = []
    of_biases: list[Tensor] = []
    for index in reversed(range(len(weights))):
        h = inputs[index]
        sideways = transposed and d.shape[1] > 1  # a single output's is a sum over rows
        of_weights.insert(0, product(d.T, h).T if sideways else product(h.T, d))
        of_biases.insert(0, d.double().sum(0))
        d = product(d, weights[index].T)
        if index:
            d = (d * (inputs[index] > 0)).float()
    return out, [d, *of_weights, *of_biases]


def nearly_equal(ours: Tensor, right: Tensor) -> None:
    """Single-precision sums whose last bits differ now and then round to another bfloat16 in the
    next product; rounding itself, or its lack, is an error of 3e-3."""
    difference = ours.detach().double() - right
    assert difference.norm() <= 5e-4 * right.norm()


# Sizes around the edges of tiles (16, 32), of two of them and of the parts of 512 rows and 1,024 of
# depth; sums over a batch are the depth of a weight's gradient.
@pytest.mark.parametrize("rows", [1, 15, 16, 33, 61, 512, 530, 1_030, 2_100])
@pytest.mark.parametrize(
    "sizes",
    [(16, 16, 16), (17, 40, 33), (31, 64, 47, 18), (4, 50, 1), (1_100, 40, 18)],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True], ids=["ensemble", "network"])
def test_passes_are_those_of_rounded_operands(
    rows: int, sizes: tuple[int, ...], transposed: bool
) -> None:
    draw = torch.Generator().manual_seed(rows)
    width, *hidden, out = sizes
    net: MLP | EnsembleMLP
    if transposed:
        net = MLP(width, hidden, out, generator=draw)
        weights = [layer.weight.T for layer in net.layers]
        biases = [layer.bias for layer in net.layers]
    else:
        net = EnsembleMLP(1, width, hidden, out, generator=draw)
        weights, biases = [w[0] for w in net.weights], [b[0] for b in net.biases]
    x = torch.randn(rows, width, generator=draw).requires_grad_()
    g = torch.randn(rows, out, generator=draw)
    right, gradients = reference(weights, biases, x, g, transposed)
    ours = net(x)
    parameters = [layer.weight for layer in net.layers] if transposed else list(net.weights)
    parameters += [layer.bias for layer in net.layers] if transposed else list(net.biases)
    wanted = [x, *parameters]
    mine = torch.autograd.grad(ours, wanted, g.view(ours.shape))
    nearly_equal(ours.view(right.shape), right)
    for index, (a, b) in enumerate(zip(mine, gradients, strict=True)):
        a = a.T if transposed and 1 <= index <= len(weights) else a
        nearly_equal(a.reshape(b.shape), b)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    net = EnsembleMLP(2, 20, (64, 64), 17)
    x = torch.randn(700, 20)
    with torch.no_grad():
        whole = net(x)
        for begin, end in [(0, 1), (3, 20), (500, 700)]:
            assert torch.equal(net(x[begin:end]), whole[:, begin:end])


def test_what_is_not_a_number_stays() -> None:
    net = MLP(32, (32,), 32)
    x = torch.randn(40, 32)
    x[3, 5], x[7, 2] = torch.nan, torch.inf
    with torch.no_grad():
        out = net(x)
    assert not out[3].isfinite().any()
    assert out[[0, 2, 4, 39]].isfinite().all()


def test_the_highest_precision_is_as_it_was_before() -> None:
    net, x = EnsembleMLP(2, 20, (64, 64), 17), torch.randn(40, 20)
    with torch.no_grad():
        medium = net(x)
        with matmul_precision("highest"):
            highest = net(x)
        loaded = library()
        assert loaded is not None
        loaded.use_tiles(ctypes.c_int64(0))
        assert torch.equal(net(x), highest)
    assert not torch.equal(medium, highest)
    torch.testing.assert_close(medium, highest, rtol=0.05, atol=0.02)


def test_a_pass_rounds_its_operands() -> None:
    """A product whose operands bfloat16 holds is exact, one whose operands it does not is not."""
    x = torch.full((16, 16), 1.0 + 2.0**-9)
    w = torch.eye(16)[None]
    out = passes.forward(x, [w, w], [torch.zeros(1, 1, 16)] * 2, "relu")
    assert torch.equal(out[0], torch.ones(16, 16))
