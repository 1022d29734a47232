"""Recurrences and memory: the scan against a loop and scipy, gradients against autograd and finite
differences, a tape against single steps."""

import math

import numpy as np
import pytest
import torch
from scipy import signal, special, stats

from mbrl.networks.linear_scan import linear_scan
from mbrl.networks.recurrent import LRULayer, MemoryEncoder


def slow_scan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h, found = torch.zeros_like(b[0]), []
    for t in range(len(b)):
        h = a[t] * h + b[t]
        found.append(h)
    return torch.stack(found)


def draws(steps: int, *, resets: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(steps)
    a = torch.randn(steps, 3, dtype=torch.complex128, generator=generator) * 0.7
    b = torch.randn(steps, 3, dtype=torch.complex128, generator=generator)
    if resets:
        a[torch.rand(steps, generator=generator) < 0.2] = 0
    return a, b


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 16, 17, 100, 211, 5000])
@pytest.mark.parametrize("resets", [False, True])
def test_the_scan_is_the_loop(steps: int, resets: bool) -> None:
    a, b = draws(steps, resets=resets)
    torch.testing.assert_close(linear_scan(a, b), slow_scan(a, b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 5, 30])
def test_its_gradients_are_those_of_the_loop(steps: int) -> None:
    a, b = (t.requires_grad_() for t in draws(steps, resets=True))
    weight = torch.randn(steps, 3, dtype=torch.complex128)
    found = torch.autograd.grad((linear_scan(a, b) * weight).real.sum(), (a, b))
    expected = torch.autograd.grad((slow_scan(a, b) * weight).real.sum(), (a, b))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(linear_scan, (a, b))


@pytest.mark.parametrize("shape", [(1, 600), (3, 600), (1, 1)])
def test_wide_steps_and_coefficients_that_many_share(shape: tuple[int, int]) -> None:
    """Of b [40, 3, 600], walked step by step, and of a cut of it, in chunks."""
    generator = torch.Generator().manual_seed(1)
    a = 0.7 * torch.randn(40, *shape, dtype=torch.complex128, generator=generator)
    b = torch.randn(40, 3, 600, dtype=torch.complex128, generator=generator)
    weight = torch.randn(40, 3, 600, dtype=torch.complex128, generator=generator)
    for columns in (600, 8):
        cut = [t[..., : min(t.shape[-1], columns)].clone().requires_grad_() for t in (a, b)]
        found, expected = (scan(*cut) for scan in (linear_scan, slow_scan))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        losses = [(h * weight[..., :columns]).real.sum() for h in (found, expected)]
        gradients = [torch.autograd.grad(x, cut) for x in losses]
        for f, e in zip(*gradients, strict=True):
            torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)


def test_a_constant_coefficient_is_a_filter() -> None:
    """With one real coefficient the scan is scipy's recursive filter."""
    b = np.random.default_rng(0).normal(size=(300, 2))
    found = linear_scan(torch.full((300, 1), 0.9, dtype=torch.double), torch.from_numpy(b))
    np.testing.assert_allclose(found.numpy(), signal.lfilter([1.0], [1.0, -0.9], b, axis=0))


@pytest.mark.parametrize("kind", ["lru", "gru", "none"])
def test_a_tape_is_its_sequences_step_by_step(kind) -> None:
    """Three sequences on one tape; what comes before a beginning leaves no trace."""
    generator = torch.Generator().manual_seed(1)
    encoder = MemoryEncoder(4, 12, kind=kind, states=5, generator=generator).double()
    lengths = [6, 1, 10]
    parts = [torch.randn(n, 4, dtype=torch.double, generator=generator) for n in lengths]
    first = torch.zeros(sum(lengths), dtype=torch.bool)
    first[[0, 6, 7]] = True
    tape = encoder(torch.cat(parts), first)
    expected = []
    for part in parts:
        state = torch.zeros(1, encoder.state_size, dtype=torch.double)
        for x in part:
            h, state = encoder.step(x[None], state)
            expected.append(h)
    torch.testing.assert_close(tape, torch.cat(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["lru", "gru", "none"])
def test_tapes_side_by_side_are_as_one_by_one(kind) -> None:
    generator = torch.Generator().manual_seed(4)
    encoder = MemoryEncoder(4, 12, kind=kind, states=5, generator=generator).double()
    x = torch.randn(20, 3, 4, dtype=torch.double, generator=generator)
    first = torch.arange(20) % 9 == 0
    each = range(3)
    alone = torch.stack([encoder(x[:, i], first) for i in each], 1)
    torch.testing.assert_close(encoder(x, first), alone, rtol=1e-9, atol=1e-9)
    memory = torch.stack([encoder.memory(x[:, i], first) for i in each], 1)
    torch.testing.assert_close(encoder.memory(x, first), memory, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_linear_recurrent_unit_in_complex_numbers() -> None:
    """h_t = lambda h + gamma B u with lambda = exp(-exp(nu) + i exp(theta)); Re(C h) + D u; GELU,
    gate and residual: equations of the paper in numpy, a step after the other."""
    layer = LRULayer(6, 4, generator=torch.Generator().manual_seed(2)).double()
    x = torch.randn(9, 6, dtype=torch.double, generator=torch.Generator().manual_seed(3))
    first = torch.zeros(9, dtype=torch.bool)
    first[0] = True
    p = {name: value.numpy() for name, value in layer.state_dict().items()}
    mean, sd = x.numpy().mean(1, keepdims=True), x.numpy().std(1, keepdims=True)
    u = (x.numpy() - mean) / np.sqrt(sd**2 + 1e-5) * p["norm.weight"] + p["norm.bias"]
    decay = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    into = np.exp(p["scale"]) * (p["into_real"] + 1j * p["into_imag"])
    out = p["out_real"] + 1j * p["out_imag"]
    h, expected = np.zeros(4, dtype=complex), []
    for t in range(9):
        h = decay * h + u[t] @ into
        y = (h @ out).real + p["skip"] * u[t]
        y = y * stats.norm.cdf(y)
        gate = special.expit(y @ p["gate.weight"].T + p["gate.bias"])
        expected.append(x[t].numpy() + (y @ p["value.weight"].T + p["value.bias"]) * gate)
    np.testing.assert_allclose(layer(x, first).numpy(), expected, rtol=1e-9)


def test_memory_reaches_back_and_a_markov_encoder_does_not() -> None:
    generator = torch.Generator().manual_seed(2)
    first = torch.tensor([True] + [False] * 19)
    for kind, remembers in (("lru", True), ("gru", True), ("none", False)):
        encoder = MemoryEncoder(3, 8, kind=kind, states=4, generator=generator)
        x = torch.randn(20, 3, generator=generator, requires_grad=True)
        (gradient,) = torch.autograd.grad(encoder(x, first)[-1].sum(), x)
        assert bool(gradient[-4].abs().sum() > 0) == remembers


def test_moduli_start_uniform_in_area_and_stay_below_one() -> None:
    layer = LRULayer(4, 20_000, generator=torch.Generator().manual_seed(3))
    decay = layer.decay().detach()
    modulus, angle = decay.abs(), torch.angle(decay) % (2 * math.pi)
    assert modulus.max() <= 0.9 + 1e-5
    area = (modulus / 0.9).square().numpy()
    assert np.abs(np.sort(area) - np.linspace(0, 1, 20_000)).max() < 0.02
    assert np.abs(np.sort(angle.numpy()) - np.linspace(0, 6.28, 20_000)).max() < 0.1
    with torch.no_grad():
        layer.nu.add_(50.0).sub_(100.0)
    assert layer.decay().abs().max() <= 1.0
    torch.testing.assert_close(
        layer.scale.exp(), (1 - modulus.square()).sqrt(), rtol=1e-3, atol=1e-4
    )
