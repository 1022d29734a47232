"""V_0, V_{0.5} and difficulty-targeted selection: calibration, and where the budget goes."""

import math

import pytest
import torch
from torch import Tensor

from mbrl.policy_gradient.measures.trackers import shrinkage
from mbrl.policy_gradient.schedulers import Outcome, Pool, gather
from mbrl.policy_gradient.schedulers.difficulty_targeted import (
    DifficultyTargeted,
    DifficultyTargetedConfig,
    attention,
)
from mbrl.policy_gradient.schedulers.uniform import Uniform
from mbrl.policy_gradient.schedulers.values import (
    V0,
    V05,
    InContextValue,
    V0Config,
    V05Config,
    fit_value,
    greedy,
    utility,
)
from tests.mbrl.policy_gradient.schedulers.simulated import Prompts, generator, mixed_share


def world(seed: int = 0, size: int = 300) -> tuple[Tensor, Tensor]:
    """Features [N, 4], of which the first two make the difficulty [N]."""
    features = torch.randn(size, 4, generator=generator(seed))
    return features, features[:, 0] + 0.7 * features[:, 1]


def rates_at(skill: float, difficulty: Tensor) -> Tensor:
    return torch.sigmoid(3 * (skill - difficulty)).double()


@pytest.fixture(scope="module")
def value() -> InContextValue:
    """Trained on policies of ten skills, of which 0 is none."""
    features, difficulty = world(1)
    skills = (-2.0, -1.6, -1.2, -0.8, -0.4, 0.4, 0.8, 1.2, 1.6, 2.0)
    scores = torch.stack([rates_at(s, difficulty) for s in skills]).float()
    g = generator(2)
    scores = torch.bernoulli(scores.repeat(4, 1), generator=g)
    model = InContextValue(4, generator=generator(3))
    fit_value(model, features, scores, g, steps=200, lr=5e-3)
    return model


def test_v0_is_calibrated_on_an_unseen_policy(value: InContextValue) -> None:
    features, difficulty = world(5)
    truth, g = rates_at(0.0, difficulty).float(), generator(6)
    shown, asked = torch.arange(64), torch.arange(64, 300)
    guesses, errors = [], []
    for _ in range(8):  # eight contexts of 64 single answers
        scores = torch.bernoulli(truth, generator=g)
        with torch.no_grad():
            guesses.append(value(features[shown], scores[shown], features[asked]))
        errors.append(float(((guesses[-1] - truth[asked]) ** 2).mean()))
    constant = float(((truth[shown].mean() - truth[asked]) ** 2).mean())
    assert sum(errors) / 8 < 0.15 * constant
    guess, truths = torch.cat(guesses), truth[asked].repeat(8)
    for low in (0.0, 0.25, 0.5, 0.75):  # reliability in four bins
        inside = (guess >= low) & (guess < low + 0.25)
        assert float((guess[inside] - truths[inside]).mean().abs()) < 0.1
    with torch.no_grad():
        blind = value(features[:0], scores[:0], features[asked])
    assert blind.tolist() == pytest.approx([0.5] * 236)


@pytest.mark.parametrize("p", [0.0, 0.05, 0.3, 0.5, 0.9, 1.0])
def test_the_utility_is_the_mean_number_of_useful_failures(p: float) -> None:
    """Failures count where something was right."""
    for size in (1, 2, 7, 20):
        mean = sum(
            math.comb(size, k) * p**k * (1 - p) ** (size - k) * (size - k)
            for k in range(1, size + 1)
        )
        rollouts, rate = torch.tensor([size, p], dtype=torch.float64)
        assert float(utility(rollouts, rate)) == pytest.approx(mean, abs=1e-12)


def test_rollouts_go_where_the_utility_grows_most() -> None:
    p = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64)

    def gain(i: int, size: int) -> float:
        sizes = torch.tensor([size, size + 1.0], dtype=torch.float64)
        before, after = utility(sizes, p[i]).tolist()
        return float(after - before)

    shares = [2, 2, 2]
    for total in range(6, 40):
        assert greedy(p, total, 2, 12).tolist() == shares
        if total < 36:
            able = [i for i in range(3) if shares[i] < 12]
            shares[max(able, key=lambda i: gain(i, shares[i]))] += 1
    # By hand: at two each the third rollout adds 0.625, 0.333 and 0.117.
    assert [gain(i, 2) for i in range(3)] == pytest.approx([0.625, 0.333, 0.117])
    assert greedy(p, 7, 2, 12).tolist() == [3, 2, 2] and greedy(p, 100, 2, 12).tolist() == [12] * 3


def test_v0_spends_on_prompts_that_fail_and_succeed(value: InContextValue) -> None:
    features, difficulty = world(5)
    rate, g = rates_at(0.0, difficulty), generator(7)
    one = V0(Pool(300, features), 480, 8, V0Config(context=128), value)
    prompts = Prompts(rate)
    first = one.request(g)
    assert first.rollouts.tolist() == [8] * 60  # nothing is known yet
    for _ in range(4):
        prompts.round(one, g)
    assert len(one.context) == 128 == len(one.context.known.unique())
    assert one.acts is not None and one.acts > 0
    request = one.request(g)
    asked = rate[request.prompts]
    worth = float(utility(request.rollouts.double(), asked).sum())
    assert worth > 1.25 * float(utility(torch.tensor(8.0), asked).sum())
    assert float(request.rollouts[asked > 0.9].double().mean()) < 4


def spent(one: V05, rate: Tensor, prior: Tensor) -> tuple[int, int]:
    """Rollouts in a round for prompts whose prior is right, and for the rest."""
    one.believe(prior)
    outcome = gather(one, Prompts(rate).roll, generator(9))
    wrong = (prior - rate).abs() > 1e-9
    return int((~wrong[outcome.prompts]).sum()), int(wrong[outcome.prompts].sum())


def test_v_half_buys_only_where_the_prior_is_wrong() -> None:
    rate = torch.full((60,), 0.5, dtype=torch.float64)
    config = V05Config(first=0.4, most=16)
    fair, none = spent(V05(Pool(60), 600, 4, config), rate, rate)
    assert none == 0 and 240 <= fair < 300  # the base, and false alarms
    prior = rate.clone()
    prior[:30] = 0.99
    kept, bought = spent(V05(Pool(60), 600, 4, config), rate, prior)
    assert bought > 2.2 * kept and kept + bought <= 600


def test_v_half_buys_by_the_rule_of_rewards_of_both_signs() -> None:
    """As a loop in the units of rewards of -1 and 1: w^2 / k + (1 - w)^2 b plus 0.0039 k falls."""
    one = V05(Pool(6), 600, 4)
    prior = torch.tensor([0.0, 0.2, 0.45, 0.6, 0.9, 1.0], dtype=torch.float64)
    one.believe(prior)
    for size in range(4, 18):
        right = [size // 4, size // 2, size, 0, size // 3, size - 1]
        ids = torch.arange(6).repeat_interleave(size)
        paid = torch.cat([(torch.arange(size) < r).double() for r in right])
        wanted = []
        for i, r in enumerate(right):
            bias = max((2 * r / size - 1 - (2 * float(prior[i]) - 1)) ** 2 - 1 / size, 0.0)
            risk = [bias / k / (bias + 1 / k) + 0.00390625 * k for k in (size, size + 1)]
            if size < 16 and risk[1] < risk[0]:
                wanted.append(i)
        request = one.more(Outcome(ids, paid), generator())
        asked = [] if request is None else sorted(request.prompts.tolist())
        assert asked == wanted, size


def test_v_half_takes_its_prior_from_the_value_model(value: InContextValue) -> None:
    """On an unseen policy its prior is nearer to the truth than running rates, and few prompts buy
    rollouts where it is right."""
    features, difficulty = world(5)
    truth, g = rates_at(0.0, difficulty), generator(8)
    informed = V05(Pool(300, features), 1200, 4, V05Config(first=0.8), value)
    blind = V05(Pool(300), 1200, 4, V05Config(first=0.8))
    prompts = Prompts(truth)
    for one in (informed, blind):
        prompts.round(one, g)
    errors = [float((one.priors() - truth).square().mean()) for one in (informed, blind)]
    assert errors[0] < 0.5 * errors[1]
    assert informed.priors().dtype == torch.float64
    again = V05(Pool(300, features), 1200, 4, V05Config(first=0.8), value)
    again.load_state_dict(informed.state_dict())
    assert torch.equal(again.priors(), informed.priors())


def test_fused_baselines_are_nearer_than_either_part() -> None:
    """Mean squared error over answers of 4, with priors that are right but for noise."""
    g = generator(12)
    rate = 0.2 + 0.6 * torch.rand(4000, generator=g, dtype=torch.float64)
    prior = (rate + 0.1 * torch.randn(4000, generator=g, dtype=torch.float64)).clamp(0.02, 0.98)
    mean = torch.bernoulli(rate[:, None].expand(-1, 4), generator=g).mean(1)
    w = shrinkage(prior, mean, torch.full_like(mean, 4.0))
    fused = w * prior + (1 - w) * mean

    def error(x: Tensor) -> float:
        return float((x - rate).square().mean())

    assert error(fused) < error(mean)
    far = torch.full_like(rate, 0.98)
    low = rate < 0.5
    rejected = shrinkage(far, mean, torch.full_like(mean, 16.0))[low]
    assert float(rejected.mean()) < 0.1
    right = shrinkage(rate, mean, torch.full_like(mean, 4.0))
    assert float((right == 0).double().mean()) < 0.08  # false alarms


def test_v_half_baseline_shrinks_and_drops_a_wrong_prior() -> None:
    one = V05(Pool(3), 40, 4)
    one.believe(torch.tensor([0.5, 0.99, float("nan")]))
    ids = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
    rewards = torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 1, 1, 0])
    found = one.baseline(Outcome(ids, rewards))
    four = torch.tensor(4.0, dtype=torch.float64)
    w = float(shrinkage(torch.tensor(0.5).double(), torch.tensor(0.75).double(), four))
    assert w == 1.0  # within one deviation: nothing speaks against the prior
    assert found[:4].tolist() == [0.5] * 4
    mixed = (0.74**2 - 0.0625) / 0.74**2  # in units of rewards of -1 and 1 it is the same
    assert found[4:8].tolist() == pytest.approx([mixed * 0.25 + (1 - mixed) * 0.99] * 4)
    assert found[8:].tolist() == [0.5] * 2  # no word from a model: the tracker's prior
    with pytest.raises(ValueError, match=r"give \[3\]"):
        one.believe(torch.ones(2))


def test_attention_is_that_of_a_loop() -> None:
    g = generator()
    query, known, values = (torch.randn(*s, generator=g) for s in ((5, 3), (4, 3), (4,)))
    for i, found in enumerate(attention(query, known, values, 2.0)):
        weight = [float((2.0 * query[i] @ known[j]).exp()) for j in range(4)]
        expected = sum(w * float(v) for w, v in zip(weight, values, strict=True)) / sum(weight)
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_targeted_prompts_are_mixed_more_often_than_uniform_ones() -> None:
    g = generator(11)
    angle = 6.283 * torch.rand(400, generator=g)
    features = torch.stack([angle.cos(), angle.sin()], 1)
    rate = torch.sigmoid(6 * features[:, 0] + 3)
    config = DifficultyTargetedConfig(references=24, every=3, sharpness=30.0, fresh=0.5)
    one, prompts = DifficultyTargeted(Pool(400, features), 640, 8, config), Prompts(rate)
    shares, fresh = [], []
    for t in range(6):
        fresh.append(one.fresh_share)
        outcome = gather(one, prompts.roll, g)
        kept = one.keep(outcome, g)
        measured = outcome.prompts[~kept].unique()
        assert len(measured) == (24 if t % 3 == 0 else 0)
        assert set(measured.tolist()) == set(one.references.tolist())
        trained = Outcome(outcome.prompts[kept], outcome.rewards[kept])
        groups = len(trained.prompts) // 8
        assert groups == round(one.fresh_share * (80 - len(measured)))
        shares.append(mixed_share(trained))
        one.observe(outcome, g)
    assert fresh == [1.0] + [0.5] * 5
    even = mixed_share(gather(Uniform(Pool(400), 3200, 8), prompts.roll, g))
    assert sum(shares) / 6 > 1.3 * even
    assert min(shares) > even


@pytest.mark.parametrize("temperature", [1e-5, 0.05])
def test_references_are_not_selected_however_cold_the_draw(temperature: float) -> None:
    """Weights of prompts far from the target round to 0, which is the references' weight."""
    g = generator(3)
    config = DifficultyTargetedConfig(references=6, temperature=temperature, fresh=1.0)
    one = DifficultyTargeted(Pool(30, torch.randn(30, 4, generator=g)), 80, 4, config)
    one.references = torch.arange(6)
    one.predicted = torch.rand(30, generator=g, dtype=torch.float64)
    for _ in range(20):
        request = one.selection(14, g)
        assert request.total == 14 * 4 and not bool(
            torch.isin(request.prompts, one.references).any()
        )
