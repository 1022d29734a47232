"""The algorithms for discrete actions, against tables of values."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from algorithms import ALGORITHMS
from algorithms import discrete_cql as dq
from algorithms.discrete_sac_n import expectations
from experiments.settings import build_config
from mbrl.types import Dataset, Spec, Transitions

D = torch.float64


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def prepared(name: str, data: Dataset, **values: Any) -> Any:
    agent = ALGORITHMS[name][0](data.spec, build_config(name, values), seed=0)
    agent.prepare(data, lambda metrics: None)
    return agent


def trained(name: str, data: Dataset, steps: int, **values: Any) -> Any:
    agent = prepared(name, data, **values)
    return agent.fit(data, steps, callbacks=[])


def test_discrete_gap_and_double_q_by_hand() -> None:
    q = torch.tensor([[[1.0, 3.0], [0.0, -2.0]], [[2.0, 1.0], [1.0, 1.0]]], dtype=D)
    data_q = torch.tensor([[3.0, -2.0], [1.0, 1.0]], dtype=D)
    expected = [
        (special.logsumexp([1, 3]) - 3 + special.logsumexp([0, -2]) + 2) / 2,
        (special.logsumexp([2, 1]) - 1 + special.logsumexp([1, 1]) - 1) / 2,
    ]
    assert dq.conservative_gap(q, data_q).tolist() == pytest.approx(expected)
    # means [1.5, 2] and [0.5, -0.5]: actions 1 and 0, valued by the target critics
    target = torch.tensor([[[5.0, 6.0], [7.0, 8.0]], [[9.0, 4.0], [3.0, 2.0]]], dtype=D)
    assert dq.double_q_values(q, target).tolist() == [[6.0, 7.0], [4.0, 3.0]]


def test_expectations_against_a_loop() -> None:
    logits, values = randn(4, 3), randn(4, 3, seed=1)
    value, log_prob = expectations(logits, values)
    for b in range(4):
        pi = special.softmax(logits[b].numpy())
        assert float(value[b]) == pytest.approx(float(pi @ values[b].numpy()))
        assert float(log_prob[b]) == pytest.approx(-stats.entropy(pi))


NEXT = np.array([[1, 2, 0], [2, 0, 1], [0, 1, 2]])  # state and action to next state
REWARD = np.array([[0.0, 1.0, 0.2], [0.5, -1.0, 0.0], [0.1, 2.0, -0.5]])
ENDS = np.array([[False] * 3, [False, True, False], [False] * 3])
GAMMA = 0.8


def table(copies: int = 20) -> Dataset:
    """Every state and action of a three-state task, equally often."""
    s, a = (x.flatten() for x in np.meshgrid(np.arange(3), np.arange(3), indexing="ij"))
    s, a = np.tile(s, copies), np.tile(a, copies)
    eye = torch.eye(3)
    terminated = torch.tensor(ENDS[s, a])
    reward = torch.tensor(REWARD[s, a], dtype=torch.float32)
    next_obs = eye[NEXT[s, a]]
    fields = (eye[s], torch.tensor(a), reward, next_obs, terminated, ~terminated)
    return Dataset(Transitions(*fields), Spec("table", 3, 1, 3, max_episode_steps=10))


def backed_up(value: Any) -> np.ndarray:
    """The fixed point of Q(s, a) = r + gamma V(s') with V = value(Q) [3]."""
    q = np.zeros((3, 3))
    for _ in range(500):
        q = REWARD + GAMMA * np.where(ENDS, 0.0, value(q)[NEXT])
    return q


FAST = {"hidden": [32], "learning_rate": 5e-3, "tau": 0.1, "gamma": GAMMA, "batch_size": 64}


@pytest.mark.parametrize("critics", [pytest.param(1, marks=pytest.mark.long), 3])
def test_discrete_cql_without_its_term_finds_the_best_values(critics: int) -> None:
    agent = trained("discrete_cql", table(), 600, weight=0.0, critics=critics, **FAST)
    with torch.no_grad():
        got = agent.policy.values(torch.eye(3))
    best = backed_up(lambda q: q.max(1))
    assert np.abs(got.numpy() - best).max() < 0.1
    assert agent.act(torch.eye(3))[0].tolist() == best.argmax(1).tolist()


def test_discrete_iql_with_expectile_a_half_finds_the_logged_policys_values() -> None:
    agent = trained("discrete_iql", table(), 800, expectile=0.5, decay_steps=0, **FAST)
    with torch.no_grad():
        got = agent.learner.critic(torch.eye(3)).numpy()
        value = agent.learner.value(torch.eye(3))[:, 0].numpy()
    expected = backed_up(lambda q: q.mean(1))
    assert np.abs(got - expected).max() < 0.15
    assert np.abs(value - expected.mean(1)).max() < 0.15


def test_discrete_sac_finds_the_soft_values() -> None:
    """With a fixed temperature: V = alpha log sum_a exp(Q / alpha), and pi its softmax."""
    alpha = 0.3
    values = {"critics": 2, "alpha": alpha, "learn_alpha": False, "entropy_in_target": True}
    agent = trained("discrete_sac_n", table(), 800, **values, **FAST)
    expected = backed_up(lambda q: alpha * special.logsumexp(q / alpha, axis=1))
    with torch.no_grad():
        got = agent.learner.critic(torch.eye(3)).numpy()
        policy = torch.softmax(agent.policy.logits(torch.eye(3)), -1).numpy()
    assert np.abs(got - expected).max() < 0.15
    assert np.abs(policy - special.softmax(expected / alpha, axis=1)).max() < 0.1


@pytest.mark.long
def test_discrete_sac_temperature_reaches_the_target_entropy() -> None:
    agent = trained(
        "discrete_sac_n", table(), 1500, critics=2, entropy_fraction=0.6, alpha=0.5, **FAST
    )
    with torch.no_grad():
        policy = torch.softmax(agent.policy.logits(torch.eye(3)), -1).numpy()
    assert np.mean(stats.entropy(policy, axis=1)) == pytest.approx(0.6 * math.log(3), abs=0.1)


def arms(rows: int = 400) -> Dataset:
    """One state, one step: 70 % of the logged actions are arm 0 with reward 0, 25 % arm 1 with
    reward 1, the others arm 2 with reward -1."""
    draw = torch.rand(rows, generator=torch.Generator().manual_seed(0))
    action = (draw > 0.7).long() + (draw > 0.95).long()
    reward = torch.tensor([0.0, 1.0, -1.0])[action]
    flags, obs = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, 2)
    spec = Spec("arms", 2, 1, 3, max_episode_steps=1)
    return Dataset(Transitions(obs, action, reward, obs, flags, ~flags), spec)


ARMS: dict[str, dict[str, Any]] = {
    "bc": {},
    "discrete_cql": {"weight": 0.2},
    "discrete_iql": {"temperature": 10.0},
    "discrete_sac_n": {"critics": 3, "alpha": 0.1},
}


@pytest.mark.parametrize("name", list(ARMS))
def test_discrete_bandit(name: str) -> None:
    agent = trained(name, arms(), 300, hidden=[32], learning_rate=3e-3, **ARMS[name])
    assert int(agent.act(np.zeros(2))[0]) == (0 if name == "bc" else 1)


def test_discrete_cql_reaches_its_closed_form() -> None:
    """In a bandit with logged frequencies p the loss sum_a p (Q - r)^2 + w (log sum exp Q - p Q)
    has one stationary point; the rare arm is valued below the truth."""
    data, weight = arms(), 0.5
    p = torch.bincount(data.transitions.action).double().numpy() / len(data)
    r = np.array([0.0, 1.0, -1.0])

    def gradient(q: np.ndarray) -> np.ndarray:
        return 2 * p * (q - r) + weight * (special.softmax(q) - p)

    expected = optimize.root(gradient, r).x
    values = {"hidden": [32], "learning_rate": 3e-3, "batch_size": 400}
    agent = trained("discrete_cql", data, 1500, weight=weight, **values)
    with torch.no_grad():
        got = agent.policy.values(torch.zeros(1, 2))[0, 0].numpy()
    assert got == pytest.approx(expected, abs=0.1)
    assert got[2] < r[2]
