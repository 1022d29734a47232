"""Valuations in a small world whose values are exact."""

import numpy as np
import pytest
import torch
from torch import nn

from algorithms import MOPO
from algorithms.evaluation.fqe import (
    LOGGED,
    FQEConfig,
    evaluate_policies,
    logged_next_actions,
)
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
from tests.small import CONFIGS

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
