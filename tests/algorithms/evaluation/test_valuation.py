"""Valuations in a small world whose values are exact."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

from algorithms import ALGORITHMS, MOPO
from algorithms.evaluation import valuation
from algorithms.evaluation.fqe import (
    LOGGED,
    FQEConfig,
    evaluate_policies,
    logged_next_actions,
)
from algorithms.evaluation.support import Support
from algorithms.evaluation.valuation import (
    ValuationConfig,
    discounted_returns,
    policy_actions,
    value_policies,
    value_policy,
)
from algorithms.evaluation.verdict import verdict
from experiments.settings import build_config, merge
from mbrl.data import from_arrays, load
from mbrl.errors import DataError
from mbrl.evaluation import evaluate
from mbrl.tasks import make
from mbrl.types import Spec
from tests.small import CONFIGS
from world_models.protocol import Prediction

GAMMA, END = 0.9, 0.1


class Constant(nn.Module):
    """Always the same discrete action."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.action = nn.Parameter(torch.tensor(float(action)))

    def forward(self, obs):
        return torch.full((len(obs),), int(self.action), dtype=torch.long)


def world(episodes=150, seed=0, probability=0.5):
    """Two states that alternate, two actions; action 1 pays 1 in state 0 and -0.5 in state 1,
    action 0 pays 0.2; an episode ends with probability 0.1 after each step, or is cut after 12."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(episodes):
        state = 0
        for t in range(12):
            action = int(rng.random() < probability)
            reward = 0.2 if action == 0 else (1.0, -0.5)[state]
            over = rng.random() < END
            p = probability if action else 1 - probability
            rows.append((state, action, reward, 1 - state, over, not over and t == 11, p))
            state = 1 - state
            if over:
                break
    state, action, reward, after, over, cut, p = map(np.array, zip(*rows, strict=True))
    return from_arrays(
        obs=np.eye(2)[state], action=action, reward=reward, next_obs=np.eye(2)[after],
        terminated=over, truncated=cut, behaviour_prob=p,
    )  # fmt: skip


def exact(probability: float) -> float:
    """The value at the start of acting 1 with `probability`."""
    mean = [0.2 * (1 - probability) + probability * paid for paid in (1.0, -0.5)]
    stay = GAMMA * (1 - END)
    return float((mean[0] + stay * mean[1]) / (1 - stay**2))


@pytest.mark.long
def test_the_logged_policys_value_is_exact_and_its_interval_is_of_the_right_width():
    data = world(episodes=600)  # a standard error of 0.036
    config = FQEConfig(steps=1500, gamma=GAMMA, tau=0.1, hidden=(32,), resamples=20)
    fit = evaluate_policies([Constant(1), LOGGED], data, config)
    assert fit.values[1] == pytest.approx(exact(0.5), abs=0.11)
    assert fit.values[0] == pytest.approx(exact(1.0), abs=0.11)
    # The spread over draws of the episodes is that over data sets, for which there are many here.
    short = FQEConfig(steps=500, gamma=GAMMA, tau=0.1, hidden=(32,))
    others = [
        evaluate_policies([LOGGED], world(episodes=600, seed=k), short).values[0]
        for k in range(1, 13)
    ]
    assert 0.4 < fit.resampled[1].std(ddof=1) / np.std(others, ddof=1) < 2.5


@pytest.mark.parametrize(
    ("action", "word"), [(1, "better"), pytest.param(0, "worse", marks=pytest.mark.long)]
)
def test_verdicts_of_a_better_and_a_worse_policy(action, word):
    data = world(episodes=300, probability=0.7)
    config = ValuationConfig(steps=1500, gamma=GAMMA, hidden=(32,), dice_steps=0)
    valuation = value_policies([Constant(action)], data, config)[0]
    truth = exact(float(action)) - exact(0.7)
    fitted, robust = valuation.estimates
    assert robust.method == "doubly robust"
    assert fitted.difference == pytest.approx(truth, abs=0.12)
    assert robust.difference_low - 0.3 < truth < robust.difference_high + 0.3
    judged = verdict(valuation)
    assert judged.word in (word, "cannot tell") and len(judged.reasons) == 2
    if fitted.difference_low > 0 or fitted.difference_high < 0:
        assert judged.word == word


def test_doubly_robust_estimates_are_unbiased_over_data_sets():
    config = ValuationConfig(steps=60, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2)
    cut = GAMMA**12 * (1 - END) ** 12 * exact(1.0)  # what comes after a cut is not in it
    values = [
        value_policies([Constant(1)], world(episodes=60, seed=k), config)[0].estimates[1].value
        for k in range(12)
    ]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - (exact(1.0) - cut)) < 3 * error


def test_intervals_of_fitted_q_know_how_few_episodes_there_are():
    """Draws of n things spread by sqrt((n - 1) / n) as much as their mean does, and n things leave
    n - 1 degrees of freedom for it, however often they are drawn."""
    draws = np.array([1.0, 2.0, 4.0, 5.0, 8.0])
    for episodes, freedom in ((3, 2), (200, 4)):
        reach = special.stdtrit(freedom, 0.95) * draws.std(ddof=1)
        reach *= np.sqrt(episodes / (episodes - 1))
        got = valuation._around(1.0, draws, episodes, 0.9)
        assert got == pytest.approx((1.0, 1.0 - reach, 1.0 + reach))


@pytest.mark.parametrize("length", [pytest.param(1, marks=pytest.mark.long), 40])
def test_a_policy_that_never_does_what_was_logged_has_no_weights(length):
    """Weights of 10 ** 39 for the other actions of 40 steps do not make up for it."""
    rng, n = np.random.default_rng(0), 40 * 60
    action = np.ones(n, dtype=np.int64)
    action[::length] = 0
    over = np.arange(n) % length == length - 1
    data = from_arrays(
        obs=rng.normal(size=(n, 2)), action=action, reward=rng.normal(size=n), terminated=over,
        truncated=np.zeros(n, bool), behaviour_prob=np.full(n, 0.1), spec=Spec("mine", 2, 1, 2),
    )  # fmt: skip
    config = ValuationConfig(steps=3, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2)
    robust = value_policies([Constant(1)], data, config)[0].estimates[1]
    assert not robust.believed and "to 0% of the episodes" in robust.note
    assert np.isfinite(robust.value)


def test_weights_beyond_float64_leave_no_doubly_robust_estimate():
    """It was NaN or infinite, and believed where more than one in ten had such weights."""
    over = np.arange(800) % 400 == 399
    data = from_arrays(
        obs=np.random.default_rng(0).normal(size=(800, 2)), action=np.ones(800, dtype=np.int64),
        reward=np.ones(800), terminated=over, truncated=np.zeros(800, bool),
        behaviour_prob=np.full(800, 0.1), spec=Spec("mine", 2, 1, 2),
    )  # fmt: skip
    config = ValuationConfig(steps=3, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2)
    robust = value_policies([Constant(1)], data, config)[0].estimates[1]
    assert not robust.believed and "beyond float64" in robust.note and np.isnan(robust.value)


def test_steps_of_any_length_are_discounted_alike_on_both_sides():
    """The logged policy itself: with probabilities of 1 its estimate is its returns' mean."""
    rng = np.random.default_rng(0)
    over = np.arange(240) % 12 == 11
    data = from_arrays(
        obs=rng.normal(size=(240, 2)).astype(np.float32),
        action=np.ones(240, dtype=np.int64),
        reward=rng.normal(size=240).astype(np.float32),
        terminated=over,
        truncated=np.zeros(240, dtype=bool),
        duration=rng.uniform(1.0, 9.0, size=240).astype(np.float32),
        behaviour_prob=np.ones(240, dtype=np.float32),
        spec=Spec("mine", 2, 1, 2),
    )
    config = ValuationConfig(steps=5, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2)
    robust = value_policies([Constant(1)], data, config)[0].estimates[1]
    assert robust.method == "doubly robust"
    wanted = discounted_returns(data.transitions, GAMMA).mean()
    assert robust.value == pytest.approx(wanted, abs=1e-4)
    assert robust.difference == pytest.approx(0.0, abs=1e-4)


def test_discounted_returns_are_those_of_the_episodes():
    data = world(episodes=5)
    rows = data.transitions
    wanted = [
        sum(GAMMA**t * float(r) for t, r in enumerate(rows.reward[a:b])) for a, b in rows.episodes()
    ]
    assert np.allclose(discounted_returns(rows, GAMMA), wanted)


def test_actions_are_those_at_every_row():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, obs):
            return obs[:, 1].long()

    rows = world(episodes=20).transitions
    assert torch.equal(policy_actions(Looks(), rows), rows.obs[:, 1].long())


def test_one_episode_is_refused():
    data = world(episodes=1)
    with pytest.raises(DataError, match="has 1 episode here"):
        value_policies([Constant(1)], data)


def test_the_logged_policys_next_action_is_that_of_the_next_row():
    rows = world(episodes=40).transitions
    actions = logged_next_actions(rows)
    inside = ~rows.ends
    assert torch.equal(actions[inside], rows.action.roll(-1)[inside])
    # where an episode was cut, an action that was logged in the state it was cut in
    only = rows.select(slice(0, len(rows)))
    only.action.copy_(rows.obs[:, 1].long())  # action = state
    cut = rows.truncated
    assert cut.any()
    assert torch.equal(logged_next_actions(only)[cut], rows.next_obs[cut, 1].long())


def test_where_repeated_observations_are_cut_actions_are_as_frequent_as_they_were():
    """Episodes of three steps through two states that all look alike, action 1 in a quarter."""
    rng, n = np.random.default_rng(0), 6000
    obs = np.eye(2)[rng.integers(2, size=n)]
    rows = from_arrays(
        obs=obs, action=(rng.random(n) < 0.25).astype(int), reward=np.zeros(n), discrete=True,
        next_obs=np.roll(obs, -1, 0), terminated=np.zeros(n, bool),
        truncated=np.arange(n) % 3 == 2,
    ).transitions  # fmt: skip
    actions = logged_next_actions(rows)
    for state in (0, 1):
        cut = rows.truncated & (rows.next_obs[:, state] == 1)
        assert float(actions[cut].double().mean()) == pytest.approx(0.25, abs=0.03)


def test_a_last_row_without_a_flag_is_cut():
    rows = world(episodes=40).transitions
    length = int(rows.ends.nonzero()[-2]) + 3  # in the midst of the last episode
    part = rows.select(slice(0, length))
    part.action.copy_(part.obs[:, 1].long())  # action = state
    assert not part.ends[-1]
    assert logged_next_actions(part)[-1] == part.next_obs[-1, 1].long()


def test_in_an_exact_model_the_greedy_policy_has_its_value_in_the_task():
    """MOPO whose model is the task's own dynamics: the value by rollouts in it is the discounted
    return in the task from the same starts, up to what lies beyond the last step."""
    dataset = load("pendulum/expert")
    exact = merge(CONFIGS["mopo"], {"imagination": {"truth": 1.0}})
    agent = MOPO(dataset.spec, build_config("mopo", exact), seed=0)
    agent.fit(dataset, 2, callbacks=[])
    config = ValuationConfig(steps=5, resamples=2, hidden=(8,), gamma=GAMMA, dice_steps=0)
    estimate = value_policy(agent, dataset, config).estimates[-1]
    assert estimate.method == "world model"
    task, rows = make("Pendulum-v1"), dataset.transitions
    state, _ = task.state_from_obs(rows.obs[[a for a, _ in rows.episodes()]])
    returns = evaluate(agent, task, len(state), gamma=GAMMA, state=state)
    seen = 1 - GAMMA**29  # of the discount: rollouts end where 5 % of it is left
    assert estimate.value == pytest.approx(seen * returns.mean(), rel=0.02)


class Paying:
    """A model of the truth: every step pays 1, whatever is done, for ever."""

    num_members = 1

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        return Prediction(obs, torch.ones(len(obs)), torch.zeros(len(obs), dtype=torch.bool))


class Still(nn.Module):
    """Does nothing, with a memory that counts its steps or without one."""

    def __init__(self):
        super().__init__()
        self.unused, self.counts = nn.Parameter(torch.zeros(1)), []

    def forward(self, obs):
        return torch.zeros(len(obs), 1)


class Counting(Still):
    def step(self, obs, state, generator, *, deterministic=True):
        assert deterministic
        state = torch.zeros(len(obs), 1) if state is None else state
        self.counts.append(float(state.max()))
        return self(obs), state + 1

    def observe_reward(self, state, reward, action=None):
        return state


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("limit", [20, None])
@pytest.mark.parametrize("kind", [Still, Counting])
def test_what_is_imagined_ends_where_the_log_does(gamma, limit, kind):
    """Logs that were cut before an end: logged and imagined returns are over the same steps, and a
    memory lasts from step to step."""
    ended = np.zeros(200, dtype=bool)
    data = from_arrays(
        obs=np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32),
        action=np.zeros((200, 1), dtype=np.float32),
        reward=np.ones(200, dtype=np.float32),
        terminated=ended,
        truncated=np.arange(200) % 20 == 19,
        spec=Spec("mine", 2, 1, None, (-1.0,), (1.0,), limit),
    )
    agent = SimpleNamespace(policy=kind())
    found = valuation._in_model(agent, Paying(), data, ValuationConfig(gamma=gamma))
    assert found.difference == pytest.approx(0.0) and found.value >= 1.0
    assert agent.policy.counts == list(range(len(agent.policy.counts)))
    assert (len(agent.policy.counts) > 0) == (kind is Counting)


def test_the_critics_limits_are_at_the_gamma_that_it_learned_with(monkeypatch):
    data = world(episodes=20)
    agent = ALGORITHMS["discrete_iql"][0](
        data.spec, build_config("discrete_iql", {"gamma": 0.5, "hidden": [8]}), seed=0
    )
    config = ValuationConfig(
        steps=2, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2, model_starts=0
    )
    valued = value_policy(agent, data, config)
    low, high = valued.limits  # rewards of -0.5 to 1, and episodes that end
    assert valued.gamma == GAMMA and high == pytest.approx(1 / (1 - 0.5))
    assert low == pytest.approx(-0.5 / (1 - 0.5))


@pytest.mark.parametrize(("outside", "logged", "believed"), [
    (0.14, 0.0, True), (0.16, 0.0, False), (0.4, 0.2, True), (0.6, 0.4, False),
])  # fmt: skip
def test_how_many_actions_may_be_unlike_logged_ones(outside, logged, believed, monkeypatch):
    near = Support(outside, logged, np.zeros(1))
    monkeypatch.setattr(valuation, "_support", lambda policy, dataset: near)
    config = ValuationConfig(steps=2, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2)
    fitted = value_policies([Constant(1)], world(episodes=20), config)[0].estimates[0]
    assert fitted.believed is believed


def test_the_policys_own_critic_is_asked_about_allowed_actions(monkeypatch):
    data = world(episodes=20)
    rows = data.transitions
    mask = torch.ones(len(rows), 2, dtype=torch.bool)
    mask[:, 1] = rows.action == 1  # action 0 always, 1 where it was taken
    masked = data.with_transitions(replace(rows, action_mask=mask, next_action_mask=mask | True))
    asked = []

    def values(agent, obs, mask=None):
        asked.append(mask)
        return torch.zeros(len(obs))

    monkeypatch.setattr(valuation, "critic_values", values)
    config = ValuationConfig(
        steps=2, gamma=GAMMA, hidden=(8,), dice_steps=0, resamples=2, model_starts=0
    )
    settings = build_config("discrete_iql", {"hidden": [8]})
    agent = ALGORITHMS["discrete_iql"][0](masked.spec, settings, seed=0)
    assert value_policy(agent, masked, config).critic == 0
    starts = [a for a, _ in rows.episodes()]
    assert len(asked) == 1 and torch.equal(asked[0], mask[starts])
