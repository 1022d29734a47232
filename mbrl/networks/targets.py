"""Target networks: a frozen copy and its exponential average."""

import copy
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def target_copy(module: M) -> M:
    """A copy whose parameters take no gradient."""
    target = copy.deepcopy(module)
    target.requires_grad_(False)
    return target


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """target <- (1 - rate) target + rate source, for every parameter."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)
