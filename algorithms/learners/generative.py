"""Policies that are generative models of the action at an observation: a flow along straight paths,
or a diffusion. Both lead noise to an action in a fixed number of steps, so an action is a function
of observation and noise. The noise of the greedy action is drawn with the weights and kept."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Generator, Tensor, nn

from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Finite, NonNegative, Positive, Settings, Widths
from mbrl.networks import MLP, ActionScale, Normaliser
from mbrl.shapes import check_shapes
from mbrl.types import Spec
from world_models.samplers import SAMPLERS, edm_levels
from world_models.trajectory_diffusion import denoising_loss, precondition

Network = Callable[[Tensor, Tensor], Tensor]  # x [B, A] and its level [B] to [B, A]


class Path(Protocol):
    """How noise becomes an action, and what the network is fitted to for it."""

    @property
    def evaluations(self) -> int:
        """Passes of the network that an action takes."""
        ...

    def levels(self, count: int, generator: Generator, device: torch.device) -> Tensor:
        """Levels [count] for a step of the fit."""
        ...

    def loss(self, network: Network, action: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """The loss [] at logged `action` and standard normal `noise` [B, A], `level` [B]."""
        ...

    def sample(self, network: Network, noise: Tensor) -> Tensor:
        """Actions [B, A], not yet within their bounds, from standard normal `noise` [B, A]."""
        ...


@dataclass(frozen=True)
class Flow(Settings):
    """Flow matching along straight paths (Flow Matching for Generative Modeling, arXiv 2210.02747,
    with a deviation of 0 at the action's end): the network is the velocity at x_t and time t."""

    steps: Count = 10  # Euler steps from noise to action

    @property
    def evaluations(self) -> int:
        return self.steps

    def levels(self, count: int, generator: Generator, device: torch.device) -> Tensor:
        """Times, uniform in [0, 1]."""
        return torch.rand(count, generator=generator, device=device)

    def loss(self, network: Network, action: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """Mean of (v(x_t, t) - (a - x_0))^2 over all entries, x_t = (1 - t) x_0 + t a."""
        check_shapes(action=(action, "B A"), noise=(noise, "B A"), level=(level, "B"))
        between = torch.lerp(noise, action, level[:, None])
        return (network(between, level) - (action - noise)).square().mean()

    def sample(self, network: Network, noise: Tensor) -> Tensor:
        x = noise
        for step in range(self.steps):
            time = x.new_full((x.shape[0],), step / self.steps)
            x = x + network(x, time) / self.steps
        return x


@dataclass(frozen=True)
class Diffusion(Settings):
    """A diffusion with EDM's preconditioning and noise levels (arXiv 2206.00364), sampled along its
    probability-flow equation. Actions in [-1, 1] are taken for data of deviation 1."""

    steps: Count = 20  # noise levels of a sample
    sampler: Literal["ddim", "heun", "dpm_solver_pp"] = "dpm_solver_pp"  # none draws fresh noise
    sigma_max: Positive = 10.0  # first noise level
    sigma_min: Positive = 0.01  # last one above 0
    noise_mean: Finite = -1.2  # of log sigma in training
    noise_std: NonNegative = 1.2  # and its deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sigmas()

    def sigmas(self) -> list[float]:
        """The noise levels of a sample. Raises `ConfigError` where the last is not below the
        first."""
        return edm_levels(self.steps, sigma_max=self.sigma_max, sigma_min=self.sigma_min)

    @property
    def evaluations(self) -> int:
        return SAMPLERS[self.sampler]().evaluations(self.steps)

    def levels(self, count: int, generator: Generator, device: torch.device) -> Tensor:
        """Noise levels sigma, log-normal."""
        draw = torch.randn(count, generator=generator, device=device)
        return (self.noise_mean + self.noise_std * draw).exp()

    def loss(self, network: Network, action: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        check_shapes(action=(action, "B A"), noise=(noise, "B A"), level=(level, "B"))
        return denoising_loss(network, action, level, noise)

    def sample(self, network: Network, noise: Tensor) -> Tensor:
        def denoise(x: Tensor, sigma: Tensor) -> Tensor:
            return precondition(network, x, sigma)

        sigmas, unused = self.sigmas(), Generator()
        return SAMPLERS[self.sampler]()(denoise, sigmas[0] * noise, sigmas, unused)


@dataclass(frozen=True)
class GenerativeConfig(Settings):
    """The settings that algorithms with a generative policy share."""

    policy: Literal["flow", "diffusion"] = "flow"  # which model of the logged actions
    flow: Flow = field(default_factory=Flow)
    diffusion: Diffusion = field(default_factory=Diffusion)
    hidden: Widths = (256, 256, 256)  # widths of all networks
    learning_rate: Positive = 3e-4  # Adam, all networks
    gamma: Discount = 0.99  # discount factor
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics

    @property
    def path(self) -> Path:
        return self.flow if self.policy == "flow" else self.diffusion


class Drawn(NamedTuple):
    """A batch with what a step of a generative policy's fit needs: standard normal `noise` [B, A]
    and the `level` [B] of each row."""

    batch: Batch
    noise: Tensor
    level: Tensor


def drawn(batch: Batch, path: Path, generator: Generator, more: int = 0) -> Drawn:
    """The batch with noise and levels for `path`, and `more` further standard normal draws a row as
    its `noise` [more, B, A]."""
    count, device = len(batch.obs), batch.obs.device
    noise = torch.randn((1 + more, *batch.action.shape), generator=generator, device=device)
    level = path.levels(count, generator, device)
    return Drawn(batch._replace(noise=noise[1:] if more else None), noise[0], level)


def kept_noise(count: int, actions: int, generator: Generator) -> Tensor:
    """Noise [count, actions] of greedy actions. A single one has the length sqrt(actions), which
    nearly all noise has in many dimensions: near 0 it would lie between the modes."""
    noise = torch.randn(count, actions, generator=generator)
    if count > 1:
        return noise
    length: Tensor = noise.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return math.sqrt(actions) * noise / length


class GenerativePolicy(nn.Module):
    """pi(a|s) that `path` samples with an MLP of (s, x, level). The greedy action is that of the
    first row of `noise` [candidates, A], which is saved with the weights and stands in exported
    files."""

    noise: Tensor

    def __init__(
        self,
        spec: Spec,
        path: Path,
        hidden: Sequence[int],
        *,
        candidates: int = 1,
        generator: Generator,
    ) -> None:
        super().__init__()
        self.path = path
        self.normaliser, self.scale = Normaliser(spec.obs_dim), ActionScale(spec)
        width = spec.obs_dim + spec.action_dim + 1
        # A smooth activation: the path is a differential equation.
        self.net = MLP(width, hidden, spec.action_dim, activation="silu", generator=generator)
        self.register_buffer("noise", kept_noise(candidates, spec.action_dim, generator))

    def network(self, obs: Tensor) -> Network:
        """The network at raw `obs` [B, S]."""
        standard = self.normaliser(obs)
        return lambda x, level: self.net(torch.cat([standard, x, level[:, None]], -1))

    def loss(self, drawn: Drawn) -> Tensor:
        """The loss [] of the fit to the batch's logged actions."""
        rows = drawn.batch
        return self.path.loss(self.network(rows.obs), rows.action, drawn.noise, drawn.level)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, A] in [-1, 1] at raw `obs` [B, S] from standard normal `noise` [B, A]."""
        return self.path.sample(self.network(obs), noise).clamp(-1, 1)

    def candidates(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [K, B, A] in [-1, 1] at raw `obs` [B, S] from `noise` [K, B, A]."""
        count = noise.shape[0]
        repeated = obs.expand(count, *obs.shape).flatten(0, 1)
        return self.sample(repeated, noise.flatten(0, 1)).view(count, obs.shape[0], -1)

    def greedy_noise(self, obs: Tensor) -> Tensor:
        """The kept noise [candidates, B, A] for each row of `obs` [B, S]."""
        return self.noise[:, None].expand(-1, obs.shape[0], -1)

    def drawn_noise(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """Fresh noise [candidates, B, A] for each row of `obs` [B, S]."""
        shape = (self.noise.shape[0], obs.shape[0], self.noise.shape[1])
        return torch.randn(shape, generator=generator, device=obs.device)

    def evaluations(self, obs: Tensor) -> Tensor:
        """Passes of a network that the action at each row of `obs` takes, [B]."""
        return obs.new_full((obs.shape[0],), float(self.path.evaluations))

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        return self.scale.to_task(self.sample(obs, self.greedy_noise(obs)[0]))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action in the task's units."""
        return self.scale.to_task(self.sample(obs, self.drawn_noise(obs, generator)[0]))


def best(actions: Tensor, q: Tensor) -> Tensor:
    """Of `actions` [K, B, A] those [B, A] with the largest `q` [K, B]."""
    check_shapes(actions=(actions, "K B A"), q=(q, "K B"))
    return picked(actions, q.argmax(0))


def picked(actions: Tensor, index: Tensor) -> Tensor:
    """Of `actions` [K, B, A] those [B, A] at int64 `index` [B]."""
    wide = index[None, :, None].expand(1, -1, actions.shape[2])
    return actions.gather(0, wide)[0]
