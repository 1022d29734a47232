"""How much an ensemble disagrees about a step: every measure the papers use, from the members'
Gaussian predictions.

All take `mean` and `variance` [E, B, D] (next-observation changes and reward, in the model's
target units) and return [B], at least 0, larger where the model knows less.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mbrl.errors import unknown_name
from mbrl.shapes import check_shapes
from mbrl.types import Transitions
from world_models.protocol import WorldModel

Measure = Callable[[Tensor, Tensor], Tensor]
CHUNK = 10_000  # rows of data whose disagreement is computed at a time


def max_aleatoric(mean: Tensor, variance: Tensor) -> Tensor:
    """max_e ||sigma_e||_2. MOPO (arXiv 2005.13239), section 5."""
    check_shapes(mean=(mean, "E B D"), variance=(variance, "E B D"))
    return variance.sum(-1).sqrt().max(0).values


def ensemble_variance(mean: Tensor, variance: Tensor) -> Tensor:
    """Euclidean norm of the mixture's per-dimension variance, mean_e(sigma_e^2 + mu_e^2) - mu*^2.
    Revisiting Design Choices in Offline Model-Based RL (arXiv 2110.04135), section 4."""
    check_shapes(mean=(mean, "E B D"), variance=(variance, "E B D"))
    norm: Tensor = _mixture_variance(mean, variance).norm(dim=-1)
    return norm


def ensemble_std(mean: Tensor, variance: Tensor) -> Tensor:
    """Euclidean norm of the mixture's per-dimension standard deviation (arXiv 2110.04135)."""
    check_shapes(mean=(mean, "E B D"), variance=(variance, "E B D"))
    return _mixture_variance(mean, variance).sum(-1).sqrt()


def max_pairwise_difference(mean: Tensor, variance: Tensor) -> Tensor:
    """max_{i,j} ||mu_i - mu_j||_2. MOReL (arXiv 2005.05951), eq. 2."""
    check_shapes(mean=(mean, "E B D"), variance=(variance, "E B D"))
    widest = mean.new_zeros(mean.shape[1])
    for i in range(mean.shape[0] - 1):
        gaps = (mean[i + 1 :] - mean[i]).square().sum(-1).max(0).values
        widest = torch.maximum(widest, gaps)
    return widest.sqrt()


def leave_one_out_kl(mean: Tensor, variance: Tensor) -> Tensor:
    """Mean over members i of KL(N_i || Gaussian of the others' mixture).

    The one-versus-rest measure of Trust the Model When It Is Confident (arXiv 2010.04893), which
    takes the KL for one random i; the mean over i is that measure's expectation.
    """
    check_shapes(mean=(mean, "E B D"), variance=(variance, "E B D"))
    e = mean.shape[0]
    if e < 2:
        return mean.new_zeros(mean.shape[1])
    mean = mean - mean.mean(0)  # far from 0 a difference of squares has no digits
    total, total_square = mean.sum(0), (variance + mean.square()).sum(0)
    rest_mean = (total - mean) / (e - 1)
    rest_variance = (total_square - variance - mean.square()) / (e - 1) - rest_mean.square()
    rest_variance = rest_variance.clamp_min(1e-12)
    kl = 0.5 * (
        rest_variance.log()
        - variance.log()
        + (variance + (mean - rest_mean).square()) / rest_variance
        - 1.0
    )
    return kl.sum(-1).mean(0)


def epistemic_mean(mean: Tensor, variance: Tensor) -> Tensor:
    """sqrt(mean_d Var_e mu_e). NEUBAY (arXiv 2512.04341)."""
    check_shapes(mean=(mean, "E B D"), variance=(variance, "E B D"))
    return mean.var(0, correction=0).mean(-1).sqrt()


def _mixture_variance(mean: Tensor, variance: Tensor) -> Tensor:
    """mean_e sigma_e^2 + Var_e mu_e, which does not cancel as mean(mu^2) - mean(mu)^2 does."""
    return variance.mean(0) + mean.var(0, correction=0)


MEASURES: dict[str, Measure] = {
    "max_aleatoric": max_aleatoric,
    "ensemble_std": ensemble_std,
    "ensemble_variance": ensemble_variance,
    "max_pairwise_difference": max_pairwise_difference,
    "leave_one_out_kl": leave_one_out_kl,
    "epistemic_mean": epistemic_mean,
}


def measure(name: str) -> Measure:
    """The measure called `name`; `ConfigError` with the nearest names if there is none."""
    if name not in MEASURES:
        raise unknown_name("disagreement measure", name, MEASURES)
    return MEASURES[name]


def data_disagreement(model: WorldModel, data: Transitions, name: str) -> Tensor:
    """The members' disagreement [N] by measure `name` at all rows of `data`, which lie on the
    model's device."""
    chunks = zip(data.obs.split(CHUNK), data.action.split(CHUNK), strict=True)
    return torch.cat([model.disagreement(obs, action, name) for obs, action in chunks])
