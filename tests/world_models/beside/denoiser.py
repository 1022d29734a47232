"""The denoiser of windows that comparisons with others' code use, in float64: three windows of five
tokens of eight numbers, EDM's preconditioning of the network tanh(x W) + c b with
W, b = layers(90, 8, 8).
"""

import torch
from torch import Tensor

from tests.algorithms.beside.inputs import layers, normal
from world_models.trajectory_diffusion import precondition

SHAPE = (3, 5, 8)
WEIGHT, BIAS = (torch.as_tensor(part) for part in layers(90, 8, 8)[0])


def draws(seed: int, *shape: int) -> Tensor:
    return torch.as_tensor(normal(seed, *shape))


def network(x: Tensor, c: Tensor) -> Tensor:
    return torch.tanh(x @ WEIGHT) + c[:, None, None] * BIAS


def denoise(x: Tensor, sigma: Tensor) -> Tensor:
    return precondition(network, x, sigma)
