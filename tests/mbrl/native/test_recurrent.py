"""Compiled encoders with memory against PyTorch's own in double precision."""

import copy

import pytest
import torch
from torch import Tensor

from mbrl.native import recurrent
from mbrl.native.build import library
from mbrl.networks.recurrent import MemoryEncoder, NormedLayer, normed_network

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
# Positions, inputs, width, states, units: widths that fill vectors and that do not.
SIZES = [(40, 5, 16, 8, 2), (97, 7, 20, 5, 1), (130, 12, 64, 64, 2), (1, 3, 33, 17, 3)]


def made(sizes: tuple[int, ...]) -> tuple[MemoryEncoder, Tensor, Tensor]:
    """An encoder whose parameters are all away from their special values, a tape with two numbers
    more than it reads, and where sequences begin."""
    steps, size, width, states, units = sizes
    draw = torch.Generator().manual_seed(steps)
    encoder = MemoryEncoder(size, width, layers=units, states=states, generator=draw)
    with torch.no_grad():
        for p in encoder.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=draw))
    first = torch.rand(steps, generator=draw) < 0.1
    return encoder, torch.randn(steps, size + 2, generator=draw), first


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_features_memory_and_all_gradients(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are about as far from those in double precision as PyTorch's own, which states that
    decay over many positions make worse."""
    encoder, x, first = made(sizes)
    double = copy.deepcopy(encoder).double()
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    assert recurrent.computes(ours, first, encoder.in_order())
    assert not recurrent.computes(theirs, first, double.in_order())
    got, expected = encoder(ours, first), double(theirs, first)
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-5)
    cotangent = torch.randn(got.shape, generator=torch.Generator().manual_seed(1))
    inputs = [(ours, theirs), *zip(encoder.parameters(), double.parameters(), strict=True)]
    a = torch.autograd.grad(got, [i for i, _ in inputs], cotangent)
    b = torch.autograd.grad(expected, [j for _, j in inputs], cotangent.double())
    with monkeypatch.context() as patched:
        patched.setattr(recurrent, "computes", lambda *_: False)
        plain = torch.autograd.grad(encoder(ours, first), [i for i, _ in inputs], cotangent)
    scales = [float(exact.abs().max()) + 1e-3 for exact in b]

    def off(found: tuple[Tensor, ...]) -> float:
        apart = zip(found, b, scales, strict=True)
        return max(float((one - exact).abs().max()) / scale for one, exact, scale in apart)

    assert 0 < off(plain) < 1e-4 and off(a) < 3 * off(plain) + 2e-6
    with torch.no_grad():
        memory = encoder.memory(x, first)
        torch.testing.assert_close(encoder(x, first), got.detach(), rtol=0, atol=0)
        torch.testing.assert_close(
            memory, double.memory(x.double(), first).float(), rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(encoder.memory(x, first), memory, rtol=1e-5, atol=1e-5)  # in PyTorch


def test_it_goes_on_a_step_at_a_time_from_its_memory() -> None:
    encoder, x, first = made(SIZES[0])
    first[25:] = False
    with torch.no_grad():
        features, memory = encoder(x, first), encoder.memory(x, first)
        got, after = encoder.step(x[31:32], memory[30:31])
    torch.testing.assert_close(got[0], features[31], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after[0], memory[31], rtol=1e-5, atol=1e-5)


def test_a_sequence_does_not_see_the_one_before() -> None:
    encoder, x, first = made(SIZES[1])
    first[50] = True
    other = torch.cat([torch.zeros_like(x[:50]), x[50:]])
    with torch.no_grad():
        assert torch.equal(encoder(x, first)[50:], encoder(other, first)[50:])


def test_tapes_side_by_side_and_other_kinds_stay_with_pytorch() -> None:
    encoder, x, first = made(SIZES[0])
    both = torch.stack([x, 2 * x], 1)
    assert not recurrent.computes(both, first, encoder.in_order())
    torch.testing.assert_close(encoder(both, first)[:, 0], encoder(x, first), rtol=1e-5, atol=1e-5)
    for kind in ("gru", "none"):
        assert MemoryEncoder(3, 8, kind=kind, layers=1).in_order() == []


def test_blocks_and_a_last_layer_are_one_pass() -> None:
    draw = torch.Generator().manual_seed(0)
    last = torch.nn.Linear(9, 3)
    layers = torch.nn.Sequential(NormedLayer(6, 9, draw), NormedLayer(9, 9, draw), last)
    x = torch.randn(21, 6, generator=draw)
    torch.testing.assert_close(normed_network(layers, x), layers(x), rtol=1e-5, atol=1e-6)
    mine = torch.autograd.grad(normed_network(layers, x).sum(), [*layers.parameters()])
    theirs = torch.autograd.grad(layers(x).sum(), [*layers.parameters()])
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_tapes_that_do_not_fit_are_refused() -> None:
    encoder, x, first = made(SIZES[0])
    for wrong in ((x[:, :-3], first), (x, first[:-1])):
        with pytest.raises((RuntimeError, IndexError)):
            encoder(*wrong)
