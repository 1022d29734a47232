"""The generalised Gaussian's likelihood and kurtosis against scipy, its moments and maximum
likelihood, and the weights of its loss by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from algorithms.learners import generalised_gaussian as gg

D = torch.float64


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, 4.0])
def test_density_is_scipys_and_integrates_to_one(beta: float) -> None:
    def density(x: float) -> float:
        at, shape = torch.tensor(x, dtype=D), torch.tensor(beta, dtype=D)
        return math.exp(-float(gg.negative_log_likelihood(at, shape)))

    for x in (-2.0, 0.01, 0.7, 5.0):
        assert density(x) == pytest.approx(stats.gennorm.pdf(x, beta), rel=1e-9)
    total, _ = integrate.quad(density, 0, 400, limit=400, points=[0.01, 1.0, 10.0])
    assert 2 * total == pytest.approx(1.0, abs=2e-3)


def test_closed_forms_at_laplace_and_normal() -> None:
    e = torch.tensor([-1.5, 0.2, 3.0], dtype=D)
    one, two = torch.ones(3, dtype=D), torch.full((3,), 2.0, dtype=D)
    assert torch.allclose(gg.negative_log_likelihood(e, one), e.abs() + math.log(2))
    expected = e.square() + 0.5 * math.log(math.pi)
    assert torch.allclose(gg.negative_log_likelihood(e, two), expected)


@pytest.mark.parametrize(("draws", "beta"), [("laplace", 1.0), ("norm", 2.0)])
def test_maximum_likelihood_recovers_the_shape(draws: str, beta: float) -> None:
    """Of 100,000 draws with the scale that the density has."""
    scale = 1.0 if draws == "laplace" else math.sqrt(0.5)
    rng = np.random.default_rng(0)
    e = torch.tensor(getattr(stats, draws).rvs(scale=scale, size=100_000, random_state=rng))
    grid = torch.linspace(0.5, 3.5, 301, dtype=D)
    losses = [float(gg.negative_log_likelihood(e, b).mean()) for b in grid]
    assert float(grid[int(np.argmin(losses))]) == pytest.approx(beta, abs=0.05)


def test_gradient_by_finite_differences_and_at_zero() -> None:
    e = torch.tensor([-1.2, 0.4, 0.02], dtype=D, requires_grad=True)
    beta = torch.tensor([0.6, 1.3, 3.0], dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(gg.negative_log_likelihood, (e, beta))
    zero = torch.zeros(1, dtype=D, requires_grad=True)
    shape = torch.full((1,), 0.2, dtype=D, requires_grad=True)
    gradients = torch.autograd.grad(gg.negative_log_likelihood(zero, shape).sum(), (zero, shape))
    assert all(torch.isfinite(g).all() for g in gradients)


def test_inverse_variance_weights() -> None:
    """Equal variances give 1; otherwise the least xi that keeps half of the rows effective, here
    found on a grid."""
    assert torch.allclose(gg.inverse_variance_weights(torch.full((8,), 3.0), 0.5), torch.ones(8))
    assert torch.allclose(gg.inverse_variance_weights(torch.zeros(8), 0.5), torch.ones(8))
    v = torch.tensor([1e-6, 1.0, 2.0, 5.0, 9.0, 0.5], dtype=D)
    got = gg.inverse_variance_weights(v, 0.5)
    assert float(got.mean()) == pytest.approx(1.0)
    effective = float(got.sum() ** 2 / got.square().sum())
    assert effective == pytest.approx(3.0, abs=1e-3)
    for xi in np.linspace(0, 2, 20_001):
        w = 1 / (v.numpy() + xi)
        if np.isfinite(w).all() and w.sum() ** 2 / (w**2).sum() >= 3:
            break
    assert got.numpy() == pytest.approx(w / w.mean(), abs=2e-3)
    mild = torch.tensor([1.0, 1.1, 1.2], dtype=D)  # enough are effective with xi = 0
    expected = (1 / mild) / (1 / mild).mean()
    assert torch.allclose(gg.inverse_variance_weights(mild, 0.5), expected, atol=1e-6)


@pytest.mark.parametrize("beta", [0.2, 0.5, 1.0, 2.0, 4.0])
def test_kurtosis_of_a_shape_is_scipys(beta: float) -> None:
    expected = float(stats.gennorm.stats(beta, moments="k"))
    got = gg.shape_kurtosis(torch.tensor([beta, beta], dtype=D))
    assert got.tolist() == pytest.approx([expected, expected], rel=1e-9, abs=1e-9)
    known = {1.0: 3.0, 2.0: 0.0, 0.5: 22.2}
    assert beta not in known or float(got[0]) == pytest.approx(known[beta], abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 11])
def test_kurtosis_of_a_sample_is_scipys(n: int) -> None:
    values = np.random.default_rng(n).laplace(size=(n, 6)) * [1e-6, 1.0, 3.0, 1e4, 0.2, 1.0]
    got = gg.sample_kurtosis(torch.tensor(values), 0)
    expected = stats.kurtosis(values, axis=0, bias=n <= 3)
    assert got.numpy() == pytest.approx(expected, rel=1e-9)
    assert gg.sample_kurtosis(torch.tensor(values.T), 1).numpy() == pytest.approx(expected)
    if n < 4:
        assert got.numpy() == pytest.approx(-2.0 if n == 2 else -1.5)
    assert gg.sample_kurtosis(torch.full((n, 2), 7.0), 0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_variance_of_errors_against_a_loop(n: int) -> None:
    """The sum of squares over (n + 1) + kappa (n - 1) / n, as the note has it; and weights as the
    authors' code makes them, from the biased variance."""
    rng = np.random.default_rng(n)
    errors = rng.standard_t(3, size=(n, 40)) * rng.uniform(0.5, 2.0, 40)
    theirs = []
    got = gg.error_variance(torch.tensor(errors)).numpy()
    for b in range(40):
        row = errors[:, b]
        kappa = stats.kurtosis(row, bias=n <= 3)
        squares = sum((e - row.mean()) ** 2 for e in row)
        assert got[b] == pytest.approx(squares / ((n + 1) + kappa * (n - 1) / n))
        theirs.append(np.var(row) / (kappa / n + (n + 1) / (n - 1)))
    low, high = 0.0, 1e3
    for _ in range(200):  # the least xi with 20 effective rows
        xi = (low + high) / 2
        w = 1 / (np.array(theirs) + xi)
        low, high = (low, xi) if w.sum() ** 2 / (w**2).sum() >= 20 else (xi, high)
    weights = gg.inverse_variance_weights(torch.tensor(got), 0.5).numpy()
    assert weights == pytest.approx(w / w.mean(), rel=1e-3)


def test_loss_by_hand() -> None:
    e = torch.tensor([0.5, -2.0], dtype=D)
    beta = torch.tensor([1.0, 2.0], dtype=D, requires_grad=True)
    terms = [0.5 + math.log(2), 4 + 0.5 * math.log(math.pi)]
    risk = [1 / 1.5, 2 / 1.5]
    expected = (risk[0] * terms[0] * 0.4 + risk[1] * terms[1] * 1.6) / 2
    assert float(gg.loss(e, beta, torch.tensor([0.4, 1.6], dtype=D)).detach()) == pytest.approx(
        expected
    )
    assert not gg.risk_weights(beta).requires_grad
    assert gg.shape(torch.tensor([-20.0, 0.0, 90.0])).tolist() == pytest.approx(
        [0.2, math.log(2), 4.0]
    )
    with pytest.raises(ValueError, match="shapes do not fit together"):
        gg.loss(e, beta[:, None])
