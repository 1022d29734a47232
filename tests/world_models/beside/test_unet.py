"""The U-Net of windows against the authors' code: EmptyJackson/policy-guided-diffusion at 9da606c,
`Encoder` and `Decoder` (models/diffusion.py), in float64 with flax's 1e-6 in our group
normalisations. They get the noise embedding normal(700, 3, 8), ours what its SiLU makes of it.

Windows normal(701, 3, L, 8) of lengths that the three levels halve evenly, eight features. Encoder
from seed 500 and decoder from 600 on have a draw for each leaf in the order biases and kernels of
convolutions, of noise layers, biases and scales of normalisations, layer by layer: kernels over
sqrt(fan in), biases times 0.2, scales 1 + 0.2 of it.
"""

from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.algorithms.beside.inputs import array, digest, normal
from world_models.denoisers import Convolution, TemporalUNet


@torch.no_grad()
def fill(parts: list[Convolution], seed: int, last: nn.Conv1d | None = None) -> None:
    draw = iter(range(seed, seed + 100))

    def put(module: nn.Module, kernel: str = "weight") -> None:
        bias, weight = cast(Any, module).bias, getattr(module, kernel)
        bias.copy_(torch.as_tensor(0.2 * normal(next(draw), *bias.shape)))
        x = normal(next(draw), *weight.permute(*range(weight.ndim)[::-1]).shape)
        x = 1 + 0.2 * x if weight.ndim == 1 else x / np.sqrt(np.prod(x.shape[:-1]))
        weight.copy_(torch.as_tensor(x.T.copy()))

    for part in parts:
        put(part.conv)
    if last is not None:
        put(last)
    for part in parts:
        if part.noise is not None:
            put(part.noise)
    for part in parts:
        put(part.norm)
        part.norm.eps = 1e-6


@pytest.mark.parametrize(("length", "expected"), [(8, 3.684025361), (12, -17.64274527)])
def test_unet(length: int, expected: float) -> None:
    made = TemporalUNet(8, 8, 3, torch.Generator()).double()
    made.embedding = nn.Identity()  # type: ignore[assignment]
    down, up = (
        [part for stage in stages for part in cast(Any, stage)] for stages in (made.down, made.up)
    )
    fill(down, 500)
    fill(up, 600, made.out)
    embedded = F.silu(torch.as_tensor(normal(700, 3, 8)))
    got = made(torch.as_tensor(normal(701, 3, length, 8)), embedded)
    assert digest([array(got)]) == pytest.approx(expected, rel=1e-8)
