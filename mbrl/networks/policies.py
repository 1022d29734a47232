"""Policies: raw observations in, actions in [-1, 1] out. `ActionScale` maps those to the task's
units; the observation normaliser is a buffer of the policy, so it is saved and exported with it."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.errors import DivergenceError, unknown_name
from mbrl.native import passes
from mbrl.networks.ensemble import ACTIVATIONS
from mbrl.networks.normaliser import Normaliser
from mbrl.types import Spec


class ActionScale(nn.Module):
    """The affine map between [-1, 1] and the task's action bounds. In float32 no action of
    [-1, 1] is mapped beyond them."""

    centre: Tensor
    half_range: Tensor

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        centre = (high + low) / 2
        self.register_buffer("centre", centre)
        self.register_buffer("half_range", _half_range(low, centre, high))

    def to_unit(self, action: Tensor) -> Tensor:
        return (action - self.centre) / self.half_range

    def to_task(self, unit: Tensor) -> Tensor:
        return unit * self.half_range + self.centre


def _half_range(low: Tensor, centre: Tensor, high: Tensor) -> Tensor:
    """The largest half of the range [A] that, as rounded, leads from the centre to neither side
    of the bounds: the plain half passes them by a rounding step for every fourth pair of bounds."""
    half = torch.minimum((high - low) / 2, torch.minimum(high - centre, centre - low))
    while (past := (centre + half > high) | (centre - half < low)).any():
        half = torch.where(past, torch.nextafter(half, torch.zeros_like(half)), half)
    return half


class MLP(nn.Module):
    """A plain network, initialised as `torch.nn.Linear` is, from `generator`."""

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        in_dim: int,
        hidden: Sequence[int],
        out_dim: int,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.activation = activation
        sizes = [in_dim, *hidden, out_dim]
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
            layer = nn.Linear(fan_in, fan_out)
            bound = 1.0 / math.sqrt(fan_in)
            with torch.no_grad():
                for p in (layer.weight, layer.bias):
                    p.copy_(torch.rand(p.shape, generator=generator) * (2 * bound) - bound)
            self.layers.append(layer)
        if layer_norm:
            self.norms.extend(nn.LayerNorm(width) for width in hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        layers = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        weights = [layer.weight for layer in layers]
        if passes.computes(x, weights, self.activation):
            biases = [layer.bias for layer in layers]
            norms = [n for n in self.norms if isinstance(n, nn.LayerNorm)]
            affine = [*(n.weight for n in norms), *(n.bias for n in norms)]
            rows = x if x.ndim == 2 else x.flatten(0, -2) if x.ndim > 2 else x[None]
            out = passes.forward(rows, weights, biases, self.activation, affine)
            return out if x.ndim == 2 else out.view(*x.shape[:-1], out.shape[-1])
        activate, last = ACTIVATIONS[self.activation], len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index < last:
                x = activate(self.norms[index](x) if len(self.norms) else x)
        return x

    @torch.no_grad()
    def orthogonal(self, last: float, generator: torch.Generator | None = None) -> None:
        """Orthogonal weights anew, times sqrt(2) and in the last layer times `last`, and biases of
        0: what the on-policy methods of the field begin with ("What Matters In On-Policy
        Reinforcement Learning?", arXiv 2006.05990)."""
        gains = [math.sqrt(2.0)] * (len(self.layers) - 1) + [last]
        for layer, gain in zip(self.layers, gains, strict=True):
            assert isinstance(layer, nn.Linear)
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)


class SquashedGaussianPolicy(nn.Module):
    """pi(a|s) = tanh(N(mu(s), sigma(s))), log sigma clipped to [-5, 2]. Actions are in [-1, 1]."""

    log_std_bounds = (-5.0, 2.0)

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int] = (256, 256),
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normaliser, self.scale = Normaliser(spec.obs_dim), ActionScale(spec)
        self.net = MLP(
            spec.obs_dim,
            hidden,
            2 * spec.action_dim,
            activation=activation,
            layer_norm=layer_norm,
            generator=generator,
        )

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-deviation [..., A] before the squash."""
        mean, log_std = self.net(self.normaliser(obs)).chunk(2, -1)
        return mean, log_std.clamp(*self.log_std_bounds)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions [..., A] for standard normal `noise`, and log pi [...]."""
        mean, log_std = self.distribution(obs)
        pre = mean + log_std.exp() * noise
        return torch.tanh(pre), squashed_log_prob(pre, noise, log_std)

    def log_prob(self, obs: Tensor, action: Tensor, bound: float = 1.0 - 1e-6) -> Tensor:
        """log pi(a|s) of stored actions in [-1, 1]; those at the very bounds are moved inside."""
        return self.log_prob_of_draw(obs, torch.atanh(action.clamp(-bound, bound)))

    def log_prob_of_draw(self, obs: Tensor, pre: Tensor) -> Tensor:
        """log pi(a|s) of a = tanh(pre), exact also where a is at the bounds."""
        mean, log_std = self.distribution(obs)
        return squashed_log_prob(pre, (pre - mean) / log_std.exp(), log_std)

    def draw(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """A sampled action before the squash."""
        mean, log_std = self.distribution(obs)
        noise = torch.randn(mean.shape, generator=generator, device=obs.device)
        return mean + log_std.exp() * noise

    def taken(self, pre: Tensor) -> Tensor:
        """What is drawn, as an action in the task's units."""
        return self.scale.to_task(torch.tanh(pre))

    def explore(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """A sampled action in the task's units."""
        return self.taken(self.draw(obs, generator))

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units."""
        return self.taken(self.distribution(obs)[0])


def squashed_log_prob(pre: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """log N(pre) - sum log(1 - tanh(pre)^2), with log(1 - tanh^2) = 2 (log 2 - x - softplus(-2x)),
    which does not overflow at the bounds."""
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2.0 * (math.log(2.0) - pre - F.softplus(-2.0 * pre))
    return (gaussian - squash).sum(-1)


class DeterministicPolicy(nn.Module):
    """a = tanh(f(s)), in [-1, 1]."""

    stochastic = False  # a collector adds noise to its actions

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int] = (256, 256),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normaliser, self.scale = Normaliser(spec.obs_dim), ActionScale(spec)
        self.net = MLP(spec.obs_dim, hidden, spec.action_dim, generator=generator)

    def unit(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(self.normaliser(obs)))

    def forward(self, obs: Tensor) -> Tensor:
        """The action in the task's units."""
        return self.scale.to_task(self.unit(obs))

    def explore(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """The policy has no noise of its own: the action itself."""
        return self.forward(obs)


class TanhMeanGaussianPolicy(nn.Module):
    """N(tanh(f(s)), diag(sigma^2)) with a state-independent learned sigma, as IQL uses."""

    log_std_bounds = (-5.0, 2.0)

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int] = (256, 256),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normaliser, self.scale = Normaliser(spec.obs_dim), ActionScale(spec)
        self.net = MLP(spec.obs_dim, hidden, spec.action_dim, generator=generator)
        self.log_std = nn.Parameter(torch.zeros(spec.action_dim))

    def unit(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.net(self.normaliser(obs)))

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions clipped to [-1, 1] and the log-density of the unclipped ones."""
        log_std = self.log_std.clamp(*self.log_std_bounds)
        action = self.unit(obs) + log_std.exp() * noise
        return action.clamp(-1, 1), _gaussian_log_prob(noise, log_std)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        log_std = self.log_std.clamp(*self.log_std_bounds)
        return _gaussian_log_prob((action - self.unit(obs)) / log_std.exp(), log_std)

    def explore(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """A sampled action in the task's units."""
        shape = (*obs.shape[:-1], self.log_std.shape[0])
        noise = torch.randn(shape, generator=generator, device=obs.device)
        return self.scale.to_task(self.sample(obs, noise)[0])

    def forward(self, obs: Tensor) -> Tensor:
        return self.scale.to_task(self.unit(obs))


def _gaussian_log_prob(noise: Tensor, log_std: Tensor) -> Tensor:
    return (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


class CategoricalPolicy(nn.Module):
    """A softmax over discrete actions."""

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int] = (256, 256),
        *,
        activation: str = "relu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.normaliser = Normaliser(spec.obs_dim)
        self.net = MLP(
            spec.obs_dim, hidden, spec.num_actions or 0, activation=activation, generator=generator
        )

    def logits(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, n], with a `mask` [B, n] those of its actions alone (`allowed_only`)."""
        return allowed_only(self.net(self.normaliser(obs)), mask)

    def log_prob(self, obs: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
        """log pi(a|s) [B] of actions [B], int64."""
        return -F.cross_entropy(self.logits(obs, mask), action, reduction="none")

    def draw(
        self, obs: Tensor, generator: torch.Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """A sampled action [...], int64. Raises `DivergenceError` where probabilities are not
        numbers (on the CPU; a GPU notices at its next synchronisation)."""
        probabilities = torch.softmax(self.logits(obs, mask), -1)
        try:
            return torch.multinomial(probabilities, 1, generator=generator)[..., 0]
        except RuntimeError as error:
            if bool(torch.isfinite(probabilities).all()):
                raise
            raise DivergenceError(
                "training diverged: the policy's probabilities are not numbers. The last good "
                "checkpoint is untouched; a lower learning rate may help"
            ) from error

    def taken(self, drawn: Tensor) -> Tensor:
        """What is drawn is the action."""
        return drawn

    explore = draw

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The most probable action [...], int64."""
        return self.logits(obs, mask).argmax(-1)


BLOCKED = -1e9  # so low that its exponential is 0, and finite, so that 0 times it is 0


def allowed_only(values: Tensor, mask: Tensor | None) -> Tensor:
    """`values` [..., B, n] of actions with `BLOCKED` where `mask` [B, n] forbids one: maxima,
    log-sum-exps and softmaxes are then over the allowed ones. None: all are."""
    return values if mask is None else values.masked_fill(~mask, BLOCKED)
