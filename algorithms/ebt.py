"""EBT-Policy: Energy Unlocks Emergent Physical Reasoning Capabilities (arXiv 2510.27545): actions
come down an energy that is learned through a few steps of that descent. The formulas were read in
the authors' code (github.com/ZhiChengAIR/benchmarks, robomimic/algo/ebt_policy.py).

Differences from the authors' code: an MLP for their transformer and single actions for their
chunks; no root-mean-square norm before a step (of one action dimension it would leave the
sign); weights are not averaged and do not decay; the size of a step and the bounds of the descent
are of our own, since theirs are for other energies or not in the file. `momentum` 0.9 and noise
that falls from 0.3 to 0.001 are theirs at 8e8a5c4, and no preset here. `start = "noised"` is what
the base method does with images (github.com/alexiglad/EBT, model/img/ebt_denoise.py).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from algorithms.learners.generative import Drawn, kept_noise
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero, Discount, NonNegative, Positive, Settings, Share, Widths
from mbrl.networks import MLP, ActionScale, Normaliser, adam, descend
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class EBTConfig(Settings):
    """Settings of EBT-Policy; steps and noise are the authors'."""

    # where a descent starts in training: at noise, or at a logged action mixed with noise
    start: Literal["noise", "noised"] = "noise"
    fit_steps: Count = 3  # of a descent in training, at least
    more_steps: CountOrZero = 4  # and up to so many more, drawn for each batch
    step_size: Positive = 10.0  # alpha, times exp(energy) / temperature the length of a step
    temperature: Positive = 1.0  # of the energy in it
    momentum: Share = 0.0  # Nesterov's, of a descent's steps
    langevin: NonNegative = 0.05  # deviation of the noise before each step in training
    langevin_end: NonNegative | None = None  # to which it falls as a cosine; None: it stays
    max_steps: Count = 20  # of a descent when acting
    min_gradient: NonNegative = 1e-3  # norm below which it goes to its last step
    hidden: Widths = (256, 256, 256)  # widths of the energy
    learning_rate: Positive = 3e-4  # Adam
    gradient_norm: Positive = 1.0  # an update's gradient is at most this long
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = True  # standardise observations with the data's statistics
    gamma: Discount = 0.99  # unused by the loss; the buffer's discount


def silu_slope(x: Tensor) -> Tensor:
    """The derivative of x sigmoid(x)."""
    gate = torch.sigmoid(x)
    return gate * (1.0 + x * (1.0 - gate))


class EnergyPolicy(nn.Module):
    """Descent on exp(E(s, a)), which is E's with steps as long as exp(E). The greedy action is that
    from the kept `noise` [1, A]."""

    noise: Tensor

    def __init__(self, spec: Spec, config: EBTConfig, generator: Generator) -> None:
        super().__init__()
        self.config = config
        self.normaliser, self.scale = Normaliser(spec.obs_dim), ActionScale(spec)
        width = spec.obs_dim + spec.action_dim
        self.net = MLP(width, config.hidden, 1, activation="silu", generator=generator)
        self.register_buffer("noise", kept_noise(1, spec.action_dim, generator))

    def energy(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """E [B] and dE/da [B, A] at standardised `obs` [B, S]. The derivative is written out, so
        that updates differentiate it once and not twice, and exported files hold it."""
        h, before = torch.cat([obs, action], -1), []
        layers = [layer for layer in self.net.layers if isinstance(layer, nn.Linear)]
        for layer in layers[:-1]:
            before.append(layer(h))
            h = F.silu(before[-1])
        slope = layers[-1].weight.expand(h.shape[0], -1)
        for layer, x in zip(reversed(layers[:-1]), reversed(before), strict=True):
            slope = (slope * silu_slope(x)) @ layer.weight
        return layers[-1](h)[:, 0], slope[:, obs.shape[1] :]

    def step(self, obs: Tensor, action: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`action` [B, A] after a step at standardised `obs` [B, S], the new velocity [B, A] (of
        the last step: 0 before the first), and the norm [B] of dE/da where the momentum leads."""
        c = self.config
        energy, slope = self.energy(obs, action + c.momentum * velocity)
        length = c.step_size * energy.exp() / c.temperature
        velocity = c.momentum * velocity - length[:, None] * slope
        return action + velocity, velocity, slope.norm(dim=1)

    def descent(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] in [-1, 1] from `noise` [B, A] at raw `obs` [B, S], and the number [B] of
        steps. A row goes on until its gradient is small, and takes a last step. A step that would
        overflow is not taken and ends the descent."""
        standard, action, velocity = self.normaliser(obs), noise, torch.zeros_like(noise)
        norm = torch.full_like(obs[:, 0], torch.inf)
        steps = torch.ones_like(norm)
        for _ in range(self.config.max_steps - 1):
            going = norm > self.config.min_gradient
            moved, faster, after = self.step(standard, action, velocity)
            finite = moved.isfinite().all(dim=1)
            taken = (going & finite)[:, None]
            action = torch.where(taken, moved, action)
            velocity = torch.where(taken, faster, velocity)
            norm = torch.where(going, torch.where(finite, after, 0.0), norm)
            steps = steps + going.to(steps.dtype)
        last = self.step(standard, action, velocity)[0]
        action = torch.where(last.isfinite().all(dim=1, keepdim=True), last, action)
        return action.clamp(-1, 1), steps

    def evaluations(self, obs: Tensor) -> Tensor:
        """Passes of the network, each with one back, that the greedy action at each row takes."""
        return self.descent(obs, self.noise.expand(obs.shape[0], -1))[1]

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        return self.scale.to_task(self.descent(obs, self.noise.expand(obs.shape[0], -1))[0])

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action, from fresh noise, in the task's units."""
        shape = (obs.shape[0], self.noise.shape[1])
        noise = torch.randn(shape, generator=generator, device=obs.device)
        return self.scale.to_task(self.descent(obs, noise)[0])


class EnergyLearner:
    """The energy, and its fit through the steps of a descent."""

    def __init__(
        self, spec: Spec, config: EBTConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.policy = EnergyPolicy(spec, config, generator).to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy}
        self.optimisers = {"policy": adam(self.policy.parameters(), config.learning_rate)}

    def draw(self, batch: Batch, generator: Generator) -> Drawn:
        """The batch with the noise of a descent's start, the share [B] of the logged action in it
        and noise [steps, B, A] of so many steps."""
        c, device = self.config, batch.obs.device
        more = torch.randint(c.more_steps + 1, (), generator=generator, device=device)
        shape = (1 + c.fit_steps + int(more), *batch.action.shape)
        noise = torch.randn(shape, generator=generator, device=device)
        share = torch.rand(len(batch.obs), generator=generator, device=device)
        return Drawn(batch._replace(noise=noise[1:]), noise[0], share)

    def update(self, batch: Drawn, count: int = 0) -> Metrics:
        loss = self.loss(batch)
        descend(self.optimisers["policy"], loss, clip=self.config.gradient_norm)
        return {"actor/bc": loss.detach()}

    def loss(self, batch: Drawn) -> Tensor:
        """Mean over the steps of the squared distance to the logged action after each. A step's
        gradient ends at the action that it begins with."""
        rows, c = batch.batch, self.config
        assert rows.noise is not None
        obs, action = self.policy.normaliser(rows.obs), batch.noise
        if c.start == "noised":
            share = batch.level[:, None]
            action = share.sqrt() * rows.action + (1.0 - share).sqrt() * batch.noise
        errors, velocity = [], torch.zeros_like(action)
        for noise, deviation in zip(rows.noise, self.deviations(len(rows.noise)), strict=True):
            start = action.detach() + deviation * noise
            action, velocity, _ = self.policy.step(obs, start, velocity.detach())
            errors.append((action - rows.action).square().mean())
        return torch.stack(errors).mean()

    def deviations(self, steps: int) -> list[float]:
        """Of the noise before each of `steps` steps: half a cosine, whose end is not reached."""
        c = self.config
        end = c.langevin if c.langevin_end is None else c.langevin_end
        fall = 0.5 * (c.langevin - end)
        return [end + fall * (1.0 + math.cos(math.pi * i / steps)) for i in range(steps)]


class EBT(Agent[Drawn]):
    """Cloning by descent on a learned energy.

    Formula:

        step         v_k+1 = mu v_k - alpha exp(E(s, b_k)) / T dE/da(s, b_k), b_k = a_k + mu v_k,
                     a_k+1 = a_k + v_k+1, v_0 = 0
        energy       L = mean over k of mean (a_k - a)^2, a_0 ~ N(0, 1), noise sigma_k before each
                     step, no gradient from one step into the one before
        noise        sigma_k = e + (sigma - e) (1 + cos(pi k / steps)) / 2, or sigma for all k
        acting       steps until |dE/da| is small, max_steps at most, the last of them always

    When not to use it: where logged actions at a state have several modes. A start that is
    independent of the logged action makes its loss least at the mean of the actions, as that of
    `bc` is; `start = "noised"` keeps modes apart, `generative_bc` does so with fewer assumptions.
    Descents from that start may overflow; they end before the step that does.
    """

    version = 1
    config: EBTConfig

    def build(self, generator: Generator) -> tuple[EnergyLearner, LoggedRows]:
        c = self.config
        learner = EnergyLearner(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
