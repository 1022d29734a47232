"""Errors of the temporal difference as draws of a generalised Gaussian of scale 1 whose shape is
predicted (Generalized Gaussian Temporal Difference Error for Uncertainty-aware Reinforcement
Learning, arXiv 2408.02295): the critics' loss, its two weights, and how heavy tails are."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.shapes import check_shapes

SMALLEST_ERROR = 1e-3  # below it |error| is held: the slope of |error|^beta has no bound at 0
SHAPES = (0.2, 4.0)  # bounds of beta
PARTS, ROUNDS = 32, 10  # of the search for xi, to 1 / PARTS^ROUNDS of where it begins


def shape(output: Tensor) -> Tensor:
    """beta > 0, any shape: a network's output through a softplus, clipped to `SHAPES`. 1 is a
    Laplace distribution, 2 a normal one; tails are heavier below."""
    return F.softplus(output).clamp(*SHAPES)


def negative_log_likelihood(error: Tensor, beta: Tensor) -> Tensor:
    """|error|^beta - log beta + log 2 + log Gamma(1 / beta), both of one shape: the density
    beta / (2 Gamma(1 / beta)) exp(-|error|^beta)."""
    size = error.abs().clamp_min(SMALLEST_ERROR)
    return size.pow(beta) - beta.log() + math.log(2.0) + torch.lgamma(1 / beta)


def risk_weights(beta: Tensor) -> Tensor:
    """beta over its mean [B], without a gradient: rows with heavier tails count less."""
    return beta.detach() / beta.detach().mean()


def inverse_variance_weights(variance: Tensor, least_share: float) -> Tensor:
    """1 / (v_i + xi), scaled to a mean of 1, [B], from variances [B] of the targets, with the
    smallest xi >= 0 at which the effective number of rows (sum w)^2 / sum w^2 is at least
    `least_share` of all.

    Sample Efficient Deep Reinforcement Learning via Uncertainty Estimation (arXiv 2201.01666).
    """
    check_shapes(variance=(variance, "B"))
    high = 1e4 * variance.max()[None] + 1e-12
    low = torch.zeros_like(high)
    # Where bisection halves, each round looks at all ends of `PARTS` equal parts of what is left.
    ends = torch.arange(1, PARTS + 1, device=variance.device) / PARTS
    for _ in range(ROUNDS):
        xi = low + (high - low) * ends
        weight = 1 / (variance + xi[:, None])
        enough = weight.sum(1).square() >= least_share * len(variance) * weight.square().sum(1)
        enough[-1] = True  # known, or nothing is enough
        first = enough.int().argmax()[None]
        low, high = torch.cat([low, xi])[first], xi[first]
    weight = 1 / (variance + high)
    return weight / weight.mean()


def shape_kurtosis(beta: Tensor) -> Tensor:
    """Gamma(5 / beta) Gamma(1 / beta) / Gamma(3 / beta)^2 - 3, any shape: the excess kurtosis of a
    generalised Gaussian, 0 at 2 (normal), 3 at 1 (Laplace), 22.2 at 0.5."""
    logs = torch.lgamma(5 / beta) + torch.lgamma(1 / beta) - 2 * torch.lgamma(3 / beta)
    return logs.exp() - 3


def sample_kurtosis(values: Tensor, dim: int) -> Tensor:
    """The excess kurtosis of `values` along `dim`, from four values on corrected so that its mean
    is 0 for a normal distribution; where all are equal, as if they were normal. Two values have -2
    and three -1.5, whatever they are."""
    n = values.shape[dim]
    centred = values - values.mean(dim, keepdim=True)
    deviation = centred.square().mean(dim, keepdim=True).sqrt()
    kurtosis = (centred / deviation).pow(4).mean(dim) - 3
    if n > 3:
        kurtosis = ((n + 1) * kurtosis + 6) * (n - 1) / ((n - 2) * (n - 3))
    return torch.where(deviation.squeeze(dim) > 0, kurtosis, 0.0)


def error_variance(error: Tensor) -> Tensor:
    """S^2 / ((N + 1) / (N - 1) + kappa / N) [B] of errors [N, B] over N critics, S^2 their unbiased
    variance and kappa their excess kurtosis: the multiple of S^2 with the least mean squared error.

    A Note on an Estimator for the Variance That Utilizes the Kurtosis (The American Statistician
    44, 1990). The authors' code divides the biased variance instead, by a factor common to all rows
    less, which is lost in weights.
    """
    check_shapes(error=(error, "N B"))
    n = error.shape[0]
    return error.var(0, correction=1) / ((n + 1) / (n - 1) + sample_kurtosis(error, 0) / n)


def released_loss(
    error: Tensor, beta: Tensor, weight: Tensor | None, uncertainty_weight: float
) -> Tensor:
    """The loss of the authors' code (ait-lab/ggtde, losses/mle.py and weighted.py) from `error` and
    `beta` [N, B] and weights [B] of mean 1 (None: without the second term):

    1/2 mean_b sum_n [b_n (beta_n |e_n| - log beta_n + log Gamma(1 / beta_n)) + u w / B |e_n|],
    b_n = beta_n / sum_n beta_n, through which the gradient goes.
    """
    check_shapes(error=(error, "N B"), beta=(beta, "N B"), weight=(weight, "B"))
    size = error.abs()
    terms = beta / beta.sum(0) * (beta * size - beta.log() + torch.lgamma(1 / beta))
    if weight is not None:
        terms = terms + uncertainty_weight * weight / len(weight) * size
    return 0.5 * terms.sum(0).mean()


def loss(error: Tensor, beta: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean of risk weight times `weight` (None: 1) times negative log-likelihood, all [B]."""
    check_shapes(error=(error, "B"), beta=(beta, "B"), weight=(weight, "B"))
    terms = risk_weights(beta) * negative_log_likelihood(error, beta)
    return (terms if weight is None else weight * terms).mean()
