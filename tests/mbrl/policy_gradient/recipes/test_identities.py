"""What the papers say their estimators become in special cases, and what the gradient estimates."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mbrl.policy_gradient import RECIPES, Recipe, estimate, loss
from mbrl.policy_gradient.axes.gate import Clip, DetachedClip
from mbrl.policy_gradient.axes.ratio import GeometricRatio, PrefixMinimumRatio, ProductRatio
from mbrl.policy_gradient.axes.step_size import at_rate
from mbrl.policy_gradient.groups import Group
from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases


def cut(t: Trajectories, steps: int) -> Trajectories:
    """Only the first `steps` positions."""
    values = {}
    for field in dataclasses.fields(t):
        value = getattr(t, field.name)
        if isinstance(value, dict):
            values[field.name] = {k: v[:, :steps] for k, v in value.items()}
        else:
            values[field.name] = None if value is None else value[:, :steps]
    return Trajectories(**values)


def gradient(recipe: Recipe, t: Trajectories, log_prob: Tensor) -> Tensor:
    value, _ = loss(recipe, log_prob, t, estimate(recipe, t))
    return torch.autograd.grad(value, log_prob)[0]


def test_gspo_with_one_token_is_grpo() -> None:
    t, log_prob, _ = cases.batch(0)
    t, log_prob = cut(t, 1), log_prob[:, :1].detach().requires_grad_()
    t.reward.copy_((torch.arange(len(t.reward)) % 2)[:, None])
    gspo = dataclasses.replace(RECIPES["gspo"], gate=Clip(0.04, 0.04))
    grpo = dataclasses.replace(RECIPES["grpo"], gate=Clip(0.04, 0.04), regularisers=())
    torch.testing.assert_close(gradient(gspo, t, log_prob), gradient(grpo, t, log_prob))


def test_gspo_token_has_the_value_of_gspo_and_its_gradient_at_equal_advantages() -> None:
    t, log_prob, _ = cases.batch(1, 1e-4)
    values = [loss(RECIPES[n], log_prob, t, estimate(RECIPES[n], t))[0] for n in NAMES]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(gradient(RECIPES[n], t, log_prob) for n in NAMES))


NAMES = ("gspo", "gspo_token")


def test_minpro_without_drift_weighs_every_step_one() -> None:
    t, _, _ = cases.batch(2)
    log_prob = t.log_probs["old"].clone().requires_grad_()
    assert float(PrefixMinimumRatio()(log_prob, t).abs().max()) == 0.0
    cispo, minpro = RECIPES["cispo"], RECIPES["minpro"]
    torch.testing.assert_close(gradient(cispo, t, log_prob), gradient(minpro, t, log_prob))


def test_minpro_is_the_exact_weight_where_only_one_earlier_step_moved() -> None:
    t, _, _ = cases.batch(3)
    t.mask[:] = True
    old = torch.full_like(t.reward, -1.0)
    t.log_probs["old"] = old
    moved = old.clone()
    moved[:, 1] -= 0.7
    exact = (moved - old).cumsum(1)
    torch.testing.assert_close(PrefixMinimumRatio()(moved, t)[:, 1:], exact[:, 1:])


def test_topr_limits() -> None:
    """On data of the current policy TOPR is REINFORCE; where the policy left wrong answers behind,
    these do not count; right ones count fully wherever it went."""
    t, _, _ = cases.batch(4)
    still = t.log_probs["behaviour"].clone().requires_grad_()
    right = (t.reward.sum(1) > 0)[:, None]
    sign = torch.where(right, 1.0, -1.0) * t.mask / len(t.mask)
    torch.testing.assert_close(-gradient(RECIPES["topr"], t, still), sign.double())
    gone = (t.log_probs["behaviour"] - 30).requires_grad_()
    wanted = torch.where(right, sign, 0.0).double()
    torch.testing.assert_close(-gradient(RECIPES["topr"], t, gone), wanted, atol=1e-9, rtol=0)


def test_taper_with_both_sides_open_is_importance_sampling() -> None:
    t, log_prob, _ = cases.batch(5)
    open_wide = DetachedClip(low=None, high=math.inf)
    log_ratio = ProductRatio("behaviour")(log_prob, t)
    advantage = torch.randn_like(log_ratio)
    gain = open_wide(log_ratio, log_prob.nan_to_num(), advantage, t)
    mine = torch.autograd.grad(gain.sum(), log_prob, retain_graph=True)[0]
    torch.testing.assert_close(mine, (log_ratio.exp() * advantage * t.mask).detach())


def test_one_sided_mask_has_ppos_gradient() -> None:
    """Leaving steps out and clipping are one thing for the gradient, ratio included."""
    t, log_prob, _ = cases.batch(6, 1.0)
    ppo = dataclasses.replace(RECIPES["lite_ppo"], terms=RECIPES["rec_one_side"].terms)
    torch.testing.assert_close(
        gradient(RECIPES["rec_one_side"], t, log_prob), gradient(ppo, t, log_prob)
    )


def test_decoupled_ppo_is_ppo_when_all_policies_are_one() -> None:
    t, log_prob, _ = cases.batch(7)
    t.log_probs["proximal"] = t.log_probs["behaviour"] = t.log_probs["old"]
    grpo = dataclasses.replace(RECIPES["grpo"], regularisers=(), aggregation=AREAL.aggregation)
    torch.testing.assert_close(gradient(AREAL, t, log_prob), gradient(grpo, t, log_prob))


AREAL = RECIPES["areal"]


def test_hybrid_at_its_ends_is_each_branch() -> None:
    t, log_prob, _ = cases.batch(8)
    base = RECIPES["dhpo"]
    for alpha, ratio in ((1.0, RECIPES["grpo"].ratio), (0.0, GeometricRatio())):
        gate = dataclasses.replace(base.gate, alpha=alpha)
        mixed = dataclasses.replace(base, gate=gate)
        single = dataclasses.replace(
            base, ratio=ratio, gate=Clip(0.2, 0.28) if alpha else Clip(3e-4, 4e-4)
        )
        torch.testing.assert_close(gradient(mixed, t, log_prob), gradient(single, t, log_prob))


def test_leave_one_out_is_unbiased_and_the_groups_own_mean_shrinks_the_gradient() -> None:
    """A bandit with two arms and a softmax: the exact gradient against means over all draws of
    groups of two, weighted by their probability. "Back to Basics", arXiv 2402.14740."""
    theta = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    pay = torch.tensor([1.0, 0.2], dtype=torch.float64)
    exact = torch.autograd.grad((theta.softmax(0) * pay).sum(), theta)[0]
    for name, factor in (("rloo", 1.0), ("dr_grpo", 0.5)):
        recipe = dataclasses.replace(
            RECIPES["rloo"], terms=RECIPES[name].terms, name=f"{name}_bandit"
        )
        total = torch.zeros_like(theta)
        for arms in ((0, 0), (0, 1), (1, 0), (1, 1)):
            arm = torch.tensor(arms)[:, None]
            log_prob = theta.log_softmax(0)[arm]
            t = bandit(pay[arm])
            value, _ = loss(recipe, log_prob, t, estimate(recipe, t))
            chance = theta.detach().softmax(0)[arm].prod()
            total = total - chance * torch.autograd.grad(value, theta)[0]
        torch.testing.assert_close(total, factor * exact)


def bandit(reward: Tensor) -> Trajectories:
    none = torch.zeros(*reward.shape, 0)
    ends = torch.ones_like(reward, dtype=torch.bool)
    return Trajectories(
        none,
        torch.zeros_like(reward),
        reward,
        none,
        ends,
        ~ends,
        ends,
        log_probs={"old": torch.zeros_like(reward)},
        groups={"prompt": torch.zeros_like(reward, dtype=torch.int64)},
    )


def test_least_variance_baseline_has_the_least_variance() -> None:
    """Over a grid of constants b the second moment of w |g| (R - b) is least at the option's."""
    t, _, _ = cases.batch(9)
    recipe = RECIPES["vcpo"]
    term = recipe.terms[0]
    value = term.credit(t.reward, t)
    units = term.credit.units(t)
    rows = Group(torch.zeros_like(t.mask, dtype=torch.int64), units)
    chosen = float(term.baseline(value, rows, t)[0, 0])
    moved = torch.where(t.mask, t.log_probs["old"] - t.log_probs["behaviour"], 0.0).sum(1)
    norm = t.signals["gradient_norm_squared"][:, 0]
    total = t.reward.sum(1)

    def moment(b: float) -> float:
        return float(((2 * moved).exp() * norm * (total - b) ** 2).sum())

    grid = torch.linspace(-1, 2, 3001, dtype=torch.float64)
    best = float(grid[torch.tensor([moment(float(b)) for b in grid]).argmin()])
    assert chosen == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_size_shortens_the_step_of_any_optimiser(optimiser: Any) -> None:
    """Adam takes no notice of a factor of the loss."""
    moved = []
    for metrics in ({}, {"policy/step_size": torch.tensor(0.25)}):
        weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
        made = optimiser([weight], lr=0.1)
        (weight**2).sum().backward()
        with at_rate(made, metrics):
            made.step()
        moved.append(weight.detach() - torch.tensor([1.0, -2.0, 0.5]).double())
        assert made.param_groups[0]["lr"] == 0.1
    assert torch.allclose(moved[1], 0.25 * moved[0])


def test_effective_samples_are_all_of_them_for_equal_weights() -> None:
    t, _, _ = cases.batch(10)
    step_size = RECIPES["vcpo"].step_size
    assert step_size is not None
    zero = torch.zeros_like(t.reward)
    assert float(step_size(zero, t.log_probs["behaviour"], zero, t)) == pytest.approx(1.0)
    lone = t.log_probs["behaviour"].clone()
    lone[0, 0] += 500.0  # one sequence has all the weight: 1 of n samples counts
    share = float(step_size(zero, lone, zero, t))
    assert share == pytest.approx((1 / len(t.mask)) ** 0.5)
