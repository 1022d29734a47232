"""The objective: advantages once for a batch, then a loss for every update on it."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes.step_size import effective_share
from mbrl.policy_gradient.groups import exp, group
from mbrl.policy_gradient.recipe import Recipe, Term
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Estimate:
    """Of every step its `advantage` [B, T] and its `weight` [B, T], 0 if it is not trained on."""

    advantage: Tensor
    weight: Tensor


@torch.no_grad()
def estimate(recipe: Recipe, t: Trajectories) -> Estimate:
    """Advantages and weights, 0 outside the mask. Raises `ConfigError` if `t` lacks a field that
    the recipe needs."""
    check_shapes(mask=(t.mask, "B T"), reward=(t.reward, "B T"))
    recipe.check(t)
    zero = torch.zeros_like(t.reward)
    weight = t.mask.to(t.reward.dtype)
    for option in recipe.sampling:
        weight = weight * option(zero, t)
    advantage, units = zero, zero.bool()
    for term in recipe.terms:
        value, counted = term_advantage(term, t, weight > 0)
        advantage, units = advantage + term.weight * value, units | counted
    for change in recipe.modulation:
        advantage = change(advantage, units, t)
    advantage = torch.where(t.mask & (weight > 0), advantage, zero)
    for option in recipe.selection:
        weight = weight * option(advantage, t)
    return Estimate(advantage, weight)


def term_advantage(term: Term, t: Trajectories, kept: Tensor) -> tuple[Tensor, Tensor]:
    """One term's advantages [B, T], statistics over units that are `kept` [B, T], and which steps
    these units are."""
    value = term.credit(term.reward(t), t)
    units = term.credit.units(t) & kept
    groups = group(t, term.key, units)
    centred = value - term.baseline(value, groups, t)
    return centred / term.scale(value, centred, groups, t), units


def loss(
    recipe: Recipe,
    log_prob: Tensor,
    t: Trajectories,
    estimates: Estimate,
    entropy: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """The loss, a scalar with gradients, of the current policy's `log_prob` [B, T] of the steps of
    `t`, whose old policy `estimates` the advantages. `entropy` [B, T] is the current policy's, for
    recipes with `needs_entropy`. Shapes are static and nothing is read back, so that it compiles.

    Raises `ValueError` for other shapes.

    A recipe's step size is not in the loss but in the metrics, `policy/step_size`: a factor of the
    learning rate (`step_size.at_rate`), for Adam divides what multiplies a loss out again.
    """
    check_shapes(
        mask=(t.mask, "B T"),
        log_prob=(log_prob, "B T"),
        entropy=(entropy, "B T"),
        advantage=(estimates.advantage, "B T"),
        weight=(estimates.weight, "B T"),
    )
    if recipe.needs_entropy and entropy is None:
        raise ConfigError(
            f"recipe {recipe.name} needs the current policy's entropy; give `entropy`"
        )
    if recipe.removes:
        t = dataclasses.replace(t, mask=t.mask & (estimates.weight > 0))
    log_prob = torch.where(t.mask, log_prob, torch.zeros_like(log_prob))
    log_ratio = recipe.ratio(log_prob, t)
    weight = estimates.weight
    for option in recipe.rejection:
        weight = weight * option(log_prob, estimates.advantage, t)
    gain = weight * recipe.gate(log_ratio, log_prob, estimates.advantage, t)
    total = -recipe.aggregation(gain, estimates.advantage, t)
    for extra in recipe.regularisers:
        penalty = extra(log_prob, entropy, estimates.advantage, t)
        total = total + recipe.aggregation(penalty, estimates.advantage, t)
    moved = recipe.ratio.steps(log_prob.detach(), t).sum(1)
    metrics = _metrics(total, log_ratio.detach(), moved, weight, t)
    if recipe.step_size is not None:
        still = (log_ratio.detach(), log_prob.detach())
        metrics["policy/step_size"] = recipe.step_size(*still, estimates.advantage, t)
    return total, metrics


def shuffled(recipe: Recipe, t: Trajectories, generator: torch.Generator) -> Tensor:
    """[B]: the sequences in a random order, for a pass in minibatches. Where the loss compares the
    answers to a prompt, they are neighbours."""
    device = generator.device
    if not recipe.whole_prompts:
        return torch.randperm(len(t.mask), generator=generator, device=device)
    prompts = t.groups["prompt"][:, 0].to(device)
    places = torch.randperm(int(prompts.max()) + 1, generator=generator, device=device)
    return torch.argsort(places[prompts], stable=True)


def _metrics(
    total: Tensor, log_ratio: Tensor, moved: Tensor, weight: Tensor, t: Trajectories
) -> Metrics:
    """`log_ratio` [B, T] as the gate sees it, `moved` [B] that of whole sequences."""
    steps = t.mask.sum().clamp_min(1)
    return {
        "policy/loss": total.detach(),
        "policy/ratio_max": exp(log_ratio.max()),
        "policy/log_ratio": log_ratio.abs().sum() / steps,
        "policy/effective_samples": effective_share(moved, t.mask.any(1)),
        "policy/kept": (weight.abs() > 0).sum() / steps,
    }
