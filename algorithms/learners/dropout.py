"""Dropout whose masks come with the batch, so that an update stays a function of state and batch
(Dropout: A Simple Way to Prevent Neural Networks from Overfitting, JMLR 15, 2014)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from mbrl.buffer import Batch
from mbrl.networks import EnsembleMLP, SquashedGaussianPolicy
from mbrl.networks.policies import squashed_log_prob


class Dropped(NamedTuple):
    """A batch with the masks of an update's passes, a tensor for each hidden layer of W units.
    `policy` [2, 1, B, W]: at the states and at the next ones. `critic` [3, N, B, W]: of the N
    critics at the policy's actions, of their targets at the next states, and of the critics at the
    logged actions. Empty: no dropout."""

    batch: Batch
    policy: tuple[Tensor, ...] = ()
    critic: tuple[Tensor, ...] = ()


def draw_masks(
    shape: Sequence[int], widths: Sequence[int], rate: float, generator: Generator
) -> tuple[Tensor, ...]:
    """A mask [*shape, W] for each of `widths`: 0 with probability `rate`, else 1 / (1 - rate), so
    that its mean is 1. Nothing at a `rate` of 0."""
    if rate == 0:
        return ()
    draws = (
        torch.rand((*shape, width), generator=generator, device=generator.device)
        for width in widths
    )
    return tuple((draw >= rate) / (1 - rate) for draw in draws)


def masked_pass(
    weights: Sequence[Tensor], biases: Sequence[Tensor], x: Tensor, masks: Sequence[Tensor]
) -> Tensor:
    """`x` [B, in] through N ReLU networks, to [N, B, out]: each hidden layer is multiplied by its
    mask [N, B, W]. `weights` [N, in, out] and `biases` [N, 1, out] of each layer."""
    h = x.expand(weights[0].shape[0], *x.shape)
    for weight, bias, mask in zip(weights[:-1], biases[:-1], masks, strict=True):
        h = torch.baddbmm(bias, h, weight).relu() * mask
    return torch.baddbmm(biases[-1], h, weights[-1])


def masked_outputs(critic: EnsembleMLP, x: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """What the critics give [N, B, out] at `x` [B, in] under `masks`; plainly where there are
    none."""
    if not masks:
        return critic(x)
    return masked_pass([*critic.weights], [*critic.biases], critic.prepared(x), masks)


def masked_sample(
    policy: SquashedGaussianPolicy, obs: Tensor, noise: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """`policy.sample` under `masks` [1, B, W]: actions [B, A] in [-1, 1] and log pi [B]."""
    if not masks:
        return policy.sample(obs, noise)
    layers = [layer for layer in policy.net.layers if isinstance(layer, nn.Linear)]
    weights, biases = [la.weight.t()[None] for la in layers], [la.bias[None, None] for la in layers]
    out = masked_pass(weights, biases, policy.normaliser(obs), masks)[0]
    mean, log_std = out.chunk(2, -1)
    log_std = log_std.clamp(*policy.log_std_bounds)
    pre = mean + log_std.exp() * noise
    return torch.tanh(pre), squashed_log_prob(pre, noise, log_std)
