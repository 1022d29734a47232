"""Ordinary least squares with a trace of ridge: what of a step is linear in state and action."""

import torch
from torch import Tensor

RIDGE = 1e-8  # times the number of rows; inputs have deviation 1


def linear_regression(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [D + 1, K], the last row the intercept, of `y` [N, K] on `x` [N, D], and the standard
    deviation [K] of what they leave; computed in double precision, returned in that of `x`.

    The ridge only settles inputs that repeat each other; the weights are otherwise those of least
    squares.
    """
    inputs = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    goals = y.double()
    gram = inputs.T @ inputs
    gram.diagonal().add_(RIDGE * len(x))
    weights = torch.linalg.solve(gram, inputs.T @ goals)
    rest = (goals - inputs @ weights).std(0, correction=0)
    return weights.to(x.dtype), rest.to(x.dtype)
