"""Behaviour cloning by a generative model: a flow (as the behaviour policy of FQL, arXiv
2502.02538) or a diffusion (as Diffusion Policy, arXiv 2303.04137, with single actions).

Differences: of a diffusion, levels and preconditioning are EDM's and a sample follows the
probability flow, where the authors of diffusion policies take DDPM's steps with fresh noise;
weights are not averaged.
"""

from dataclasses import dataclass

import torch
from torch import Generator, nn

from algorithms.learners.generative import Drawn, GenerativeConfig, GenerativePolicy, drawn
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.networks import adam, descend
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class GenerativeBCConfig(GenerativeConfig):
    """Settings of cloning by a flow or a diffusion; the discount is the buffer's alone."""

    normalise_obs: bool = True  # standardise observations with the data's statistics


class GenerativeCloning:
    """A generative policy and its fit."""

    def __init__(
        self, spec: Spec, config: GenerativeBCConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        policy = GenerativePolicy(spec, config.path, config.hidden, generator=generator)
        self.policy = policy.to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy}
        self.optimisers = {"policy": adam(self.policy.parameters(), config.learning_rate)}

    def draw(self, batch: Batch, generator: Generator) -> Drawn:
        """The batch with noise and a level for each row."""
        return drawn(batch, self.config.path, generator)

    def update(self, batch: Drawn, count: int = 0) -> Metrics:
        loss = self.policy.loss(batch)
        descend(self.optimisers["policy"], loss)
        return {"actor/bc": loss.detach()}


class GenerativeBC(Agent[Drawn]):
    """Behaviour cloning by a flow or a diffusion.

    Formula:

        flow         L = mean (v(s, x_t, t) - (a - x_0))^2, x_t = (1 - t) x_0 + t a
                     x_0 ~ N(0, 1), t uniform in [0, 1]
                     acting: x <- x + v(s, x, k / K) / K for k = 0, ..., K - 1
        diffusion    L = mean (1 + 1 / sigma^2) (D(s, a + sigma n, sigma) - a)^2, n ~ N(0, 1)
                     acting: from sigma_max n along dx / dsigma = (x - D(s, x, sigma)) / sigma

    When not to use it: where logged actions at a state lie around one: `bc` is then as good with
    one pass of a network an action, not ten. As every clone it ends near the level of the data.
    """

    version = 1
    config: GenerativeBCConfig

    def build(self, generator: Generator) -> tuple[GenerativeCloning, LoggedRows]:
        c = self.config
        learner = GenerativeCloning(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
