"""Fine-tuning of a chain of few steps by the discrepancy between its samples and the data."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from world_models.samplers.base import Denoiser, Sampler, normal

Kernel = Callable[[Tensor], Tensor]  # squared distances to similarities


def radial_kernel(*widths: float) -> Kernel:
    """Mean over widths w of exp(-d^2 / (2 w^2))."""

    def similarity(squared: Tensor) -> Tensor:
        return torch.stack([torch.exp(-0.5 * squared / w**2) for w in widths]).mean(0)

    return similarity


def cubic_similarity(x: Tensor, y: Tensor) -> Tensor:
    """(x . y / D + 1)^3 [N, M] of rows of D numbers, the kernel of KID."""
    return (x @ y.T / x.shape[1] + 1.0) ** 3


def mmd_squared(x: Tensor, y: Tensor, kernel: Kernel | Literal["cubic"]) -> Tensor:
    """The unbiased estimate of the squared maximum mean discrepancy of samples x [N, ...] and
    y [M, ...] (A Kernel Two-Sample Test, Gretton et al., JMLR 2012, eq. 3); it can be below 0."""
    x, y = x.flatten(1), y.flatten(1)

    def similar(a: Tensor, b: Tensor) -> Tensor:
        if kernel == "cubic":
            return cubic_similarity(a, b)
        squared = (a[:, None] - b[None]).square().sum(-1)
        return kernel(squared)

    n, m = len(x), len(y)
    if min(n, m) < 2:
        raise ConfigError(
            f"there are {n} and {m} samples, two of each are needed for a discrepancy"
        )
    within_x, within_y = similar(x, x), similar(y, y)
    own = (within_x.sum() - within_x.diagonal().sum()) / (n * (n - 1))
    theirs = (within_y.sum() - within_y.diagonal().sum()) / (m * (m - 1))
    return own + theirs - 2.0 * similar(x, y).mean()


def finetune_by_mmd(
    denoise: Denoiser,
    parameters: Sequence[nn.Parameter],
    sampler: Sampler,
    sigmas: Sequence[float],
    data: Tensor,
    kernel: Kernel | Literal["cubic"],
    generator: torch.Generator,
    *,
    updates: int = 500,
    batch_size: int = 256,
    learning_rate: float = 1e-4,
) -> list[float]:
    """Change `parameters` of `denoise` so that a whole chain of few steps gives samples like `data`
    [N, ...]: gradients of the discrepancy run back through all steps (Fast Inference in Denoising
    Diffusion Models via MMD Finetuning, arXiv 2301.07969). Returns the discrepancy of every update.

    Afterwards the network is a denoiser for this sampler and these levels alone.
    """
    optimiser = Adam(parameters, lr=learning_rate)
    losses, device = [], generator.device
    for _ in range(updates):
        rows = torch.randint(len(data), (batch_size,), generator=generator, device=device)
        some = data[rows.to(data.device)]
        x = sigmas[0] * normal(some, generator)
        loss = mmd_squared(sampler(denoise, x, sigmas, generator), some, kernel)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()
