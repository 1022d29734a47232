"""SHAC: its targets against a sum over all n-step returns, its gradient and its policy against the
linear-quadratic optimum of control theory, and its limits."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import linalg

from algorithms import SHAC
from algorithms.learners.critics import state_values
from algorithms.shac import trace_targets
from experiments.settings import build_config
from mbrl.training import check_state
from mbrl.types import Dataset, Provenance, Transitions
from tests.algorithms.test_pets import SPEC, A, B, Linear, Q, R
from tests.small import CONFIGS

GAMMA = 0.97


def logged(rows: int) -> Dataset:
    """Single steps of random actions from random states of the linear-quadratic task."""
    g = torch.Generator().manual_seed(0)
    obs = 1.5 * torch.randn(rows, 2, generator=g)
    action = 6.0 * torch.rand(rows, 1, generator=g) - 3.0
    step = Linear().step(obs, action)
    cut = torch.ones(rows, dtype=torch.bool)
    data = Transitions(obs, action, step.reward, step.obs, ~cut, cut)
    return Dataset(data, SPEC, Provenance("random actions"))


def mean_return(act: Callable[[np.ndarray], np.ndarray]) -> float:
    """Of 30 steps from standard normal states."""
    obs = torch.randn(500, 2, generator=torch.Generator().manual_seed(2)).numpy()
    total = np.zeros(len(obs))
    for _ in range(30):
        action = act(obs)
        total -= ((obs @ Q) * obs).sum(1) + ((action @ R) * action).sum(1)
        obs = obs @ A.T + action @ B.T
    return float(total.mean())


def test_targets_are_the_weighted_mean_of_all_n_step_returns() -> None:
    """TD(lambda) as Sutton and Barto's equation 12.3 writes it, with a terminal step."""
    g = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(5, 3, generator=g, dtype=torch.float64) for _ in range(2))
    alive = torch.ones(5, 3, dtype=torch.float64)
    alive[2:, 1] = 0.0
    targets = trace_targets(reward, value, alive, GAMMA, 0.8)
    for b in range(3):
        for t in range(5):
            returns = []
            for n in range(1, 5 - t + 1):
                going = [float(alive[t : t + k, b].prod()) for k in range(n)]
                total = sum(GAMMA**k * going[k] * float(reward[t + k, b]) for k in range(n))
                last = t + n - 1
                returns.append(
                    total + GAMMA**n * float(value[last, b] * alive[t : t + n, b].prod())
                )
            weights = [0.2 * 0.8**n for n in range(len(returns) - 1)]
            weights.append(1.0 - sum(weights))
            wanted = float(np.dot(weights, returns))
            assert float(targets[t, b]) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.long
def test_the_policy_becomes_the_linear_quadratic_regulator() -> None:
    """Its return against that of the gain from scipy's Riccati equation, which no policy beats."""
    dataset = logged(4000)
    small = CONFIGS["shac"] | {
        "hidden": [32], "critic_hidden": [32], "gamma": 0.97, "horizon": 10, "batch_size": 64,
        "cloning": 0, "critics_first": 50, "penalty": 0.0,
        "model": CONFIGS["shac"]["model"] | {"max_epochs": 10, "reward_updates": 1500},
    }  # fmt: skip
    agent = SHAC(dataset.spec, build_config("shac", small), seed=0)
    agent.fit(dataset, 600, callbacks=[])
    root = np.sqrt(0.97)
    p = linalg.solve_discrete_are(root * A, root * B, Q, R)
    gain = np.linalg.solve(R + 0.97 * B.T @ p @ B, 0.97 * B.T @ p @ A)
    best = mean_return(lambda obs: (-(obs @ gain.T)).clip(-3, 3))
    own = mean_return(lambda obs: agent.act(obs.astype(np.float32))[0])
    assert own > best - 0.1 * abs(best)


def test_the_logged_rows_set_the_limits() -> None:
    dataset = logged(600)
    agent = SHAC(dataset.spec, build_config("shac", CONFIGS["shac"]), seed=0)
    agent.fit(dataset, 3, callbacks=[])
    limits, rows = agent.learner.limits, dataset.transitions
    level = agent.learned.disagreement(rows.obs, rows.action, "epistemic_mean")
    assert 0.97 < float((level <= limits.edge).float().mean()) < 1.0
    assert float(limits.reward) == pytest.approx(float(rows.reward.std()), rel=0.1)
    assert bool((limits.low < rows.obs.amin(0)).all() and (limits.high > rows.obs.amax(0)).all())


def test_before_a_model_is_fitted_the_state_is_no_divergence() -> None:
    """A run in a task saves one before it takes its first step."""
    agent = SHAC(SPEC, build_config("shac", CONFIGS["shac"]), seed=0)
    check_state(agent.state_dict(), 0)


def test_equal_rewards_are_not_scaled() -> None:
    dataset = logged(600)
    dataset.transitions.reward.fill_(1.0)
    agent = SHAC(dataset.spec, build_config("shac", CONFIGS["shac"]), seed=0)
    agent.fit(dataset, 1, callbacks=[])
    assert float(agent.learner.limits.reward) == 1.0


def test_ends_beyond_the_logged_range_are_seen() -> None:
    """Imagined observations are kept within their limits, and what ends the task lies outside."""
    dataset = logged(600)
    agent = SHAC(dataset.spec, build_config("shac", CONFIGS["shac"]), seed=0)
    agent.fit(dataset, 1, callbacks=[])
    obs = dataset.transitions.obs[:32]
    agent.learner.limits.low.fill_(-0.5)
    agent.learner.limits.high.fill_(0.5)
    agent.learned.termination = lambda obs, action, reached: reached.abs().amax(1) > 0.6
    window = agent.learner.imagine(obs)
    reached, _, _ = agent.learned.mean_step(
        obs, agent.learner.actor(obs), torch.arange(32) % agent.learned.num_members
    )
    ended = reached.abs().amax(1) > 0.6
    assert 0 < int(ended.sum()) < 32
    assert torch.equal(window.alive[0] == 0.0, ended)
    assert float(window.obs[1:].detach().abs().max()) <= 0.5


def test_windows_of_learned_ends_are_weighted_by_their_chance() -> None:
    """A constant chance of an end p: each step is alive with (1 - p)^t, and targets of the critics
    hold for a window that is still there, whatever the chance that it came so far."""
    dataset = logged(600)
    rows = dataset.transitions
    rows.terminated[[5, 50, 500]] = True  # too few to learn more than their share
    rows.truncated[[5, 50, 500]] = False
    values = CONFIGS["shac"] | {"termination": "learned", "trace": 0.7, "gamma": 0.9}
    agent = SHAC(dataset.spec, build_config("shac", values), seed=0)
    agent.fit(dataset, 1, callbacks=[])
    learner, p = agent.learner, 0.3
    agent.learned.ends.share.fill_(p)
    obs = rows.obs[:32]
    window = learner.imagine(obs)
    assert window.alive.mean(1).tolist() == pytest.approx([(1 - p) ** t for t in (1, 2, 3)])
    value = state_values(learner.target, window.obs[1:].flatten(0, 1)).min(0).values.view(3, 32)
    paid = [window.reward[t] / (1 - p) ** t for t in range(3)]
    following, wanted = value[2], []
    for t in (2, 1, 0):
        following = paid[t] + 0.9 * (1 - p) * (0.3 * value[t] + 0.7 * following)
        wanted.append(float(following.detach().mean()))
    end = 0.9**3 * (1 - p) ** 3 * state_values(learner.target, window.obs[3]).min(0).values
    total = sum(0.9**t * (1 - p) ** t * paid[t] for t in range(3)) + end
    assert torch.allclose(learner.returns(window), total)
    metrics = learner.update_critics(window)
    assert float(metrics["critic/target"]) == pytest.approx(np.mean(wanted), rel=1e-5)
    # Ends that the dynamics have not seen pay what such ends paid, with their probability.
    agent.learned.ends.unseen.fill_(1.0)
    agent.learned.ends.reward.fill_(-5.0)
    member = torch.arange(32) % agent.learned.num_members
    _, reward, _ = agent.learned.mean_step(obs, learner.actor(obs), member)
    more = learner.imagine(obs).reward[0] - window.reward[0]
    assert torch.allclose(more, p * (-5.0 - reward) / learner.limits.reward, atol=1e-5)
