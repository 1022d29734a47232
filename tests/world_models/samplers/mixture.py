"""A world in closed form with two modes: what a search or a tilt should find is known."""

import torch
from torch import Tensor

CENTRES = torch.tensor([[-1.0, 0.0], [1.0, 0.5]]).double()
SHARES = torch.tensor([0.7, 0.3]).double()
DEVIATION = 0.2


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    """E[x_0 | x] of 0.7 N(c_0, 0.04) + 0.3 N(c_1, 0.04), x [B, 2]."""
    variance = (DEVIATION**2 + sigma.square())[:, None]
    away = (x[:, None] - CENTRES).square().sum(-1)
    share = torch.softmax(SHARES.log() - 0.5 * away / variance, 1)
    pulled = DEVIATION**2 / variance
    return share @ CENTRES * (1 - pulled) + pulled * x


def on_the_right(x: Tensor) -> Tensor:
    """Whether x belongs to the rarer mode: a reward of 1 there, 0 elsewhere."""
    return (x[:, 0] > 0).double()
