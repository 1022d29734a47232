"""What the papers of baselines, credit and selections state about their estimators."""

import math
from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from torch import Tensor

from mbrl.policy_gradient import RECIPES, Term, estimate, loss
from mbrl.policy_gradient.axes import aggregation, baseline, gate, scale
from mbrl.policy_gradient.axes.credit import NestedGroups, TokenWeighted
from mbrl.policy_gradient.axes.credit_hierarchical import HierarchicalGAE
from mbrl.policy_gradient.axes.gate import Discriminative
from mbrl.policy_gradient.axes.gate_adaptive import EntropyClip, InformativeClip
from mbrl.policy_gradient.axes.modulation import potential
from mbrl.policy_gradient.axes.reward import ByOutcome, StepSignal, TaskReward
from mbrl.policy_gradient.recipe import Recipe
from mbrl.policy_gradient.recipes import TABLES
from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases

MINE = [r for name in ("advantages", "multi_turn", "selections") for r in TABLES[name]]


def answers(rewards: list[list[float]], steps: int = 1) -> Trajectories:
    """One group of sequences for every list of outcomes, in float64."""
    flat = torch.tensor([r for group in rewards for r in group], dtype=torch.float64)
    prompt = torch.tensor([i for i, group in enumerate(rewards) for _ in group])
    shape = (len(flat), steps)
    zero = torch.zeros(shape, dtype=torch.float64)
    reward = zero.clone()
    reward[:, -1] = flat
    return Trajectories(
        obs=torch.zeros(*shape, 0),
        action=torch.zeros(shape, dtype=torch.int64),
        reward=reward,
        next_obs=torch.zeros(*shape, 0),
        terminated=zero.bool(),
        truncated=zero.bool(),
        mask=torch.ones(shape, dtype=torch.bool),
        log_probs={"old": zero, "reference": zero},
        groups={"prompt": prompt[:, None].expand(shape)},
        segments={"turn": torch.arange(steps).expand(shape)},
    )


@pytest.mark.parametrize("size", [3, 7, 8, 16])
@pytest.mark.parametrize(
    "baseline",
    [baseline.Mean(), baseline.LeaveOneOut(), baseline.Median(), baseline.LengthWeighted()],
)
def test_equal_rewards_leave_nothing_in_single_precision(
    baseline: baseline.Baseline, size: int
) -> None:
    """A rounding error over a deviation of 1e-6 would be an advantage; none is to be left."""
    for reward in (0.7, 37.3, 1e-3, 12345.6):
        t = answers([[reward] * size, [0.0, 1.0]], steps=2)
        t = t.map(lambda x: x.float() if x.is_floating_point() else x)
        found = estimate(Recipe("equal", "Equal rewards", terms=(Term(baseline=baseline),)), t)
        assert not found.advantage[:size].any()


def test_bnpo_is_reinforce_with_a_mean_or_grpo_at_its_two_densities() -> None:
    p = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    one, half = torch.ones_like(p), torch.full_like(p, 1.5)
    torch.testing.assert_close(scale.beta_density(p, one, one), one)
    deviation = (p * (1 - p)).sqrt()
    torch.testing.assert_close(scale.beta_density(p, half, half), deviation * 8 / math.pi)


def test_bnpo_fits_the_first_two_moments() -> None:
    mean, variance = torch.tensor(0.3), torch.tensor(0.02)
    alpha, beta = scale.beta_parameters(mean, variance)
    a, b = 3 * (alpha - 1), 3 * (beta - 1)
    torch.testing.assert_close(a / (a + b), mean)
    torch.testing.assert_close(a * b / ((a + b) ** 2 * (a + b + 1)), variance)
    # More spread than any Beta law with a mode has: alpha = beta = 1, no scaling.
    wide = scale.beta_parameters(torch.tensor(0.5), torch.tensor(0.25))
    assert [float(x) for x in wide] == [1.0, 1.0]


def paid(first: int, second: int) -> tuple[float, float]:
    """Rewards of two turns with two actions each."""
    return (1.0, 0.3)[first], (0.2, 0.9)[second] * (1.0, 2.0)[first]


def expected_gradient(recipe: Recipe, logits: Tensor, n: int) -> Tensor:
    """Of minus the loss over all ways in which n sequences of two turns can come out."""
    log_pi = logits.log_softmax(1)
    outcomes = list(product((0, 1), (0, 1)))
    total = torch.zeros_like(logits)
    for chosen in product(outcomes, repeat=n):
        t = answers([[0.0] * n], steps=2)
        t = replace(t, reward=torch.tensor([paid(*c) for c in chosen], dtype=torch.float64))
        log_prob = torch.stack([torch.stack([log_pi[0, a], log_pi[1, b]]) for a, b in chosen])
        t.log_probs["old"] = log_prob.detach()
        value, _ = loss(recipe, log_prob, t, estimate(recipe, t))
        found = torch.autograd.grad(-value, logits, retain_graph=True)[0]
        total = total + log_prob.detach().sum().exp() * found
    return total


def test_leaving_one_out_by_turn_is_unbiased_and_a_groups_mean_scales_it() -> None:
    logits = torch.tensor([[0.3, -0.2], [0.1, 0.5]], dtype=torch.float64, requires_grad=True)
    pi = logits.softmax(1)
    value = sum(
        (pi[0, a] * pi[1, b] * sum(paid(a, b)) for a, b in product((0, 1), repeat=2)),
        torch.zeros((), dtype=torch.float64),
    )
    exact = torch.autograd.grad(value, logits)[0]
    n, trloo = 3, RECIPES["trloo"]
    torch.testing.assert_close(expected_gradient(trloo, logits, n), exact)
    mean = replace(trloo, terms=(replace(trloo.terms[0], baseline=baseline.Mean()),))
    torch.testing.assert_close(expected_gradient(mean, logits, n), (1 - 1 / n) * exact)


def test_ngrpo_pushes_down_all_of_a_wrong_group_and_none_of_a_right_one() -> None:
    found = estimate(RECIPES["ngrpo"], answers([[0, 0, 0], [1, 1, 1], [1, 0, 0]])).advantage[:, 0]
    assert (found[:3] < 0).all()
    torch.testing.assert_close(found[3:6], torch.zeros(3, dtype=torch.float64))
    assert found[6] > 0 > found[7]


def test_gigpo_without_its_step_part_is_grpo_of_episodes() -> None:
    t, log_prob, _ = cases.batch(0)
    gigpo = RECIPES["gigpo"]
    alone = replace(gigpo, terms=(gigpo.terms[0], replace(gigpo.terms[1], weight=0.0)))
    grpo = replace(
        RECIPES["grpo"],
        terms=(Term(baseline=baseline.Mean("keep"), scale=scale.Std(1e-6, alone="one")),),
        aggregation=aggregation.TokenMean(),
        regularisers=gigpo.regularisers,
    )
    values = [loss(r, log_prob, t, estimate(r, t))[0] for r in (alone, grpo)]
    torch.testing.assert_close(*values)


def test_hgpo_with_one_key_is_the_step_part_of_gigpo() -> None:
    t, _, _ = cases.batch(1)
    nested = Term(credit=NestedGroups(("state",)), baseline=baseline.Zero(), scale=scale.One())
    one = replace(RECIPES["hgpo"], terms=(nested,))
    term = replace(RECIPES["gigpo"].terms[1], scale=scale.Std(1e-6, "one", correction=0))
    two = replace(RECIPES["gigpo"], terms=(term,))
    torch.testing.assert_close(estimate(one, t).advantage, estimate(two, t).advantage)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.0, 0, 0, 0, 1], [0.0, 0, 0, 0, 1000]),
        ([0.0, 0, 0, 1, 1], [0.0, 0, 0, 1000, 1000]),
        ([0.0, 0, 1, 1, 1], [-1000.0, -1000, 0, 0, 0]),
        ([0.0, 0.2, 0.5, 0.7, 1.0], [-0.5 / 0.301, -0.3 / 0.301, 0, 0.2 / 0.301, 0.5 / 0.301]),
        ([0.0, 0.2, 0.5, 1.0], [-0.2 / 0.201, 0, 0.3 / 0.201, 0.8 / 0.201]),
    ],
)
def test_mc_grpo_leaves_one_median_answer_out(rewards: list[float], expected: list[float]) -> None:
    t = answers([rewards])
    recipe = RECIPES["mc_grpo"]
    found = estimate(recipe, t)
    assert found.advantage[:, 0].tolist() == pytest.approx(expected)
    left_out = (found.weight[:, 0] == 0).nonzero().flatten().tolist()
    assert len(left_out) == 1 and found.advantage[left_out[0], 0] == 0
    assert set(found.weight[:, 0].tolist()) == {0.0, 1.0}
    zero = torch.zeros_like(t.reward)
    t = replace(t, log_probs={"old": zero, "reference": zero - 1})
    value, _ = loss(recipe, zero, t, found)  # a ratio of 1, d = 1: the mean is over the others
    others = len(rewards) - 1
    assert value.item() == pytest.approx(-sum(expected) / others + 0.04 * math.exp(-1))


def test_w_reinforce_is_a_tenth_of_psr_plus_nsr() -> None:
    t, log_prob, _ = cases.batch(2, spread=1.0)
    psr, nsr, both = (
        loss(RECIPES[n], log_prob, t, estimate(RECIPES[n], t))[0]
        for n in ("psr", "nsr", "w_reinforce")
    )
    torch.testing.assert_close(both, 0.1 * psr + nsr)


def test_fapo_turns_against_flawed_answers_once_most_are_right() -> None:
    few, many = [1.0, 0, 0, 0, 0], [1.0, 1, 1, 1, 0]
    t = answers([few, many])
    flawed = torch.zeros_like(t.reward)
    flawed[0], flawed[5] = 1, 1
    found = estimate(RECIPES["fapo"], replace(t, signals={"flawed": flawed})).advantage[:, 0]
    assert found[0] > 0 > found[5]


def test_the_shares_of_a_paper_sum_to_its_advantage() -> None:
    t = answers([[1, 0, 0.5], [0, 1, 1.0]])
    shape = t.mask.shape
    t.groups["bundle"] = torch.zeros(shape, dtype=torch.int64)
    t.groups["paper"] = torch.tensor([0, 1, 2, 0, 1, 2])[:, None]
    for name, value in (("quantile_low", 0.8), ("quantile_high", 1.6)):
        t.signals[name] = torch.full(shape, value, dtype=torch.float64)
    found = estimate(RECIPES["riskpo"], t).advantage[:, 0].view(2, 3).sum(0)
    scores = torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64)
    middle = ((scores - 0.8).clamp_min(0) - (scores - 1.6).clamp_min(0)) / 0.6
    tail = -(0.8 - scores).clamp_min(0) / 0.2
    torch.testing.assert_close(found, (1.5 * tail + middle) / 2.5 / scores.std(), rtol=1e-4, atol=0)


def test_entropy_and_information_leave_the_clip_alone_where_all_are_alike() -> None:
    t, log_prob, entropy = cases.batch(0, spread=1.5)
    t = replace(t, entropy=torch.ones_like(t.reward))
    base = RECIPES["grpo"]
    for special, plain in (
        (EntropyClip(), gate.Clip(dual=10.0)),
        (InformativeClip(StepSignal("information_gain"), width=0.0), gate.Clip()),
    ):
        found, expected = (
            loss(r, log_prob, t, estimate(r, t), entropy)[0]
            for r in (replace(base, gate=special), replace(base, gate=plain))
        )
        torch.testing.assert_close(found, expected)


def test_token_weights_of_equal_lengths_are_the_groups_z_scores() -> None:
    t = answers([[1, 0, 0, 1.0], [0, 0, 1.0]], steps=3)
    found = TokenWeighted()(t.reward, t)
    centred = t.reward.sum(1) - torch.tensor([0.5] * 4 + [1 / 3] * 3, dtype=torch.float64)
    std = torch.tensor([0.5] * 4 + [math.sqrt(2) / 3] * 3, dtype=torch.float64)
    torch.testing.assert_close(found[:, 0], centred / (std + 1e-6))


def test_one_option_is_a_return_less_its_value() -> None:
    t, _, _ = cases.batch(3)
    t = replace(t, terminated=t.terminated | t.truncated, truncated=torch.zeros_like(t.truncated))
    t.segments["option"] = torch.zeros_like(t.segments["turn"])
    t.signals.update({name: torch.zeros_like(t.reward) for name in ("subgoal", "switch")})
    found = HierarchicalGAE(normalise=False)(t.reward, t)
    for b in range(len(t.mask)):
        steps = t.mask[b].nonzero()[:, 0]
        for i in steps:
            own = t.segments["turn"][b] == t.segments["turn"][b, i]
            first = (own & t.mask[b]).nonzero()[0, 0]
            later = t.reward[b][steps[steps >= first]].sum()
            torch.testing.assert_close(found[b, i], later - t.signals["value"][b, first])


@pytest.mark.parametrize("longest", [7.0, 8192.0])
def test_a_discriminative_gain_moves_as_much_up_as_down(longest: float) -> None:
    t, log_prob, _ = cases.batch(4)
    recipe = replace(
        RECIPES["drpo_decoupled"], gate=Discriminative(longest=longest), regularisers=()
    )
    advantage = estimate(recipe, t).advantage
    gain = recipe.gate(torch.zeros_like(log_prob), log_prob.nan_to_num(), advantage, t)
    right = (advantage > 0)[:, 0]
    for prompt in range(5):
        rows = t.groups["prompt"][:, 0] == prompt
        value = gain[rows][0, 0]
        found = torch.autograd.grad(value, log_prob, retain_graph=True)[0].sum(1)
        mixed = bool((rows & right).any()) and bool((rows & ~right).any())
        torch.testing.assert_close(
            (found[rows & right].sum(), found[rows & ~right].sum()),
            tuple(torch.tensor((1.0, -1.0), dtype=torch.float64) * mixed),
        )
        if mixed:  # of right answers those with fewer steps weigh more
            lengths, shares = t.lengths[rows & right], found[rows & right]
            assert (shares[lengths.argsort()].diff() <= 1e-12).all()


def test_a_step_potential_is_between_sure_and_wrong_and_sure_and_right() -> None:
    corners = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    found = potential(corners[:, 0], corners[:, 1])
    assert found.tolist() == [1.0, -1.0, 0.0, 0.5]


def test_a_reward_by_outcome_is_paid_once() -> None:
    t, _, _ = cases.batch(0)
    wrong = TaskReward()(t).sum(1) == 0
    torch.testing.assert_close(
        ByOutcome(2.0, -3.0)(t).sum(1), torch.where(wrong, -3.0, 2.0).double()
    )


def single(t: Trajectories) -> Trajectories:
    """In float32."""

    def cast(value: object) -> object:
        if isinstance(value, dict):
            return {k: cast(v) for k, v in value.items()}
        if isinstance(value, Tensor) and value.dtype == torch.float64:
            return value.float()
        return value

    return replace(t, **{f.name: cast(getattr(t, f.name)) for f in fields(t)})


@pytest.mark.parametrize("away", [-50.0, 50.0])
def test_losses_and_gradients_are_finite_far_from_the_old_policy(away: float) -> None:
    t, log_prob, entropy = cases.batch(0)
    t = single(t)
    far = (log_prob.detach() + away).float().requires_grad_()
    for recipe in MINE:
        value, _ = loss(recipe, far, t, estimate(recipe, t), entropy.detach().float())
        assert value.dtype == torch.float32 and value.isfinite(), recipe.name
        gradient = torch.autograd.grad(value, far)[0]
        assert gradient.isfinite().all(), recipe.name


@pytest.mark.parametrize("name", ["drpo_decoupled", "hapo_token_aware", "a2tgpo"])
def test_losses_compile_to_one_graph(name: str) -> None:
    t, log_prob, entropy = cases.batch(0)
    recipe = RECIPES[name]
    found = estimate(recipe, t)

    def value(log_prob: Tensor) -> Tensor:
        return loss(recipe, log_prob, t, found, entropy)[0]

    compiled = torch.compile(value, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(log_prob), value(log_prob))
