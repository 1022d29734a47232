"""Errors of the temporal difference as draws of a generalised Gaussian of scale 1 whose shape is
predicted (Generalized Gaussian Temporal Difference Error for Uncertainty-aware Reinforcement
Learning, arXiv 2408.02295): the critics' loss and its two weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.shapes import check_shapes

SMALLEST_ERROR = 1e-3  # below it |error| is held: the slope of |error|^beta has no bound at 0
SHAPES = (0.2, 4.0)  # bounds of beta


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


def inverse_variance_weights(variance: Tensor, least_share: float, steps: int = 50) -> Tensor:
    """1 / (v_i + xi), scaled to a mean of 1, [B], from variances [B] of the targets, with the
    smallest xi >= 0, by bisection, at which the effective number of rows (sum w)^2 / sum w^2 is at
    least `least_share` of all.

    Sample Efficient Deep Reinforcement Learning via Uncertainty Estimation (arXiv 2201.01666).
    """
    check_shapes(variance=(variance, "B"))
    high = 1e4 * variance.max() + 1e-12
    low = torch.zeros_like(high)
    for _ in range(steps):
        middle = (low + high) / 2
        weight = 1 / (variance + middle)
        enough = weight.sum().square() >= least_share * len(weight) * weight.square().sum()
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    weight = 1 / (variance + high)
    return weight / weight.mean()


def loss(error: Tensor, beta: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean of risk weight times `weight` (None: 1) times negative log-likelihood, all [B]."""
    check_shapes(error=(error, "B"), beta=(beta, "B"), weight=(weight, "B"))
    terms = risk_weights(beta) * negative_log_likelihood(error, beta)
    return (terms if weight is None else weight * terms).mean()
