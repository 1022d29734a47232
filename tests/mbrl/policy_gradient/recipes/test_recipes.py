"""Every recipe against an implementation with loops: loss and gradient, on random batches with
gaps, turns and edge groups (all right, all wrong, one alone)."""

import dataclasses

import pytest
import torch

from mbrl.policy_gradient import RECIPES, estimate, loss
from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases
from tests.mbrl.policy_gradient.recipes import (
    reference_advantages,
    reference_clipping,
    reference_domains,
    reference_foundations,
    reference_hints,
    reference_multi_turn,
    reference_off_policy,
    reference_selections,
)

PARTS = (
    reference_foundations,
    reference_advantages,
    reference_multi_turn,
    reference_selections,
    reference_off_policy,
    reference_clipping,
    reference_hints,
    reference_domains,
)
BINARY = {"bnpo", "gdpo_conditioned", "ngrpo"}  # whose slow form is for rewards of 0 and 1
SLOW = {name: slow for part in PARTS for name, slow in part.SLOW.items()}


def test_every_recipe_has_a_slow_implementation() -> None:
    assert set(RECIPES) == set(SLOW)


@pytest.mark.parametrize("spread", [0.02, 0.3, 1.5])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_loss_and_gradient_equal_the_slow_ones(name: str, spread: float) -> None:
    for seed in range(2):
        compare(name, *cases.batch(seed, spread))


@pytest.mark.parametrize("name", sorted(set(RECIPES) - BINARY))
def test_also_with_rewards_at_every_step(name: str) -> None:
    """Of both signs, and NaN where the policy chose nothing."""
    for seed in range(2):
        t, log_prob, entropy = cases.batch(seed)
        drawn = torch.randn(t.mask.shape, generator=torch.Generator().manual_seed(seed))
        reward = torch.where(t.mask, t.reward + 0.5 * drawn.double(), torch.nan)
        compare(name, dataclasses.replace(t, reward=reward), log_prob, entropy)


def compare(name: str, t: Trajectories, log_prob: torch.Tensor, entropy: torch.Tensor) -> None:
    found, metrics = loss(RECIPES[name], log_prob, t, estimate(RECIPES[name], t), entropy)
    # A plain gradient step of a smaller size is one on a smaller loss.
    found = found * metrics.get("policy/step_size", 1.0)
    expected = SLOW[name](cases.sequences(t, log_prob, entropy))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for variable in (log_prob, entropy):
        given, wanted = (
            torch.autograd.grad(
                value, variable, retain_graph=True, allow_unused=True, materialize_grads=True
            )[0]
            if value.requires_grad
            else torch.zeros_like(variable)
            for value in (found, expected)
        )
        torch.testing.assert_close(given, wanted, rtol=1e-8, atol=1e-11)
