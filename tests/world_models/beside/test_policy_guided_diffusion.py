"""Policy-guided diffusion against the authors' code: EmptyJackson/policy-guided-diffusion at
9da606c, `train_step` and `sample_trajectory` (diffusion/edm.py), in float64. With churn, the Euler
part of its step starts from the x with the new noise, as ours does.

Windows and network are those of `denoiser`. Loss: windows normal(93, 3, 5, 8), logarithms of
levels -1.2 + 1.2 normal(91, 3), noise normal(92, ...). Samples: six steps from 20 to 0.1, first
noise normal(94, ...), churn 2 below 15 with noise normal(95, 6, ...). Tokens have mean
0.3 normal(96, 8), deviation exp(0.3 normal(97, 8)); the policy is of mean tanh(s P), P of
layers(98, 4, 2), and deviation 0.5; guidance weight 0.8.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.algorithms.beside.inputs import SPEC, digest, layers
from tests.world_models.beside.denoiser import BIAS, SHAPE, WEIGHT, denoise, draws
from world_models.guidance import PolicyGuidance
from world_models.samplers import Sampler, edm_levels
from world_models.samplers.one_step import Churn, Euler, Heun
from world_models.trajectory_diffusion import denoising_loss
from world_models.windows import Tokens

LEVELS = edm_levels(6, sigma_max=20.0, sigma_min=0.1)


def tokens() -> Tokens:
    made = Tokens(SPEC).double()
    made.normaliser.mean.copy_(0.3 * draws(96, 8))
    made.normaliser.std.copy_((0.3 * draws(97, 8)).exp())
    return made


def policy(deterministic: bool) -> Any:
    weight = torch.as_tensor(layers(98, 4, 2)[0][0])
    if deterministic:
        return SimpleNamespace(unit=lambda obs: torch.tanh(obs @ weight))

    def log_prob(obs: Tensor, action: Tensor) -> Tensor:
        density = torch.distributions.Normal(torch.tanh(obs @ weight), 0.5)
        result: Tensor = density.log_prob(action).sum(-1)
        return result

    return SimpleNamespace(log_prob=log_prob)


def test_loss_and_gradients() -> None:
    weight, bias = WEIGHT.clone().requires_grad_(), BIAS.clone().requires_grad_()
    sigma = (-1.2 + 1.2 * draws(91, 3)).exp()
    loss = denoising_loss(
        lambda x, c: torch.tanh(x @ weight) + c[:, None, None] * bias,
        draws(93, *SHAPE), sigma, draws(92, *SHAPE),
    )  # fmt: skip
    gradients = torch.autograd.grad(loss, (weight, bias))
    got = [loss.item(), digest([part.numpy() for part in gradients])]
    assert got == pytest.approx([1.528211499, -0.3201919469], rel=1e-8)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Heun(), -1.389760961),
        (Euler(), -0.8232618593),
        (Churn(amount=2.0, high=15.0), -5.059244614),
    ],
)
def test_samples(sampler: Sampler, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first of the six levels lies above 15, so its noise is not used.
    noise = iter(draws(95, 6, *SHAPE)[1:])
    monkeypatch.setattr(torch, "randn", lambda *shape, **kinds: next(noise))
    x = sampler(denoise, LEVELS[0] * draws(94, *SHAPE), LEVELS, torch.Generator())
    assert digest([x.numpy()]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "deterministic", "expected"),
    [
        ({"normalise": True}, False, -0.8157600468),
        ({"normalise": False}, False, -0.91730558),
        ({"normalise": False, "denoised": True}, False, 5.627093454),
        ({"normalise": False}, True, -1.171715108),
    ],
)
def test_guidance(settings: dict[str, bool], deterministic: bool, expected: float) -> None:
    guidance = PolicyGuidance(policy(deterministic), weight=0.8, **settings)  # type: ignore[arg-type]
    guided, before = guidance.attach(tokens(), denoise)
    start = LEVELS[0] * draws(94, *SHAPE)
    with torch.no_grad():
        x = Heun()(guided, start, LEVELS, torch.Generator(), before=before)
    assert digest([x.numpy()]) == pytest.approx(expected, rel=1e-6)
