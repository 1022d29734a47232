"""Samplers against others' code: crowsonkb/k-diffusion at 4601bf0 (k_diffusion/sampling.py), in
float64, and diffusers 0.42.1, `DEISMultistepScheduler` and `DPMSolverMultistepScheduler`, whose
levels are float32.

Windows and denoiser are those of `denoiser`; first noise normal(94, ...), further noise
normal(95, 7, ...). k-diffusion: its Karras levels, seven from 20 to 0.1 and then 0, which multistep
methods leave out, since ours is of first order there. Its `lms` is DEIS in sigma. Its third order
counts the second difference half: the number is of the whole, with which the polynomial is
integrated exactly. diffusers: six steps along `VARIANCE_PRESERVING`, the levels of
its linear schedule in seven steps.
"""

import pytest
import torch

from tests.algorithms.beside.inputs import digest
from tests.world_models.beside.denoiser import SHAPE, denoise, draws
from world_models.samplers import DDIM, DEIS, DPMSolverPP, Sampler, edm_levels
from world_models.samplers.one_step import Churn, Euler, Heun

KARRAS = edm_levels(7, sigma_max=20.0, sigma_min=0.1)
VARIANCE_PRESERVING = [
    157.4072723388672, 41.14719772338867, 13.298707962036133, 5.171376705169678,
    2.352529764175415, 1.149412989616394, 0.4957002103328705,
]  # fmt: skip


def sampled(sampler: Sampler, levels: list[float]) -> float:
    x = sampler(denoise, levels[0] * draws(94, *SHAPE), levels, torch.Generator())
    return digest([x.numpy()])


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Euler(), -0.8784095557),
        (Heun(), -1.467994612),
        (DPMSolverPP(), -1.001471409),
        (DPMSolverPP(order=3), -1.76771929),
    ],
)
def test_without_noise(sampler: Sampler, expected: float) -> None:
    assert sampled(sampler, KARRAS) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("sampler", "skipped", "expected"),
    [
        (Churn(amount=2.0, high=15.0), 1, -5.771487493),  # its first level is above 15
        (DDIM(eta=1.0), 0, -2.10092787),
        (DDIM(eta=0.6), 0, -0.2644101315),
    ],
)
def test_with_noise(
    sampler: Sampler, skipped: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = iter(draws(95, 7, *SHAPE)[skipped:])
    monkeypatch.setattr(torch, "randn", lambda *shape, **kinds: next(noise))
    assert sampled(sampler, KARRAS) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("degree", "expected"),
    [(0, -0.7036187083), (1, -0.717189738), (2, -0.7422042052), (3, -0.7554397357)],
)
def test_multistep_in_sigma(degree: int, expected: float) -> None:
    assert sampled(DEIS(degree=degree), KARRAS[:-1]) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (DEIS(degree=0, variable="lambda"), -0.279295726),
        (DEIS(degree=1, variable="lambda"), -0.1521585393),
        (DEIS(degree=2, variable="lambda"), -0.167806231),
        (DPMSolverPP(order=2), -0.08571952694),
    ],
)
def test_variance_preserving(sampler: Sampler, expected: float) -> None:
    assert sampled(sampler, VARIANCE_PRESERVING) == pytest.approx(expected, rel=1e-6)
