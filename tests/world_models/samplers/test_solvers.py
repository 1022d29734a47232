"""Solvers of the probability flow and stochastic samplers against a Gaussian world."""

import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate
from torch import Tensor

from mbrl.errors import ConfigError
from tests.world_models.samplers import gaussian
from world_models.samplers import (
    DDIM,
    DEIS,
    SAMPLERS,
    Choice,
    Churn,
    DPMSolverPP,
    Euler,
    Heun,
    Sampler,
    TimeShift,
    edm_levels,
    one_step,
    uniform_plan,
)
from world_models.samplers.exponential import multistep, weights

NONE = torch.Generator()
NAMED = SAMPLERS | {"time_shift": TimeShift}


def smooth_levels(steps: int, high: float = 10.0, low: float = 0.3) -> list[float]:
    """Levels that refine to one smooth curve, without the jump to 0, where orders show."""
    return [(high**0.5 + n / steps * (low**0.5 - high**0.5)) ** 2 for n in range(steps + 1)]


def starts(count: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 10.0 * torch.randn(count, 3, dtype=torch.double, generator=generator)


ORDERS: list[tuple[Sampler, int]] = [
    (Euler(), 1),
    (DDIM(), 1),
    (Heun(), 2),
    (DPMSolverPP(order=1), 1),
    (DPMSolverPP(order=2), 2),
    (DPMSolverPP(order=3, start="runge_kutta"), 3),
    *((DEIS(d, v, "runge_kutta"), d + 1) for d in range(4) for v in ("rho", "lambda", "time")),
]


@pytest.mark.parametrize(("sampler", "order"), ORDERS, ids=str)
def test_a_solver_converges_to_the_exact_flow_with_its_order(sampler: Sampler, order: int) -> None:
    x = starts()
    exact = gaussian.flow(x, 10.0, 0.3)
    errors = [
        float((sampler(gaussian.denoise, x, smooth_levels(n), NONE) - exact).norm())
        for n in (80, 160)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.35)


def test_lower_order_starts_hold_a_solver_back() -> None:
    x = starts()
    exact = gaussian.flow(x, 10.0, 0.3)

    def error(sampler: Sampler, steps: int) -> float:
        found = sampler(gaussian.denoise, x, smooth_levels(steps), NONE)
        return float((found - exact).norm())

    plain, careful = DEIS(3, "lambda"), DEIS(3, "lambda", "runge_kutta")
    assert error(plain, 160) > 3 * error(careful, 160)
    assert math.log2(error(plain, 80) / error(plain, 160)) < 3.0


@pytest.mark.parametrize(
    "sampler", [Euler(), Heun(), DEIS(), DEIS(3, "lambda"), DPMSolverPP(), DPMSolverPP(3)], ids=str
)
def test_deterministic_samplers_reach_the_laws_mean_and_covariance(sampler: Sampler) -> None:
    mean, covariance = gaussian.pushed(sampler, edm_levels(256))
    assert torch.allclose(mean, gaussian.MEAN, atol=1e-3)
    tolerance = 0.03 if isinstance(sampler, Euler) else 1e-3
    assert torch.allclose(covariance, gaussian.COVARIANCE, atol=tolerance)


@pytest.mark.parametrize(
    ("sampler", "steps"),
    [(Churn(noise=1.0), 128), (Churn(20.0, noise=1.0), 64), (DDIM(1.0), 512), (DDIM(0.5), 256)],
    ids=str,
)
def test_stochastic_samplers_reach_the_laws_mean_and_covariance(
    sampler: Sampler, steps: int
) -> None:
    count, generator = 8_000, torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, dtype=torch.double, generator=generator)
    levels = edm_levels(steps)
    found = sampler(gaussian.denoise, levels[0] * x, levels, generator)
    deviation = gaussian.COVARIANCE.diagonal().sqrt()
    assert ((found.mean(0) - gaussian.MEAN).abs() < 4.5 * deviation / count**0.5 + 0.01).all()
    spread = torch.outer(deviation, deviation) * (2 / count) ** 0.5
    assert ((found.T.cov() - gaussian.COVARIANCE).abs() < 4.5 * spread + 0.01).all()


def test_deis_of_degree_0_is_ddim() -> None:
    x, levels = starts(), edm_levels(20)
    expected = DDIM()(gaussian.denoise, x, levels, NONE)
    for name in ("rho", "lambda", "time"):
        found = DEIS(0, name)(gaussian.denoise, x, levels, NONE)
        assert torch.allclose(found, expected, atol=1e-10)
    found = DPMSolverPP(1)(gaussian.denoise, x, levels, NONE)
    assert torch.allclose(found, expected, atol=1e-10)


def test_ddim_is_the_published_update_of_a_variance_preserving_process() -> None:
    """Denoising Diffusion Implicit Models, eq. 12 and 16, with its own symbols."""
    levels, eta = [3.0, 1.2, 0.4], 0.7
    x = starts()
    generator = torch.Generator().manual_seed(5)
    found = DDIM(eta)(gaussian.denoise, x, levels, generator)
    generator = torch.Generator().manual_seed(5)
    for now, then in pairwise(levels):
        bar, bar_next = 1 / (1 + now**2), 1 / (1 + then**2)
        x_t = bar**0.5 * x
        x_0 = gaussian.denoise(x, x.new_full((len(x),), now))
        noise = (x_t - bar**0.5 * x_0) / (1 - bar) ** 0.5
        s = eta * ((1 - bar_next) / (1 - bar)) ** 0.5 * (1 - bar / bar_next) ** 0.5
        fresh = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        x_t = bar_next**0.5 * x_0 + (1 - bar_next - s**2) ** 0.5 * noise + s * fresh
        x = x_t / bar_next**0.5
    assert torch.allclose(found, x, atol=1e-10)


def test_dpm_solver_2m_is_the_published_update() -> None:
    """DPM-Solver++, algorithm 2, in a variance-preserving process: alpha, sigma, lambda."""
    levels = [3.0, 1.4, 0.9, 0.2]
    x = starts()
    found = DPMSolverPP(2)(gaussian.denoise, x, levels, NONE)
    alpha = [1 / (1 + s**2) ** 0.5 for s in levels]
    noise = [s * a for s, a in zip(levels, alpha, strict=True)]
    lam = [math.log(a / s) for a, s in zip(alpha, noise, strict=True)]
    data = [gaussian.denoise(x, x.new_full((len(x),), levels[0]))]
    y = noise[1] / noise[0] * (alpha[0] * x) - alpha[1] * math.expm1(lam[0] - lam[1]) * data[0]
    for i in (2, 3):
        data.append(gaussian.denoise(y / alpha[i - 1], x.new_full((len(x),), levels[i - 1])))
        h, h_before = lam[i] - lam[i - 1], lam[i - 1] - lam[i - 2]
        r = h_before / h
        d = (1 + 1 / (2 * r)) * data[-1] - 1 / (2 * r) * data[-2]
        y = noise[i] / noise[i - 1] * y - alpha[i] * math.expm1(-h) * d
    assert torch.allclose(found, y / alpha[-1], atol=1e-10)


@pytest.mark.parametrize("prediction", ["noise", "data"])
@pytest.mark.parametrize("name", ["rho", "lambda", "time"])
def test_weights_are_the_integrals_of_lagranges_polynomials(prediction: str, name: str) -> None:
    past, then = (2.0, 3.5, 5.0), 1.1
    variable = {"rho": lambda s: s, "lambda": math.log, "time": lambda s: s ** (1 / 7)}[name]

    def polynomial(j: int, sigma: float) -> float:
        value = 1.0
        for i in range(3):
            if i != j:
                value *= variable(sigma) - variable(past[i])
                value /= variable(past[j]) - variable(past[i])
        return value

    found = weights(past, then, prediction, name)
    for j in range(3):
        if prediction == "noise":
            expected = integrate.quad(lambda s, j=j: polynomial(j, s), past[0], then)[0]
        else:
            expected = (
                then * integrate.quad(lambda s, j=j: polynomial(j, s) / s**2, then, past[0])[0]
            )
        assert found[j] == pytest.approx(expected, rel=1e-9)


def test_a_multistep_is_exact_where_the_noise_is_a_polynomial() -> None:
    """Noise a + b sigma + c sigma^2 along the path: x moves by its integral."""
    a, b, c = (torch.tensor([[v, -2 * v]]).double() for v in (0.3, -0.8, 0.5))

    def noise(s: float) -> Tensor:
        return a + b * s + c * s**2

    def x(s: float) -> Tensor:
        return a * s + b * s**2 / 2 + c * s**3 / 3

    past = [(s, x(s), x(s) - s * noise(s)) for s in (1.0, 1.7, 3.0)]
    assert torch.allclose(multistep(x(1.0), past, 0.4, "noise", "rho"), x(0.4), atol=1e-12)


def test_a_uniform_plan_is_deis() -> None:
    x, levels = starts(), edm_levels(12)
    plan = uniform_plan(12, Choice(3, "noise", "time"))
    expected = DEIS(2, "time")(gaussian.denoise, x, levels, NONE)
    assert torch.equal(plan(gaussian.denoise, x, levels, NONE), expected)
    with pytest.raises(ConfigError, match="the plan has 12 steps, the levels have 5"):
        plan(gaussian.denoise, x, edm_levels(5), NONE)


def test_edm_levels_are_those_of_the_paper() -> None:
    levels = edm_levels(18)
    assert levels[0] == pytest.approx(80.0) and levels[-2] == pytest.approx(0.002)
    assert levels[1] == pytest.approx(57.586, abs=1e-3)  # as NVlabs/edm's 18 steps have it
    assert levels[-1] == 0.0 and len(levels) == 19


@pytest.mark.parametrize("name", NAMED)
def test_evaluations_are_counted(name: str) -> None:
    calls = 0

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        assert sigma.shape == (len(x),)
        return gaussian.denoise(x, sigma)

    sampler = NAMED[name]()
    sampler(denoise, starts(), edm_levels(9), torch.Generator().manual_seed(0))
    assert calls == sampler.evaluations(9)


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_evaluations_with_runge_kutta_starts(degree: int) -> None:
    calls = 0

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return gaussian.denoise(x, sigma)

    sampler = DEIS(degree, start="runge_kutta")
    for steps in (1, 3, 9):
        calls = 0
        sampler(denoise, starts(), edm_levels(steps), NONE)
        assert calls == sampler.evaluations(steps)


@pytest.mark.parametrize("name", NAMED)
def test_what_comes_before_a_step_is_called_with_its_number(name: str) -> None:
    seen = []

    def before(x: Tensor, n: int, sigmas: object) -> Tensor:
        seen.append(n)
        return x * 0.0

    levels = edm_levels(4)
    x = NAMED[name]()(gaussian.denoise, starts(), levels, torch.Generator(), before=before)
    assert seen == [0, 1, 2, 3]
    last = gaussian.denoise(torch.zeros(1, 3).double(), torch.tensor([levels[3]]).double())
    if name != "churn":  # which may add noise after it
        assert torch.allclose(x, last.expand_as(x), atol=1e-6)


@pytest.mark.parametrize(
    "levels", [[1.0], [1.0, 2.0], [1.0, 1.0], [2.0, 0.0, -1.0], [math.nan, 0.0]], ids=str
)
@pytest.mark.parametrize("name", NAMED)
def test_levels_must_fall(name: str, levels: list[float]) -> None:
    with pytest.raises(ConfigError, match="noise levels"):
        NAMED[name]()(gaussian.denoise, starts(), levels, NONE)


@pytest.mark.parametrize(
    "build",
    [
        lambda: DDIM(1.1),
        lambda: DEIS(4),
        lambda: DPMSolverPP(0),
        lambda: Churn(-1.0),
        lambda: Churn(low=2.0, high=1.0),
        lambda: TimeShift(window=-1),
        lambda: TimeShift(eta=2.0),
        lambda: Choice(5),
        lambda: Choice(prediction="eps"),  # type: ignore[arg-type]
        lambda: Choice(variable="sigma"),  # type: ignore[arg-type]
        lambda: DEIS(variable="rhoo"),  # type: ignore[arg-type]
        lambda: DEIS(start="rk"),  # type: ignore[arg-type]
        lambda: DPMSolverPP(start="heun"),  # type: ignore[arg-type]
        lambda: edm_levels(0),
        lambda: edm_levels(5, sigma_min=90.0),
    ],
)
def test_impossible_settings(build: object) -> None:
    with pytest.raises(ConfigError):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("sampler", "order"), [(DDIM(1.0), 1), (DDIM(0.5), 1), (Churn(20.0, noise=1.0), 2)], ids=str
)
def test_a_stochastic_sampler_converges_to_the_law_with_its_order(
    sampler: Sampler, order: int, monkeypatch
) -> None:
    """Order of the covariance in the steps, without Monte-Carlo error: every step is an affine map
    of x and of the noise it draws, so both maps are read off and the covariance pushed on."""
    exact = gaussian.COVARIANCE + 0.3**2 * torch.eye(3).double()
    errors = []
    for steps in (160, 320):
        levels = smooth_levels(steps)
        step = sampler.stepper(gaussian.denoise, levels, NONE)  # type: ignore[attr-defined]
        covariance = gaussian.COVARIANCE + 10.0**2 * torch.eye(3).double()
        for n, (now, then) in enumerate(pairwise(levels)):
            units = torch.cat([torch.zeros(4, 3), torch.eye(3)]).double()  # no x, no noise; noise
            monkeypatch.setattr(one_step, "normal", lambda x, generator, units=units: units)
            x = torch.cat([torch.zeros(1, 3), torch.eye(3), torch.zeros(3, 3)]).double()
            out = step(x, n, now, then)
            matrix, noise = (out[1:4] - out[0]).T, (out[4:] - out[0]).T
            covariance = matrix @ covariance @ matrix.T + noise @ noise.T
        errors.append(float((covariance - exact).norm()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


def test_churn_raises_levels_as_the_paper_has_it() -> None:
    churn = Churn(amount=40.0, low=0.05, high=50.0)
    assert churn.raised(1.0, 256) == pytest.approx(1 + 40 / 256)
    assert churn.raised(1.0, 18) == pytest.approx(2**0.5)  # 40 / 18 is above the limit
    assert churn.raised(60.0, 256) == 60.0 and churn.raised(0.01, 256) == 0.01
    x, levels = starts(), edm_levels(10)
    assert torch.equal(
        Churn(0.0)(gaussian.denoise, x, levels, NONE), Heun()(gaussian.denoise, x, levels, NONE)
    )
