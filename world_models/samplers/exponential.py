"""Exponential integrators: the linear part of the probability-flow equation is solved exactly, the
rest by a polynomial through the last evaluations. DEIS and DPM-Solver++ are such methods."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from mbrl.config import Range
from world_models.samplers.base import Denoiser, Marching, Step, at

Prediction = Literal["noise", "data"]
Variable = Literal["rho", "lambda", "time"]
Start = Literal["runge_kutta", "lower_order"]
NODES = 32  # of the Gauss-Legendre rule
POWER = 7.0  # "time" is sigma^(1/7), in which EDM's levels are uniform


def variable(sigma: np.ndarray, name: Variable) -> np.ndarray:
    """What the polynomial is in: sigma itself (rho), log sigma (lambda), or sigma^(1/7) (time)."""
    if name == "rho":
        return sigma
    logs: np.ndarray = np.log(sigma) if name == "lambda" else sigma ** (1.0 / POWER)
    return logs


@lru_cache(maxsize=4096)
def weights(
    past: tuple[float, ...], then: float, prediction: Prediction, name: Variable
) -> tuple[float, ...]:
    """What each evaluation counts in the step from `past[0]` to `then`; `past` are the levels of
    the evaluations, the present one first.

    With noise n = (x - D) / sigma, x' = x + sum_j w_j n_j, w_j = integral of l_j over sigma; with
    data, x' = (sigma' / sigma) x + sum_j w_j D_j, w_j = sigma' times the integral of l_j / sigma^2
    downwards. l_j are Lagrange's polynomials in `variable`.
    """
    if then == 0:  # Only a step of first order is defined: x' = D.
        only = -past[0] if prediction == "noise" else 1.0
        return (only, *(0.0 for _ in past[1:]))
    points, share = np.polynomial.legendre.leggauss(NODES)
    # In log sigma both integrands are smooth however far the levels are apart.
    low, high = math.log(then), math.log(past[0])
    sigma = np.exp(low + (high - low) * 0.5 * (points + 1.0))
    share = share * 0.5 * (high - low)
    at_point, nodes = variable(sigma, name), variable(np.array(past), name)
    values = []
    for j, node in enumerate(nodes):
        others = np.delete(nodes, j)
        polynomial = np.prod([(at_point - o) / (node - o) for o in others], axis=0)
        if prediction == "noise":
            values.append(-float((share * polynomial * sigma).sum()))
        else:
            values.append(then * float((share * polynomial / sigma).sum()))
    return tuple(values)


def multistep(
    x: Tensor,
    past: Sequence[tuple[float, Tensor, Tensor]],
    then: float,
    prediction: Prediction,
    name: Variable,
) -> Tensor:
    """One step to `then`; `past` holds (level, x there, D there), the present first."""
    levels = tuple(level for level, _, _ in past)
    kept = 1.0 if prediction == "noise" else then / levels[0]
    result = kept * x
    for weight, (level, there, denoised) in zip(
        weights(levels, then, prediction, name), past, strict=True
    ):
        values = (there - denoised) / level if prediction == "noise" else denoised
        result = result + weight * values
    return result


def runge_kutta_step(
    denoise: Denoiser, x: Tensor, denoised: Tensor, now: float, then: float
) -> Tensor:
    """The classical fourth-order step on the noise as a function of sigma; `denoised` is D at x."""
    middle, h = 0.5 * (now + then), then - now

    def noise(x: Tensor, sigma: float) -> Tensor:
        return (x - denoise(x, at(x, sigma))) / sigma

    first = (x - denoised) / now
    second = noise(x + 0.5 * h * first, middle)
    third = noise(x + 0.5 * h * second, middle)
    fourth = noise(x + h * third, then)
    return x + h / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)


def _in_order(
    denoise: Denoiser, order: int, prediction: Prediction, name: Variable, start: Start
) -> Step:
    """The step of a multistep method. Until there are `order` evaluations, steps are of the order
    that is possible, or Runge and Kutta's."""
    past: deque[tuple[float, Tensor, Tensor]] = deque(maxlen=order)

    def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
        denoised = denoise(x, at(x, now))
        past.appendleft((now, x, denoised))
        if len(past) < order and start == "runge_kutta" and then > 0:
            return runge_kutta_step(denoise, x, denoised, now, then)
        return multistep(x, past, then, prediction, name)

    return step


def _evaluations(steps: int, order: int, start: Start) -> int:
    return steps + (3 * min(order - 1, steps - 1) if start == "runge_kutta" else 0)


@dataclass(frozen=True)
class DEIS(Marching):
    """Diffusion Exponential Integrator Sampler (Fast Sampling of Diffusion Models with Exponential
    Integrator, arXiv 2204.13902): the noise is extrapolated by a polynomial of degree `degree`
    through the last evaluations. Degree 0 is DDIM.

    It converges with order degree + 1 after `runge_kutta` starts (3 evaluations more for each of
    the first `degree` steps); after the paper's `lower_order` starts with order 2 at most.
    """

    degree: Annotated[int, Range(int, "[0, 3]")] = 3  # of the polynomial, 0 to 3
    variable: Variable = "rho"  # what it is a polynomial in
    start: Start = "lower_order"  # how the first steps are made

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        order, name = self.degree + 1, self.variable
        return _in_order(denoise, order, "noise", name, self.start)

    def evaluations(self, steps: int) -> int:
        return _evaluations(steps, self.degree + 1, self.start)


@dataclass(frozen=True)
class DPMSolverPP(Marching):
    """DPM-Solver++ (arXiv 2211.01095): the denoised data are extrapolated in log sigma.

    Order 2 is the paper's 2M (algorithm 2): D + (D - D before) / (2 r) with r the ratio of the log
    steps. Order 1 is DDIM; order 3 integrates the polynomial through three evaluations exactly,
    where the paper leaves it open (k-diffusion and diffusers count the second difference half, and
    so are of order 2). Orders as for `DEIS`: after `lower_order` starts 2 at most.
    """

    order: Annotated[int, Range(int, "[1, 3]")] = 2  # 1 to 3
    start: Start = "lower_order"  # how the first steps are made

    def stepper(
        self, denoise: Denoiser, sigmas: Sequence[float], generator: torch.Generator
    ) -> Step:
        if self.order != 2:
            return _in_order(denoise, self.order, "data", "lambda", self.start)
        last: tuple[float, Tensor] | None = None

        def step(x: Tensor, n: int, now: float, then: float) -> Tensor:
            nonlocal last
            denoised = denoise(x, at(x, now))
            before_now, last = last, (now, denoised)
            if then == 0:
                return denoised
            if before_now is None:
                if self.start == "runge_kutta":
                    return runge_kutta_step(denoise, x, denoised, now, then)
                return torch.lerp(denoised, x, then / now)
            ratio = math.log(before_now[0] / now) / math.log(now / then)
            guess = denoised + (denoised - before_now[1]) / (2.0 * ratio)
            return torch.lerp(guess, x, then / now)

        return step

    def evaluations(self, steps: int) -> int:
        return _evaluations(steps, self.order, self.start)
