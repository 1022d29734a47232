"""Advantages and losses of groups: trees, single steps, low precision, stored samples."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from algorithms.diffusion_rl import branches, preferences, singular
from algorithms.diffusion_rl.chains import Fixed
from algorithms.diffusion_rl.quantised import extremes, quantised, rounded
from tests.algorithms.diffusion_rl.linear import SIGMAS, Constant, normal
from world_models.trajectory_diffusion import precondition

NETWORK = Constant(2, 0.3).requires_grad_(False)


def denoise(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    return precondition(NETWORK, x, sigma)


class Draws:
    """Draws that remember how many were asked for."""

    def __init__(self) -> None:
        self.generator, self.sizes = torch.Generator().manual_seed(2), []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        return torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


def test_a_tree_shares_what_lies_before_a_split() -> None:
    draw, fixed = Draws(), Fixed(torch.tensor([True, False]), normal(3, 2, seed=4))
    leaves, depths = branches.grow(denoise, normal(3, 2), SIGMAS, 0.7, (0, 2), draw, fixed)
    assert draw.sizes == [6, 6, 12, 12, 12, 12] and len(leaves) == 12
    assert [len(d.x) for d in depths] == [6, 6, 12, 12, 12]
    assert torch.equal(leaves[:, 0], fixed.values[:, 0].repeat_interleave(4))
    first, third = depths[0], depths[2]
    assert torch.equal(first.x[0], first.x[1]) and not torch.equal(first.x[0], first.x[2])
    assert torch.equal(third.x[::2], third.x[1::2])  # siblings begin alike
    assert not torch.equal(third.reached[0], third.reached[1])
    assert torch.equal(third.x[::2], depths[1].reached)  # where their parent ended


def test_nodes_are_worth_their_leaves() -> None:
    """Rewards 1, 0, 0, 0 of two levels of two, by hand; a second tree in which all are alike."""
    reward = torch.tensor([[1.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    root, inner, leaves = branches.node_advantages(reward, [1, 2, 4])
    assert not root.any()
    torch.testing.assert_close(inner[0], torch.tensor([0.5, -0.5]) / 0.125**0.5 * 0.5)
    torch.testing.assert_close(leaves[0], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    assert not inner[1].any() and not leaves[1].any()
    _, inner, _ = branches.node_advantages(torch.tensor([[1.0, 0.0, 0.6, 0.4]]), [1, 2, 4])
    assert not inner.any()  # both nodes are worth a half: a mean, not the best leaf


def test_one_noise_decides_where_one_step_draws() -> None:
    """The reward is a linear function of the sample and the chain is linear, so that rewards of a
    group follow the drawn noise exactly."""
    draw = Draws()
    states = singular.anchor(denoise, normal(1, 2), SIGMAS)
    index = torch.zeros(8, dtype=torch.int64)
    x, moves = singular.spread_from(denoise, states[2][index], SIGMAS[2], SIGMAS[3], 0.7, draw)
    assert torch.equal(moves.x[0], moves.x[7]) and torch.equal(moves.x[0], states[2][0])
    for granularity in (1, 2):
        end = singular.finished(denoise, x, SIGMAS[3:], granularity)
        both = torch.stack([end[:, 0], moves.reached[:, 0]])
        assert float(torch.corrcoef(both)[0, 1]) == pytest.approx(1.0, abs=1e-9)
    with pytest.raises(ValueError, match="draws nothing"):
        singular.spread_from(denoise, x, SIGMAS[5], SIGMAS[6], 0.7, draw)


def test_an_anchor_goes_on_as_it_is_finished() -> None:
    """And every second level leaves out the others but never the last."""
    noise, seen = normal(3, 2), []

    def watched(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        seen.append(float(sigma[0]))
        return denoise(x, sigma)

    states = singular.anchor(watched, noise, SIGMAS)
    end = singular.finished(watched, states[2], SIGMAS[2:], 1)
    torch.testing.assert_close(end, states[-1])
    seen.clear()
    singular.finished(watched, states[1], SIGMAS[1:], 2)
    assert seen == pytest.approx([SIGMAS[1], SIGMAS[3], SIGMAS[5]])


def test_scores_of_a_group() -> None:
    reward = torch.tensor([[1.0, 2.0, 6.0]])
    right = torch.tensor([[-2.0, -1.0, 3.0]]) / 7.0**0.5
    torch.testing.assert_close(singular.group_scores(reward), right)


@pytest.mark.parametrize("value", [0.1, 777.7, -1234.567, 12345.678])
def test_equal_rewards_have_no_advantage_however_their_mean_is_rounded(value: float) -> None:
    for count in (3, 6, 7, 8):
        assert not singular.group_scores(torch.full((2, count), value)).any()
        for advantage in branches.node_advantages(torch.full((2, 2 * count), value), [2, count]):
            assert not advantage.any()


def test_weights_of_few_bits() -> None:
    """Three bits: -3 to 3 thirds of the largest of an output."""
    weight = torch.tensor([[3.0, 1.4, -0.4], [0.6, -0.6, 0.21]])
    right = torch.tensor([[3.0, 1.0, 0.0], [0.6, -0.6, 0.2]])
    torch.testing.assert_close(rounded(weight, 3), right)
    layer = torch.nn.Linear(5, 4)
    fine, coarse = quantised(layer, 20), quantised(layer, 2)
    torch.testing.assert_close(fine.weight, layer.weight, rtol=1e-4, atol=1e-6)
    assert len(coarse.weight.unique()) <= 9 and torch.equal(coarse.bias, layer.bias)


def test_the_best_and_the_worst_are_kept() -> None:
    reward = torch.tensor([[0.1, 0.9, 0.5, 0.3, 0.7]])
    assert extremes(reward, 2, 1).tolist() == [[1, 4, 0]]


@pytest.mark.parametrize("beta", [1.0, 50.0])
def test_two_samples_and_hard_labels_are_diffusion_dpo(beta: float) -> None:
    """-log sigmoid(-beta ((e_w - ref_w) - (e_l - ref_l))), arXiv 2311.12908, eq. 14."""
    error, reference = normal(6, 2).abs(), normal(6, 2, seed=1).abs()
    reward = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(6, 1)
    found = preferences.group_loss(error, reference, reward, beta, tau=1e-3)
    gap = (error - reference)[:, 0] - (error - reference)[:, 1]
    torch.testing.assert_close(found, -logsigmoid(-beta * gap).mean())


def test_the_loss_of_groups_at_the_reference() -> None:
    """log G, with a gradient of beta (p - 1 / G); rewards and errors may be shifted; groups of
    equal rewards ask for nothing."""
    reference, reward = normal(1, 4).abs(), normal(1, 4, seed=1)
    error = reference.clone().requires_grad_()
    value = preferences.group_loss(error, reference, reward, 3.0, 0.5)
    assert value.item() == pytest.approx(torch.tensor(4.0).log().item())
    (gradient,) = torch.autograd.grad(value, error)
    wanted = (reward / (0.5 * reward.std())).softmax(1)
    torch.testing.assert_close(gradient, 3.0 * (wanted - 0.25))
    moved = preferences.group_loss(error + 2.0, reference, reward - 5.0, 3.0, 0.5)
    torch.testing.assert_close(moved, value)
    both = [torch.cat([t, t]) for t in (error, reference)]
    same = torch.cat([reward, torch.ones_like(reward)])
    torch.testing.assert_close(preferences.group_loss(*both, same, 3.0, 0.5), value)
    small = preferences.group_loss(error, reference, 1e-8 * reward, 3.0, 0.5)
    torch.testing.assert_close(small, value)


def test_rewards_far_from_zero_keep_their_digits() -> None:
    near = torch.tensor([[1.0, 2.0, 6.0, 5.0]])
    error, reference = torch.tensor([[0.3, 0.1, 0.2, 0.5]]), torch.full((1, 4), 0.2)
    for far in (near + 1e6, near - 1e6):  # exact in float32
        a, b = (preferences.weighted_error(error, r, 0.3) for r in (far, near))
        torch.testing.assert_close(a, b)
        a, b = (preferences.group_loss(error, reference, r, 3.0, 0.3) for r in (far, near))
        torch.testing.assert_close(a, b)


def test_errors_weighted_by_reward() -> None:
    """Rewards 0 and 1 have a sample deviation of 0.707; with tau 0.707 the odds are e^2."""
    error, reward = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])
    value = preferences.weighted_error(error, reward, 0.5**0.5)
    torch.testing.assert_close(value, 1.0 + torch.tensor(2.0).sigmoid())


def test_depths_left_out_slide_towards_the_noise_down_to_the_last_split() -> None:
    """The authors' example: depths 15 to 18, splits up to 9, a step every 30 rounds."""
    splits, depths = (0, 3, 6, 9), (15, 16, 17, 18)
    for rounds, first in ((0, 15), (29, 15), (30, 14), (95, 12), (180, 9), (10_000, 9)):
        got = branches.depths_left_out(depths, splits, rounds, 30)
        assert got == {first, first + 1, first + 2, first + 3}
    assert branches.depths_left_out(depths, splits, 500, 0) == set(depths)
    assert branches.depths_left_out((), splits, 500, 30) == set()


def test_width_keeps_by_hand() -> None:
    """Two trees with one split before step 1, three steps after it, the last of which is not among
    them as it draws nothing: nodes by hand."""
    leaf = torch.tensor([[2.0, -1.0], [0.5, -3.0]])
    advantages = [torch.zeros(2, 1), leaf, leaf, leaf, leaf]
    everything = branches.kept_in_width(advantages, (1,), "all", 0.5)
    assert all(bool(mask.all()) for mask in everything)
    best = branches.kept_in_width(advantages, (1,), "best", 0.7)
    assert [bool(mask.all()) for mask in best] == [True, True, True, True, False]
    assert not bool(best[4].any())  # int(0.7 * 3) = 2 of 3 steps, the first, in each branch
    assert [int(m.sum()) for m in branches.kept_in_width(advantages, (1,), "best", 0.1)] == [
        *(2, 4, 4, 0, 0)
    ]
    # Of 12 late steps: the three of 2.0 and the three of -3.0.
    ends = branches.kept_in_width(advantages, (1,), "extremes", 0.5)
    assert bool(ends[0].all()) and bool(ends[1].all())
    for mask in ends[2:]:
        assert mask.tolist() == [[True, False], [False, True]]


def test_width_keeps_as_a_slow_list_does() -> None:
    """Lists of (advantage, place) sorted one after the other, as in the authors' code."""
    splits, ratio = (0, 2), 0.4
    advantages = [normal(3, w) for w in (2, 2, 4)] + [normal(3, 4) for _ in range(4)]
    kept = branches.kept_in_width(advantages, splits, "extremes", ratio)
    late = [
        (float(advantages[t][p, i]), (p, i, t))
        for p in range(3)
        for i in range(4)
        for t in range(3, 7)
    ]
    ordered = sorted(late, key=lambda pair: pair[0], reverse=True)
    count = max(2, int(len(late) * ratio))
    places = {at for _, at in ordered[: count // 2] + ordered[-(count - count // 2) :]}
    assert {(p, i, t) for _, (p, i, t) in late if bool(kept[t][p, i])} == places
    kept = branches.kept_in_width(advantages, splits, "best", ratio)
    for p in range(3):
        for i in range(4):
            mine = sorted(range(3, 7), key=lambda t: -float(advantages[t][p, i]))
            assert {t for t in range(3, 7) if bool(kept[t][p, i])} == set(mine[: int(4 * ratio)])
