"""The network of an ensemble with its settings, and what it is fitted by: Gaussian members with
softly bounded log-variances."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.config import (
    Count,
    CountOrZero,
    Finite,
    Fraction,
    NonNegative,
    Positive,
    Rate,
    Settings,
    Widths,
)
from mbrl.errors import ConfigError
from mbrl.native import chosen, likelihood, passes
from mbrl.networks import EnsembleMLP


@dataclass(frozen=True)
class EnsembleConfig(Settings):
    """Settings of the ensemble; the defaults are RAVL's (arXiv 2402.12527, authors' code)."""

    members: Count = 7  # networks trained
    elites: Count = 5  # networks kept, by holdout error
    hidden: Widths = (200, 200, 200, 200)  # widths
    activation: Literal["silu", "relu", "leaky_relu", "tanh", "gelu"] = "silu"  # hidden layers
    layer_norm: bool = False  # LayerNorm before each activation
    init: Literal["truncated", "torch"] = "truncated"  # truncated normal 1/(2 sqrt(fan_in))
    # what is predicted: changes in the task's units, in units of their observation's deviation, or
    # what a linear regression leaves of them, in units of its own deviation
    target: Literal["delta", "standardised", "residual"] = "delta"
    # rewards: a further output of each member, or networks of their own that see the state reached
    reward: Literal["joint", "reached"] = "joint"
    reward_updates: Count = 4000  # of those networks
    input_clip: Positive | None = 10.0  # standardised inputs are cut at +- this
    log_variance_bounds: Literal["learned", "fixed"] = "learned"  # shared by all members
    log_variance_min: Finite = -10.0  # (initial) lower bound
    log_variance_max: Finite = 0.5  # (initial) upper bound
    bound_weight: NonNegative = 0.01  # pull on learned bounds
    bootstrap: Literal["none", "once", "reassigned"] = "once"  # rows of each member
    holdout_fraction: Fraction = 0.2  # share of rows for early stopping
    holdout_max: Count | None = None  # and at most this many rows
    learning_rate: Positive = 1e-3  # Adam
    weight_decay: tuple[NonNegative, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)  # one or per layer
    decoupled_decay: bool = False  # AdamW instead of an L2 term
    batch_size: Count = 256  # rows a member an update
    min_epochs: CountOrZero = 350  # a stall before this drops the rate once instead of stopping
    max_epochs: Count = 2000  # hard limit
    patience: Count = 5  # epochs without any member improving
    min_gain: Finite = 0.01  # relative gain that counts as improving
    rate_drop: Rate = 0.3  # factor of that one drop

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites > self.members:
            raise ConfigError(
                f"elites is {self.elites}, it must lie in 1..{self.members} (members)"
            )
        if len(self.weight_decay) not in (1, len(self.hidden) + 1):
            raise ConfigError(
                f"weight_decay has {len(self.weight_decay)} entries; give one, or one for each of "
                f"the {len(self.hidden) + 1} layers"
            )
        if not self.log_variance_min < self.log_variance_max:
            raise ConfigError(
                f"log_variance_min is {self.log_variance_min}, it must lie below log_variance_max, "
                f"{self.log_variance_max}"
            )


class EnsembleNetwork(nn.Module):
    """Members' means and log-variances of [change of obs, reward] in target units."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        members: int,
        config: EnsembleConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.out_dim, self.config = out_dim, config
        self.mlp = EnsembleMLP(
            members,
            in_dim,
            config.hidden,
            2 * out_dim,
            activation=config.activation,
            layer_norm=config.layer_norm,
            generator=generator,
        )
        if config.init == "truncated":
            truncated_initialisation(self.mlp, generator)
        learned = config.log_variance_bounds == "learned"
        low = torch.full((out_dim,), config.log_variance_min)
        high = torch.full((out_dim,), config.log_variance_max)
        self.low = nn.Parameter(low, requires_grad=learned)
        self.high = nn.Parameter(high, requires_grad=learned)
        self.linear: Tensor | None
        linear = torch.zeros(in_dim + 1, out_dim) if config.target == "residual" else None
        self.register_buffer("linear", linear)

    def split(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Network output [..., 2D] to mean and softly bounded log-variance [..., D]."""
        mean, log_variance = out.split(self.out_dim, -1)
        log_variance = self.high - F.softplus(self.high - log_variance)
        return mean, self.low + F.softplus(log_variance - self.low)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.split(self.mlp(x))
        return self.shifted(mean, x), log_variance

    def shifted(self, mean: Tensor, x: Tensor) -> Tensor:
        """The mean with the linear regression's part for inputs `x` added, where there is one."""
        return mean if self.linear is None else mean + x @ self.linear[:-1] + self.linear[-1]

    def bound_loss(self) -> Tensor:
        """What keeps learned bounds of log-variances close to each other."""
        return self.config.bound_weight * (self.high.sum() - self.low.sum())

    def moments(self, out: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Network output [..., 2D] for inputs `x` to mean and variance [..., D]: the exponential of
        `split`'s log-variance is exp(low) + exp(high) sigmoid(s - high), one special function
        instead of three."""
        mean, log_variance = out.split(self.out_dim, -1)
        share = torch.sigmoid(log_variance - self.high)
        return self.shifted(mean, x), torch.addcmul(self.low.exp(), self.high.exp(), share)

    def draws(self, x: Tensor, member: Tensor, noise: Tensor) -> Tensor | None:
        """mean + noise sqrt(variance) [B, D] of the member named for each row of inputs `x`
        [B, in] in `member` [B] int64, for `noise` [B, D], in one compiled call without a gradient;
        None where it cannot be."""
        mlp = self.mlp
        if (
            mlp.normaliser is not None
            or member.dtype != torch.int64
            or member.shape != x.shape[:1]
            or x.ndim != 2
            or noise.shape != (len(x), self.out_dim)
            or not passes.computes(x, mlp.weights, mlp.activation)
        ):
            return None
        parameters = [*mlp.weights, *mlp.biases, *mlp.scales, *mlp.shifts]
        layers, bounds = (len(mlp.weights), mlp.activation), (self.low, self.high)
        return self.shifted(chosen.draws(x, member, noise, parameters, *layers, bounds), x)


@torch.no_grad()
def truncated_initialisation(mlp: EnsembleMLP, generator: torch.Generator | None) -> None:
    """Weights from a normal of deviation 1 / (2 sqrt(fan_in)) cut at two deviations; biases 0."""
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        std = 0.5 / weight.shape[1] ** 0.5
        nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std, generator=generator)
        bias.zero_()


def gaussian_nll(
    mean: Tensor, log_variance: Tensor, target: Tensor, network: EnsembleNetwork
) -> Tensor:
    """sum_e mean_{b,d} [ log var + (y - mu)^2 / var ] + c (sum max - sum min), all [E, B, D].

    Twice the Gaussian negative log-likelihood without its constant, as PETS (arXiv 1805.12114) and
    its descendants minimise it.
    """
    error = (target - mean).square() * torch.exp(-log_variance)
    loss = (error + log_variance).mean((1, 2)).sum()
    learned = network.config.log_variance_bounds == "learned"
    return loss + network.bound_loss() if learned else loss


def nll_gradients(
    network: EnsembleNetwork, x: Tensor, target: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    """`gaussian_nll` at `x` [E, B, in] and `target` [E, B, D], and its gradients in `parameters` of
    the network; in one compiled call, member after member, where it can be."""
    mlp = network.mlp
    if mlp.normaliser is not None or not passes.computes(x, mlp.weights, mlp.activation):
        mean, log_variance = network(x)
        loss = gaussian_nll(mean, log_variance, target, network)
        return loss.detach(), torch.autograd.grad(loss, parameters)
    if network.linear is not None:
        target = target - network.shifted(torch.zeros_like(target), x)
    known = [*mlp.weights, *mlp.biases, *mlp.scales, *mlp.shifts]
    bounds, depth = (network.low, network.high), len(mlp.weights)
    value, gradients = likelihood.gradients(x, target, known, depth, mlp.activation, bounds)
    if network.config.log_variance_bounds == "learned":
        value = value + network.bound_loss().detach()
        gradients[-2] -= network.config.bound_weight
        gradients[-1] += network.config.bound_weight
    by_parameter = dict(zip([*known, *bounds], gradients, strict=True))
    return value, [by_parameter[p] for p in parameters]
