"""ODICE: Revealing the Mystery of Distribution Correction Estimation via Orthogonal-Gradient Update
(arXiv 2402.00348), compared with the authors' code (maoliyuan/ODICE-Pytorch, 1692507).

Differences: the policy's mean goes through a tanh, as the authors have it for imitation alone; no
weight decay of the policy; rewards are scaled as IQL's authors do (`normalise_rewards`), off here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.advantage_weighted import weighted_cloning
from algorithms.learners.critics import state_values
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Fraction, NonNegative, Positive, Rate, Settings, Widths
from mbrl.networks import (
    EnsembleMLP,
    TanhMeanGaussianPolicy,
    adam,
    descend,
    polyak_update,
    step,
    target_copy,
)
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec

Divergence = Literal["chi_square", "reverse_kl"]
LARGEST_EXPONENT = 80.0  # exp of it is finite in float32


@dataclass(frozen=True)
class ODICEConfig(Settings):
    """Settings of ODICE; the defaults are the authors' for locomotion. They choose lambda and
    eta per dataset; 0.6 and 1 are the defaults of their command."""

    conjugate_weight: Fraction = 0.6  # lambda, of the conjugate against the mean value
    eta: NonNegative = 1.0  # weight of the backward gradient
    gradient: Literal["orthogonal", "true", "semi"] = "orthogonal"  # what of it is kept
    divergence: Divergence = "chi_square"  # f, between the policy's visits and the data
    # w of the policy: f*'(y); or the authors' code's, max(0, y) where f is chi_square
    weight: Literal["derivative", "residual"] = "derivative"
    max_weight: Positive = 100.0  # upper bound of w
    values: Count = 2  # value networks; the least of their targets bootstraps
    layer_norm: bool = True  # in the value networks
    hidden: Widths = (256, 256)  # widths of the value networks
    policy_hidden: Widths = (1024, 1024)  # widths of the policy
    learning_rate: Positive = 2e-4  # Adam, values and policy
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics
    normalise_rewards: bool = False  # times 1000 / range of returns; the authors' for locomotion


def conjugate(residual: Tensor, divergence: Divergence) -> Tensor:
    """f*(y) = max over w >= 0 of w y - f(w), any shape: for chi_square f(w) = (w - 1)^2, so
    y^2 / 4 + y above -2 and -1 below; for reverse_kl f(w) = w log w, so exp(y - 1)."""
    if divergence == "reverse_kl":
        return (residual - 1).clamp_max(LARGEST_EXPONENT).exp()
    weight = (residual / 2 + 1).clamp_min(0)
    return weight * residual - (weight - 1).square()


def density_ratio(
    residual: Tensor, divergence: Divergence, weight: Literal["derivative", "residual"]
) -> Tensor:
    """w(y), any shape: f*'(y), the w of the maximum in `conjugate`; with "residual" chi_square has
    max(0, y), as in the authors' code."""
    if divergence == "reverse_kl":
        return (residual - 1).clamp_max(LARGEST_EXPONENT).exp()
    return (residual if weight == "residual" else residual / 2 + 1).clamp_min(0)


def orthogonal_sum(forward: Sequence[Tensor], backward: Sequence[Tensor]) -> list[Tensor]:
    """g_f + g_b - (<g_f, g_b> / |g_f|^2) g_f, products over all tensors together: the
    forward gradient and the part of the backward one that is at right angles to it."""
    product = torch.stack([(f * b).sum() for f, b in zip(forward, backward, strict=True)]).sum()
    square = torch.stack([f.square().sum() for f in forward]).sum()
    share = product / square.clamp_min(1e-10)
    return [f + (b - share * f) for f, b in zip(forward, backward, strict=True)]


class OrthogonalDICE:
    """State values by the dual of a regularised problem over visits, and weighted cloning."""

    def __init__(
        self, spec: Spec, config: ODICEConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.policy = TanhMeanGaussianPolicy(spec, config.policy_hidden, generator=generator).to(
            device
        )
        self.value = EnsembleMLP(
            config.values,
            spec.obs_dim,
            config.hidden,
            1,
            layer_norm=config.layer_norm,
            generator=generator,
        ).to(device)
        self.value_target = target_copy(self.value)
        learned: dict[str, nn.Module] = {"policy": self.policy, "value": self.value}
        self.modules = learned | {"value_target": self.value_target}
        rate = config.learning_rate
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of the values, their targets and the policy, in that order."""
        c = self.config
        gradient, residual, metrics = self.value_gradient(batch)
        step(self.optimisers["value"], gradient)
        polyak_update(self.value_target, self.value, c.tau)
        weight = density_ratio(residual, c.divergence, c.weight).clamp_max(c.max_weight).mean(0)
        log_prob = self.policy.log_prob(batch.obs, batch.action)
        loss, policy_metrics = weighted_cloning(log_prob, weight)
        descend(self.optimisers["policy"], loss)
        return metrics | policy_metrics

    def value_gradient(self, batch: Batch) -> tuple[list[Tensor], Tensor, Metrics]:
        """The gradient by the value networks' parameters, in their order, the residuals [N, B] that
        the policy's weights come from, and metrics."""
        c, normalise = self.config, self.policy.normaliser
        obs, next_obs = normalise(batch.obs), normalise(batch.next_obs)
        parameters = list(self.value.parameters())
        value = state_values(self.value, obs)
        linear = (1 - c.conjugate_weight) * value.mean()
        if c.gradient == "true":
            next_value = state_values(self.value, next_obs)
            residual = value_residual(batch, value, next_value)
            loss = c.conjugate_weight * conjugate(residual, c.divergence).mean() + linear
            gradient = list(torch.autograd.grad(loss, parameters))
        else:
            with torch.no_grad():
                held = state_values(self.value_target, obs).min(0).values
                held_next = state_values(self.value_target, next_obs).min(0).values
            residual = value_residual(batch, value, held_next)
            forward = c.conjugate_weight * conjugate(residual, c.divergence).mean()
            loss = forward + linear
            gradient = list(torch.autograd.grad(forward, parameters, retain_graph=True))
            if c.gradient == "orthogonal":
                backward = value_residual(batch, held, state_values(self.value, next_obs))
                term = c.conjugate_weight * c.eta * conjugate(backward, c.divergence).mean()
                gradient = orthogonal_sum(gradient, torch.autograd.grad(term, parameters))
            pull = torch.autograd.grad(linear, parameters)
            gradient = [g + p for g, p in zip(gradient, pull, strict=True)]
        residual = residual.detach()
        return (
            gradient,
            residual,
            {
                "value/loss": loss.detach(),
                "value/mean": value.detach().mean(),
                "value/ratio": density_ratio(residual, c.divergence, c.weight).mean(),
            },
        )


def value_residual(batch: Batch, value: Tensor, next_value: Tensor) -> Tensor:
    """y = r + gamma V(s') - V(s) [N, B], 0 for V(s') where the task ended, from values [B] or
    [N, B]."""
    check_shapes(reward=(batch.reward, "B"), value=(value, "... B"))
    return batch.reward + batch.discount * next_value - value


class ODICE(Agent[Batch]):
    """Distribution correction by orthogonal gradients.

    Formula:

        values       y_f = r + gamma V'(s') - V(s), y_b = r + gamma V(s') - V'(s)
                     g_f = gradient of lambda mean f*(y_f), g_b = of lambda eta mean f*(y_b)
                     g = (1 - lambda) gradient of mean V(s) + g_f + g_b - (<g_f, g_b> / |g_f|^2) g_f
                     V' = least of the targets; f*(y) = max over w >= 0 of w y - (w - 1)^2
        policy       L = -mean w log pi(a|s), w = min(max(0, y_f / 2 + 1), bound)

    When not to use it: where rewards have no known scale: f* is not scale-free, and residuals that
    are small beside 1 make the policy a clone of the data (multiply rewards, or set
    `normalise_rewards` where returns are small). The authors choose lambda and eta for each
    dataset; no table of ours says yet how much that is worth.
    """

    version = 1
    config: ODICEConfig

    def build(self, generator: Generator) -> tuple[OrthogonalDICE, LoggedRows]:
        c = self.config
        learner = OrthogonalDICE(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
