"""Losses of CQL, ReBRAC, AWAC, CRR and the discrete learners against slow loops, literal numbers
and scipy, and fixed points that are known in closed form."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats

from algorithms import ALGORITHMS
from algorithms import discrete_cql as dq
from algorithms.awac import softmax_weight
from algorithms.cql import bounded_multiplier, conservative_gap, multiplier_loss, sample_actions
from algorithms.crr import binary_weight
from algorithms.discrete_sac_n import expectations
from algorithms.learners.advantage_weighted import advantages, exponential_weight, weighted_cloning
from algorithms.learners.critics import q_values
from algorithms.learners.soft_actor_critic import soft_value_target
from algorithms.rebrac import actor_loss, cloning_penalty, next_actions
from experiments.settings import build_config
from mbrl.types import Dataset, Spec, Transitions
from tests.algorithms.reference_values import slow_soft_maximum, slow_value

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


# CQL.


def test_conservative_gap_against_a_loop() -> None:
    q, density, data_q = randn(2, 6, 5), randn(6, 5, seed=1), randn(2, 5, seed=2)
    for temperature in (1.0, 0.3):
        for n in range(2):
            total = 0.0
            for b in range(5):
                terms = [
                    math.exp(float(q[n, k, b] - density[k, b]) / temperature) for k in range(6)
                ]
                total += temperature * math.log(sum(terms)) - float(data_q[n, b])
            got = conservative_gap(q, density, data_q, temperature)
            assert float(got[n]) == pytest.approx(total / 5)


def test_importance_sampling_estimates_the_integral() -> None:
    """Uniform and Gaussian proposals together: log of the integral of exp Q, plus log K."""
    rng, count = np.random.default_rng(0), 200_000
    proposals = [stats.uniform(-1, 2), stats.truncnorm(-2, 2, 0.2, 0.4)]
    a = np.stack([p.rvs(count, random_state=rng) for p in proposals])
    density = np.stack([p.logpdf(x) for p, x in zip(proposals, a, strict=True)])

    def value(x: Any) -> Any:
        return np.where(np.abs(x - 0.2) < 0.8, 2 * np.cos(3 * x), -np.inf)  # where both reach

    q, log_density = torch.tensor(value(a)).flatten(), torch.tensor(density).flatten()
    got = conservative_gap(q[None, :, None], log_density[:, None], torch.zeros(1, 1, dtype=D), 1.0)
    expected = integrate.quad(lambda x: math.exp(2 * math.cos(3 * x)), -0.6, 1.0)[0]
    assert float(got) - math.log(2 * count) == pytest.approx(math.log(expected), abs=0.01)


def test_cql_step_against_an_independent_loop(pendulum: Dataset) -> None:
    """Sampled actions, densities, the soft maximum over all 3M of them and the Bellman error, one
    state and critic at a time. (A known reference code reduces over the three kinds of actions
    instead of the 3M actions.)"""
    learner = {"hidden": [16, 16], "batch_size": 8, "critics": 2}
    agent = prepared("cql", pendulum, learner=learner, samples=4, weight=5.0)
    batch = agent.next_batch()
    learner, gaps = agent.learner, []
    target = soft_value_target(learner, batch)
    for n in range(2):
        for b in range(8):
            logged = slow_value(learner.critic, n, batch.obs[b], batch.action[b])
            gaps.append(slow_soft_maximum(learner, batch, n, b, 4) - logged)
    metrics = learner.update_critic(batch, target)
    assert float(metrics["critic/gap"]) == pytest.approx(np.mean(gaps), rel=1e-4)


def test_cql_uniform_actions_are_uniform(pendulum: Dataset) -> None:
    agent = prepared("cql", pendulum, learner={"hidden": [8], "batch_size": 1000}, samples=2)
    batch = agent.next_batch()
    actions, density = sample_actions(agent.policy, batch.obs, batch.next_obs, batch.noise[2:])
    uniform = actions[:2].flatten().numpy()
    assert stats.kstest(uniform, stats.uniform(-1, 2).cdf).pvalue > 0.01
    assert torch.allclose(density[:2], torch.tensor(math.log(0.5)))


def test_cql_multiplier_moves_with_the_gap() -> None:
    log_multiplier = torch.tensor(0.5, requires_grad=True)
    gap = torch.tensor([3.0, 5.0])
    loss = multiplier_loss(log_multiplier, gap, 1.0)
    assert float(loss.detach()) == pytest.approx(-math.exp(0.5) * 3.0)
    loss.backward()
    assert float(log_multiplier.grad) < 0  # descent raises it: the gap is above the threshold
    assert float(bounded_multiplier(torch.tensor(20.0))) == 1e6


def slope(rows: int = 400) -> Dataset:
    """One state, one step, reward equal to the action; logged actions lie around -0.5."""
    generator = torch.Generator().manual_seed(0)
    spec = Spec("slope", 2, 1, None, (-1.0,), (1.0,), 1)
    action = (-0.5 + 0.15 * torch.randn(rows, 1, generator=generator)).clamp(-1, 1)
    flags = torch.ones(rows, dtype=torch.bool)
    obs = torch.zeros(rows, 2)
    return Dataset(Transitions(obs, action, action[:, 0], obs, flags, ~flags), spec)


def test_cql_bounds_the_value_from_below() -> None:
    """Unseen actions and the policy's own are valued below the truth; without the term they are
    not."""
    data = slope()
    learner = {"hidden": [32], "batch_size": 64, "actor_lr": 3e-3, "critic_lr": 3e-3}
    unseen = torch.linspace(0.2, 1.0, 20)[:, None]
    x = torch.cat([torch.zeros(20, 2), unseen], 1)
    below = {}
    for weight in (0.0, 1.0):
        agent = trained("cql", data, 300, learner=learner, weight=weight)
        with torch.no_grad():
            error = agent.learner.critic(x)[..., 0] - unseen[:, 0]
            sampled, _ = agent.policy.sample(torch.zeros(500, 2), randn(500, 1).float())
            own = agent.learner.critic(torch.cat([torch.zeros(500, 2), sampled], 1))[..., 0]
        below[weight] = float(error.max()), float((own - sampled[:, 0]).mean())
    assert below[1.0][0] < -0.2 and below[1.0][1] < 0
    assert below[0.0][0] > -0.1


# ReBRAC.


def test_rebrac_actor_loss_by_hand() -> None:
    q = torch.tensor([2.0, -4.0])
    action = torch.tensor([[0.5, 0.0], [0.0, 1.0]])
    logged = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert cloning_penalty(action, logged).tolist() == pytest.approx([0.25, 2.0])
    loss, metrics = actor_loss(q, action, logged, 0.4, True)
    assert float(loss) == pytest.approx(0.4 * 1.125 - (1 / 3) * -1.0)
    assert float(metrics["actor/bc"]) == pytest.approx(1.125)
    loss, _ = actor_loss(q, action, logged, 0.4, False)
    assert float(loss) == pytest.approx(0.4 * 1.125 + 1.0)


def test_rebrac_next_actions_stay_inside_an_episode() -> None:
    obs = torch.zeros(5, 1)
    action = torch.arange(1.0, 6.0)[:, None]
    terminated = torch.tensor([False, True, False, False, False])
    truncated = torch.tensor([False, False, False, True, False])
    data = Transitions(obs, action, torch.zeros(5), obs, terminated, truncated)
    got = next_actions(data)
    assert got["next_action"].flatten().tolist() == [2, 0, 4, 0, 0]
    assert got["has_next"].tolist() == [1, 0, 1, 0, 0]


def test_rebrac_target_against_a_loop(pendulum: Dataset) -> None:
    """Bounds of +-2 are scaled away, the cut episode's last row has no penalty."""
    agent = prepared("rebrac", pendulum, hidden=[16, 16], batch_size=600, critic_bc=0.5)
    buffer, data = agent.source.rows, pendulum.transitions
    rows, learner = buffer.batch(buffer.rows), agent.learner
    action = 2 * torch.rand(600, 1, generator=torch.Generator().manual_seed(0)) - 1
    with torch.no_grad():
        q = q_values(learner.critic_target, rows.next_obs, action)
        got = q - agent.next_penalty(rows, action)
        for row in (0, 57, 198, 199, 200, 399, 598, 599):
            x = torch.cat([data.next_obs[row], action[row]])[None]
            last = bool(data.ends[row])
            penalty = 0.0 if last else float(action[row] - data.action[row + 1] / 2) ** 2
            for n in range(2):
                expected = float(learner.critic_target.member(x, n)) - 0.5 * penalty
                assert float(got[n, row]) == pytest.approx(expected, abs=1e-5)
    assert data.ends.sum() == 3
    assert torch.allclose(rows.action, data.action / 2)


# AWAC and CRR.


def test_advantages_against_a_loop() -> None:
    q, sampled = randn(2, 5), randn(2, 3, 5, seed=1)
    for baseline, reduce in (("mean", np.mean), ("max", np.max)):
        got = advantages(q, sampled, baseline)  # type: ignore[arg-type]
        for b in range(5):
            values = [min(float(sampled[n, k, b]) for n in range(2)) for k in range(3)]
            expected = min(float(q[0, b]), float(q[1, b])) - reduce(values)
            assert float(got[b]) == pytest.approx(expected)


def test_agents_advantages_against_a_loop(pendulum: Dataset) -> None:
    agent = prepared("crr", pendulum, hidden=[16], batch_size=6, critics=2, samples=3)
    batch = agent.next_batch()
    got = agent.learner.advantage(batch)
    for b in range(6):
        with torch.no_grad():
            mean, std = agent.policy.unit(batch.obs[b]), agent.policy.log_std.exp()
            actions = [batch.action[b]]
            actions += [(mean + std * batch.noise[1 + k, b]).clamp(-1, 1) for k in range(3)]
            inputs = [torch.cat([batch.obs[b], a])[None] for a in actions]
            q = [min(float(agent.learner.critic.member(x, n)) for n in range(2)) for x in inputs]
        assert float(got[b]) == pytest.approx(q[0] - np.mean(q[1:]), abs=1e-5)


def test_advantage_weights() -> None:
    advantage = torch.tensor([-1.0, 0.0, 0.5, 9.0], dtype=D)
    expected = 4 * special.softmax(advantage.numpy() / 0.7)
    assert softmax_weight(advantage, 0.7).tolist() == pytest.approx(expected.tolist())
    assert float(softmax_weight(advantage, 0.7).mean()) == pytest.approx(1.0)
    assert binary_weight(advantage).tolist() == [0, 0, 1, 1]
    got = exponential_weight(advantage, 1 / 2.0, 20.0).tolist()
    assert got == pytest.approx([math.exp(-0.5), 1.0, math.exp(0.25), 20.0])
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    weight = torch.tensor([3.0, 0.5], requires_grad=True)
    loss, _ = weighted_cloning(log_prob, weight)
    assert float(loss.detach()) == pytest.approx((3.0 + 1.0) / 2)
    loss.backward()
    assert log_prob.grad.tolist() == [-1.5, -0.25] and weight.grad is None


# Discrete actions.


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


@pytest.mark.parametrize("critics", [1, 3])
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
