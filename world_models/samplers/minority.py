"""Minority guidance: samples of a wanted rarity, by a classifier that knows noise and how unlike
its neighbours a sample is."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mbrl.config import Count, CountOrZero, Finite, NonNegative, Positive, Settings, Several, Widths
from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from mbrl.networks import MLP
from world_models.samplers.base import Denoiser, at, normal


@torch.no_grad()
def minority_score(
    denoise: Denoiser, x: Tensor, sigma: float, generator: torch.Generator, repeats: int = 8
) -> Tensor:
    """E |x - D(x + sigma n; sigma)| [B], mean over `repeats` draws of the noise: large where the
    denoiser pulls a clean sample x [B, ...] towards something more common (Don't Play Favorites:
    Minority Guidance for Diffusion Models, arXiv 2301.12334, with the Euclidean distance)."""
    if repeats < 1 or sigma <= 0:
        raise ConfigError(f"repeats is {repeats} (1 or more), sigma {sigma} (above 0)")
    total = x.new_zeros(len(x))
    for _ in range(repeats):
        back = denoise(x + sigma * normal(x, generator), at(x, sigma))
        total += (x - back).flatten(1).norm(dim=1)
    return total / repeats


@dataclass(frozen=True)
class LevelConfig(Settings):
    """Settings of the classifier of minority levels."""

    levels: Several = 10  # L: quantile classes of the score, 0 the most common
    hidden: Widths = (128, 128)  # widths
    updates: Count = 2000  # gradient steps
    batch_size: Count = 256  # samples an update
    learning_rate: Positive = 1e-3  # Adam
    noise_mean: Finite = -0.5  # of log sigma in training
    noise_std: NonNegative = 1.5  # and its deviation


class LevelClassifier:
    """p(level | x at noise sigma) of noisy samples."""

    def __init__(self, network: MLP, scale: float, levels: int) -> None:
        self.network, self.scale, self.levels = network, scale, levels

    def logits(self, x: Tensor, sigma: Tensor) -> Tensor:
        """[B, levels] for x [B, ...] at sigma [B]."""
        inside = x.flatten(1) / (self.scale**2 + sigma.square()).sqrt()[:, None]
        return self.network(torch.cat([inside, sigma.log()[:, None] / 4.0], 1))


def fit_levels(
    x: Tensor, score: Tensor, config: LevelConfig, generator: torch.Generator
) -> LevelClassifier:
    """Cut `score` [N] of clean samples `x` [N, ...] into quantile levels and learn to tell them
    from noisy samples."""
    ranks = score.argsort().argsort()
    level = (ranks * config.levels) // len(score)
    flat, device = x.flatten(1), generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    initial = torch.Generator().manual_seed(seed)  # weights are drawn on the CPU
    network = MLP(flat.shape[1] + 1, config.hidden, config.levels, generator=initial).to(x)
    classifier = LevelClassifier(network, float(x.std(correction=0)), config.levels)
    optimiser = Adam(network.parameters(), lr=config.learning_rate)
    for _ in range(config.updates):
        rows = torch.randint(len(x), (config.batch_size,), generator=generator, device=device)
        rows = rows.to(x.device)
        draw = normal(flat[rows, 0], generator)
        sigma = (config.noise_mean + config.noise_std * draw).exp()
        noisy = flat[rows] + sigma[:, None] * normal(flat[rows], generator)
        loss = F.cross_entropy(classifier.logits(noisy, sigma), level[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    network.requires_grad_(False)
    return classifier


@dataclass(frozen=True)
class MinorityGuidance(Settings):
    """Turns a denoiser of p(x) into one of p(x) p(level | x)^weight, up to a constant: with weight
    1 and an exact classifier of p(x | level), for the classifier knows noise (arXiv 2301.12334)."""

    classifier: LevelClassifier
    level: CountOrZero  # wanted, 0 the most common
    weight: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level >= self.classifier.levels:
            raise ConfigError(
                f"level is {self.level}, it must lie in 0..{self.classifier.levels - 1}"
            )

    def attach(self, denoise: Denoiser) -> Denoiser:
        """The guided denoiser, for any sampler (`TrajectoryDiffusion.windows` takes it as
        `denoise`)."""

        def guided(x: Tensor, sigma: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                chosen = self.classifier.logits(leaf, sigma).log_softmax(1)[:, self.level]
                (slope,) = torch.autograd.grad(chosen.sum(), leaf)
            factor = self.weight * sigma.square().view(-1, *[1] * (x.ndim - 1))
            return denoise(x, sigma) + factor * slope

        return guided
