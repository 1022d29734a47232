"""Options beyond those of the recipes: against loops, exact expectations and closed forms."""

import dataclasses
import math
import statistics
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES, Recipe, Term, estimate, loss
from mbrl.policy_gradient.axes.baseline import SoftMean, TokenOptimal
from mbrl.policy_gradient.axes.credit import (
    BundleRisk,
    NestedGroups,
    ReturnToGo,
    TokenWeighted,
)
from mbrl.policy_gradient.axes.gate import SoftGate, count
from mbrl.policy_gradient.axes.gate_adaptive import EntropyClip
from mbrl.policy_gradient.axes.gate_origin import UnweightedApart
from mbrl.policy_gradient.axes.modulation import (
    ConfidenceGap,
    EntropyShaping,
    Novelty,
    PotentialShaping,
    Saturation,
    ScoreVariance,
    Whiten,
)
from mbrl.policy_gradient.axes.option import Option
from mbrl.policy_gradient.axes.regulariser import ESTIMATORS, KL, EntropyBand, Imitation
from mbrl.policy_gradient.axes.rejection import MaskedRatio, RatioBand, RatioVeto, TruncatedRatio
from mbrl.policy_gradient.axes.reward import SoftOverlong, Standardised, TaskReward
from mbrl.policy_gradient.axes.scale import (
    BatchStd,
    BetaDensity,
    MedianDeviation,
    One,
    Std,
    VarianceGate,
    VirtualStd,
)
from mbrl.policy_gradient.axes.selection import (
    Balanced,
    Finished,
    LargestVariance,
    Outliers,
    ResampleOnCorrect,
    TopEntropy,
)
from mbrl.policy_gradient.groups import group
from mbrl.policy_gradient.measures.trackers import EntropyWeight
from mbrl.types import Trajectories
from tests.mbrl.policy_gradient import cases


def test_long_answers_pay_over_their_last_steps() -> None:
    """Of at most 6 steps the last 4 are the buffer."""
    t, _, _ = cases.batch(0)
    found = SoftOverlong(longest=6, buffer=4, weight=2.0)(t) - TaskReward()(t)
    for b, row in enumerate(t.mask.tolist()):
        steps = [i for i, inside in enumerate(row) if inside]
        over = min(max(len(steps) - 2, 0), 4) / 4
        for i in range(len(row)):
            expected = -2.0 * over if i == steps[-1] else 0.0
            assert float(found[b, i]) == pytest.approx(expected)
    assert {len(r) for r in cases.sequences(*cases.batch(0))} >= {2, 7}  # both ends occur
    with pytest.raises(ConfigError, match="buffer is 7, it must be from 1 to longest, 6"):
        SoftOverlong(6, 7)


def test_turns_after_the_answer_is_known_earn_less_and_gains_in_potential_more() -> None:
    """One sequence of four turns of two steps; with accuracy 1 the potential is (1 + c) / 2."""
    zero, some = torch.zeros(1, 8, dtype=torch.float64), torch.ones(1, 8, dtype=torch.bool)
    turn = torch.arange(4).repeat_interleave(2)[None]
    confidence = torch.tensor([0.0, 0.9, 1.0, 0.2], dtype=torch.float64)[turn]
    t = Trajectories(
        obs=zero,
        action=zero,
        reward=zero,
        next_obs=zero,
        terminated=~some,
        truncated=~some,
        mask=some,
        segments={"turn": turn},
        signals={"accuracy": torch.ones_like(zero), "confidence": confidence},
    )
    saturated = Saturation(penalty=0.5)(torch.full_like(zero, 2.0), some, t)
    expected = [2.0, 2.0, 2.0 - (1 - math.exp(-1)), 2.0 - (1 - math.exp(-2))]
    assert saturated[0, ::2].tolist() == saturated[0, 1::2].tolist() == pytest.approx(expected)
    sizes = [math.exp((gain + 0.4) / 0.85) for gain in (0.0, 0.45, 0.05, -0.4)]
    expected = [3.0 * (x - sum(sizes) / 4) for x in sizes]
    shaped = PotentialShaping(weight=3.0)(zero, some, t)
    assert shaped[0, ::2].tolist() == shaped[0, 1::2].tolist() == pytest.approx(expected)


def test_unlikely_right_answers_gain_up_to_half_of_their_advantage() -> None:
    """Mean log-probs -1 and -1.2 of right answers, -0.2 of a wrong one: their mean is -0.8."""
    some = torch.ones(3, 2, dtype=torch.bool)
    reward = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    old = torch.tensor([[-0.5, -1.5], [-1.0, -1.4], [-0.2, -0.2]], dtype=torch.float64)
    t = Trajectories(
        obs=reward,
        action=reward,
        reward=reward,
        next_obs=reward,
        terminated=~some,
        truncated=~some,
        mask=some,
        groups={"prompt": torch.zeros(3, 2, dtype=torch.int64)},
        log_probs={"old": old},
    )
    changed = Novelty()(torch.tensor([[1.0], [1.0], [-2.0]]).double().expand(3, 2), some, t)
    bonus = 2.5 * (1 - math.exp(-0.2))
    assert changed[:, 0].tolist() == pytest.approx([1.0 + bonus, 1.5, -2.0])
    assert 0.4 < bonus < 0.5 and torch.equal(changed[:, 0], changed[:, 1])


def test_the_soft_mean_lies_between_mean_and_best() -> None:
    t, _, _ = cases.batch(1)
    t = dataclasses.replace(t, reward=torch.where(t.mask, torch.randn_like(t.reward), 0.0))
    value = Term().credit(t.reward, t)
    rows = group(t, ("prompt",), Term().credit.units(t))
    batch = cases.sequences(*cases.batch(1))
    totals = [float(value[b, 0]) for b in range(len(batch))]
    for tau in (0.3, 1.0):
        found = SoftMean(tau)(value, rows, t)
        for b, s in enumerate(batch):
            mine = [r for r, other in zip(totals, batch, strict=True) if other.prompt == s.prompt]
            expected = tau * math.log(statistics.fmean(math.exp(r / tau) for r in mine))
            assert float(found[b, 0]) == pytest.approx(expected)
    torch.testing.assert_close(
        SoftMean(1e6)(value, rows, t), rows.mean(value), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(SoftMean(1e-6)(value, rows, t), rows.max(value), rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match="temperature is 0"):
        SoftMean(0.0)


def test_the_optimal_baseline_of_weighted_gradients_counts_their_squares() -> None:
    t, _, _ = cases.batch(2, gaps=False)
    term = Term(credit=ReturnToGo(), baseline=TokenOptimal(cap=1.1), scale=One())
    found = estimate(Recipe("x", "", terms=(term,)), t).advantage
    batch = cases.sequences(*cases.batch(2, gaps=False))
    for b, s in enumerate(batch):
        for i in range(len(s)):
            above = below = 0.0
            for other in (o for o in batch if o.prompt == s.prompt and len(o) > i):
                energy = 0.0
                for x in other.steps[: i + 1]:
                    r = min(math.exp(x.log_probs["old"] - x.log_probs["behaviour"]), 1.1)
                    energy += r**2 * (1 - 2 * math.exp(x.log_probs["old"]) + x.sum_prob_squared)
                above += energy * sum(x.reward for x in other.steps[i:])
                below += energy
            own = sum(x.reward for x in s.steps[i:])
            assert float(found[b, i]) == pytest.approx(own - above / max(below, 1e-12), abs=1e-9)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_normalised_weights_are_one_on_average(level: str) -> None:
    t, log_prob, _ = cases.batch(3)
    plain = TruncatedRatio(level, cap=1.2)(log_prob, t.reward, t)
    found = TruncatedRatio(level, cap=1.2, normalised=True)(log_prob, t.reward, t)
    if level == "token":
        mean = statistics.fmean(plain[t.mask].tolist())
    else:
        mean = statistics.fmean(plain[:, 0].tolist())
    torch.testing.assert_close(found[t.mask], plain[t.mask] / mean)


def test_every_divergence_is_estimated_without_bias() -> None:
    """Exact expectations over five outcomes: the value under the current policy, and the gradient
    of the weighted ones under an older one."""
    g = torch.Generator().manual_seed(0)
    logits, below, old = torch.randn(3, 5, generator=g, dtype=torch.float64)
    anchor, old = below.log_softmax(0), old.log_softmax(0)
    now = logits.clone().requires_grad_()
    reverse = (now.softmax(0) * (now.log_softmax(0) - anchor)).sum()
    forward = (anchor.exp() * (anchor - now.log_softmax(0))).sum()
    for name, of in ESTIMATORS.items():
        truth = forward if name == "forward" else reverse
        d = now.log_softmax(0) - anchor
        if name != "k2":  # which has a bias of the third order
            assert float((now.softmax(0) * of(d)).sum().detach()) == pytest.approx(
                float(truth.detach()), abs=1e-12
            )
        if name in ("k3", "forward"):
            assert (of(d) >= 0).all()
        if name == "k2":
            continue
        mean = (old.exp() * torch.exp(now.log_softmax(0) - old) * of(d)).sum()
        given, wanted = (torch.autograd.grad(v, now, retain_graph=True)[0] for v in (mean, truth))
        torch.testing.assert_close(given, wanted)
    t, log_prob, _ = cases.batch(0)
    penalty = KL(0.5, "forward")(log_prob, None, t.reward, t)
    d = (log_prob - t.log_probs["reference"])[t.mask]
    torch.testing.assert_close(penalty[t.mask], 0.5 * (1 - (-d).exp() * (1 + d)))


def test_imitation_raises_what_was_shown_alone() -> None:
    t, log_prob, _ = cases.batch(4)
    t.signals["demonstration"] = (torch.arange(len(t.mask)) % 2)[:, None].expand_as(t.mask).double()
    recipe = dataclasses.replace(RECIPES["rloo"], regularisers=(Imitation(0.3),))
    plain = loss(RECIPES["rloo"], log_prob, t, estimate(recipe, t))[0]
    value = loss(recipe, log_prob, t, estimate(recipe, t))[0]
    shown = sum(
        sum(float(x.log_prob) for x in s.steps)
        for i, s in enumerate(cases.sequences(t, log_prob.detach(), log_prob.detach()))
        if i % 2
    )
    assert float((value - plain).detach()) == pytest.approx(-0.3 * shown / len(t.mask))


def test_the_entropy_weight_follows_its_target() -> None:
    tracker = EntropyWeight(target=0.5, step=0.1, most=0.25)
    given = [tracker.update(h) for h in (0.3, 0.3, 0.9, 0.3, 0.9, 0.9, 0.9, 0.4)]
    assert given == pytest.approx([0.0, 0.1, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0])
    assert tracker.weight == pytest.approx(0.1)
    again = EntropyWeight(0.5, 0.1, 0.25)
    again.load_state_dict(tracker.state_dict())
    assert again.update(0.2) == tracker.update(0.2) == pytest.approx(0.1)
    assert [again.update(0.2) for _ in range(3)] == pytest.approx([0.2, 0.25, 0.25])
    with pytest.raises(ConfigError, match="above 0"):
        EntropyWeight(target=0.0)


def test_rejections_and_selections_fire_where_they_should() -> None:
    """Batches of the recipes' tests seldom have what these leave out."""
    t, log_prob, _ = cases.batch(5)
    far = {k: v.clone() for k, v in t.log_probs.items()}
    far["behaviour"][3, 0] = far["old"][3, 0] + 12.0  # a ratio of e^-12
    t = dataclasses.replace(t, log_probs=far)
    kept = RatioVeto()(log_prob, t.reward, t)
    assert [b for b in range(len(t.mask)) if not kept[b].all()] == [3]
    assert not kept[3].any()
    masked = MaskedRatio("sequence", high=3.0)(log_prob, t.reward, t)
    assert not masked[3].isnan().any() and float(masked[3, 0]) < 1e-4
    advantage = torch.tensor([[-3.5, 3.0, 0.0, 3.01]])
    assert Outliers(3.0)(advantage, t).tolist() == [[0.0, 1.0, 1.0, 0.0]]


def test_what_reached_the_tasks_own_limit_is_whole() -> None:
    t, _, _ = cases.batch(6)
    t = dataclasses.replace(t, truncated=t.truncated | t.terminated)
    t.truncated[0], longest = False, int(t.lengths.max())
    cut = (t.truncated & t.mask).any(1)
    assert torch.equal(Finished()(t.reward, t)[:, 0], (~cut).double())
    short = cut & (t.lengths < longest)
    assert 0 < short.sum() < cut.sum()
    assert torch.equal(Finished(limit=longest)(t.reward, t)[:, 0], (~short).double())


def rewarded(rewards: list[float]) -> Trajectories:
    """Sequences of one step about one prompt."""
    zero, n = torch.zeros(len(rewards), 1), len(rewards)
    flag = torch.ones(n, 1, dtype=torch.bool)
    return Trajectories(
        obs=zero[..., None],
        action=zero,
        reward=torch.tensor(rewards)[:, None],
        next_obs=zero[..., None],
        terminated=flag,
        truncated=~flag,
        mask=flag,
        log_probs={"behaviour": zero, "old": zero},
        groups={"prompt": zero.long()},
        signals={"uniform": torch.rand(n, 1)},
    )


@pytest.mark.parametrize("size", [1, 3, 4, 5])
@pytest.mark.parametrize(("right", "wrong"), [(4, 4), (8, 0), (1, 7), (0, 8), (2, 2)])
def test_a_balanced_choice_has_its_size(size: int, right: int, wrong: int) -> None:
    t = rewarded([1.0] * right + [0.0] * wrong)
    kept = Balanced(size)(t.reward, t)
    assert int(kept.sum()) == min(size, right + wrong)
    assert int(kept[:right].sum()) == min(right, max((size + 1) // 2, size - wrong))


def test_the_edges_of_shares_and_limits() -> None:
    t = rewarded([1.0] * 4 + [0.0] * 4)
    assert int(LargestVariance(0.0)(t.reward, t).sum()) == 0
    assert int(LargestVariance(1.0)(t.reward, t).sum()) == 8
    with pytest.raises(ConfigError, match="least is 0"):
        RatioVeto(least=0.0)


def test_steps_that_the_bare_prompt_makes_unlikely_teach_nothing_from_elsewhere() -> None:
    """Below a log-prob of -5, of answers that were sampled in another context alone."""
    t, log_prob, _ = cases.batch(0)
    old = torch.tensor([-4.9, -5.1]).to(log_prob).repeat(t.mask.shape[1])[: t.mask.shape[1]]
    apart = torch.zeros_like(log_prob)
    apart[::2] = 1.0
    t = dataclasses.replace(
        t, log_probs=t.log_probs | {"old": old.expand_as(log_prob)}, signals={"apart": apart}
    )
    gain = UnweightedApart()(log_prob - old, log_prob, torch.ones_like(log_prob), t)
    gain, shown = (torch.where(t.mask, x, 0.0) for x in (gain, log_prob))
    assert torch.equal(gain[::2, 0::2], shown[::2, 0::2])
    assert not gain[::2, 1::2].any() and gain[1::2, 1::2].any()


@pytest.mark.parametrize(
    "make",
    [
        *(Std, BatchStd, MedianDeviation, VirtualStd, Whiten, NestedGroups, TokenWeighted),
        *(BundleRisk, VarianceGate, lambda eps: BetaDensity(least=eps)),
        lambda eps: Standardised(TaskReward(), eps=eps),
        lambda eps: EntropyShaping(most=eps),
        lambda eps: SoftGate(positive=eps),
        lambda eps: SoftGate(negative=eps),
    ],
)
def test_what_keeps_a_divisor_above_0_is_above_0(make: Callable[..., Option]) -> None:
    """A group that earned the same has a deviation of 0 and no difference: NaN without `eps`."""
    assert str(make(eps=1e-9))
    with pytest.raises(ConfigError, match="is 0"):
        make(eps=0.0)


@pytest.mark.parametrize(
    "make", [BetaDensity, BundleRisk, EntropyBand, MaskedRatio, RatioBand, ScoreVariance]
)
def test_what_is_no_range_is_refused(make: Callable[..., Option]) -> None:
    """Equal ends are divided by, and swapped ones turn signs or keep nothing."""
    for low, high in ((0.5, 0.5), (0.6, 0.4)):
        with pytest.raises(ConfigError, match=f"low is {low} and high {high}"):
            make(low=low, high=high)


def test_the_pivot_of_entropies_is_a_quantile() -> None:
    assert EntropyClip(pivot=1.0).pivot == 1.0
    with pytest.raises(ConfigError, match="pivot is"):
        EntropyClip(pivot=1.2)


@pytest.mark.parametrize("share", ["0.15", "0.2", "0.3", "0.6", "0.65"])
def test_shares_of_numbers_are_exact(share: str) -> None:
    """In single precision 0.3 of 50 is 15.000001, of which 16 were kept."""
    for size in range(5, 121, 5):
        least, most = math.ceil(Fraction(share) * size), math.floor(Fraction(share) * size)
        mask = torch.ones(1, size, dtype=torch.bool)
        zero, no = torch.zeros(1, size), ~mask
        drawn = torch.randperm(size, generator=torch.Generator().manual_seed(size))
        log_prob = -(1.0 + drawn.float()[None] / size)
        one = Trajectories(
            zero[..., None], zero[..., None], zero + 1, zero[..., None], no, no, mask
        )
        one = dataclasses.replace(
            one,
            entropy=-log_prob,
            log_probs={"old": log_prob},
            groups={"prompt": torch.zeros(1, size, dtype=torch.int64)},
            signals={"prompt_confidence": zero, "penalty": zero},
        )
        assert int(TopEntropy(float(share))(zero, one).sum()) == least
        assert int(count(one, float(share))) == max(1, most)
        gap = ConfidenceGap(rate=1.0, share=float(share))(zero, mask, one)
        unlikely = log_prob.flatten().sort().values[:least]
        assert float(gap[0, 0]) == pytest.approx(-math.exp(unlikely.double().mean()), rel=1e-5)
        kept = ResampleOnCorrect(float(share))(zero.T, columns(one))
        assert int(kept.sum()) == least


def columns(one: Trajectories) -> Trajectories:
    """Every step of a sequence as a sequence of its own."""
    parts = {
        f.name: getattr(one, f.name)
        for f in dataclasses.fields(one)
        if getattr(one, f.name) is not None
    }
    turned = {
        name: {k: v.T for k, v in value.items()}
        if isinstance(value, dict)
        else value.transpose(0, 1)
        for name, value in parts.items()
    }
    return dataclasses.replace(one, **turned)
