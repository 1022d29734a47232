"""Networks with weights of few bits, to look for samples that are worth computing in full: Sol-RL,
"FP4 Explore, BF16 Train: Diffusion Reinforcement Learning via Efficient Rollout Scaling"."""

import copy

import torch
from torch import Tensor, nn


def rounded(weight: Tensor, bits: int) -> Tensor:
    """The weights of every output (rows of a linear layer, filters of a convolution) rounded to
    2^bits - 1 evenly spaced values between plus and minus their largest."""
    top = 2.0 ** (bits - 1) - 1.0
    largest = weight.flatten(1).abs().amax(1).clamp_min(1e-12)
    scale = (largest / top).view(-1, *[1] * (weight.ndim - 1))
    return (weight / scale).round().clamp(-top, top) * scale


@torch.no_grad()
def quantised(network: nn.Module, bits: int) -> nn.Module:
    """A copy whose matrices have values of so many bits; biases and scales stay. It stands in for
    kernels of that precision: what it computes is theirs, how fast it is, is not."""
    small = copy.deepcopy(network)
    for parameter in small.parameters():
        if parameter.ndim >= 2:
            parameter.copy_(rounded(parameter, bits))
    return small.requires_grad_(False)


def extremes(reward: Tensor, best: int, worst: int) -> Tensor:
    """[P, best + worst]: places in every group of the highest and the lowest rewards [P, G]."""
    order = reward.argsort(1, descending=True)
    return torch.cat([order[:, :best], order[:, order.shape[1] - worst :]], 1)
