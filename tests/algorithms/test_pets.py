"""PETS: plans against the analytic optimum of a linear-quadratic task, particles against slow
loops, and what a planner carries from step to step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg
from torch import Tensor

from algorithms import PETS, PETSConfig
from algorithms.pets import (
    CrossEntropyPlanner,
    PlannerConfig,
    bounded_deviation,
    plan_values,
    refitted,
)
from experiments.settings import build_config
from mbrl.buffer import Buffer, transitions
from mbrl.collector import Collector
from mbrl.errors import ConfigError
from mbrl.evaluation import evaluate
from mbrl.tasks.base import Step
from mbrl.types import Dataset, Spec
from tests.small import CONFIGS
from world_models import Prediction

A = np.array([[1.0, 0.2], [0.0, 1.0]])
B = np.array([[0.02], [0.2]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.05]])
SPEC = Spec("lqr", 2, 1, None, (-3.0,), (3.0,), 30)


class Linear:
    """s' = A s + B a with reward -(s'Qs + a'Ra), as a world model and as a task."""

    spec, device, num_members = SPEC, torch.device("cpu"), 1

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        a, b, q, r = (torch.tensor(x, dtype=obs.dtype) for x in (A, B, Q, R))
        cost = (obs @ q * obs).sum(-1) + (action @ r * action).sum(-1)
        ended = torch.zeros(len(obs), dtype=torch.bool)
        return Prediction(obs @ a.T + action @ b.T, -cost, ended)

    def disagreement(self, obs, action, name):
        return torch.zeros(len(obs))

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn(count, 2, generator=generator)

    def observe(self, state: Tensor) -> Tensor:
        return state

    def step(self, state: Tensor, action: Tensor) -> Step:
        guess = self.predict(state, action, None)
        return Step(guess.next_obs, guess.next_obs, guess.reward, guess.terminated)


def riccati(steps: int) -> list[np.ndarray]:
    """Cost-to-go matrices P_steps .. P_0 of the finite-horizon problem, P_steps = 0."""
    found = [np.zeros((2, 2))]
    for _ in range(steps):
        p = found[-1]
        gain = np.linalg.solve(R + B.T @ p @ B, B.T @ p @ A)
        found.append(Q + A.T @ p @ (A - B @ gain))
    return found


def riccati_without_action(steps: int) -> np.ndarray:
    """Cost matrix of doing nothing for `steps` steps."""
    total, power = np.zeros((2, 2)), np.eye(2)
    for _ in range(steps):
        total, power = total + power.T @ Q @ power, A @ power
    return total


def test_plans_reach_the_analytic_cost() -> None:
    """The open-loop cost of a plan is within 1% of the Riccati solution's over the same horizon,
    for each of a batch of states at once."""
    config = PlannerConfig(horizon=10, population=400, iterations=25, particles=1)
    planner = CrossEntropyPlanner(SPEC, Linear(), config, seed=0)
    obs = torch.tensor([[1.0, 0.0], [-0.5, 0.8], [0.3, -0.6]])
    action, rest = planner.step(obs, None, torch.Generator().manual_seed(0))
    best = riccati(10)[-1]
    for b in range(3):
        s, cost = obs[b].double().numpy(), 0.0
        plan = np.concatenate([action[b].numpy(), 3.0 * rest[b, :-1, 0].numpy()])
        for a in plan:
            cost += s @ Q @ s + R[0, 0] * a * a
            s = A @ s + B[:, 0] * a
        optimum = obs[b].double().numpy() @ best @ obs[b].double().numpy()
        assert optimum <= cost < 1.01 * optimum


def test_replanning_reaches_the_regulator_with_few_iterations() -> None:
    """Thirty steps with warm-started plans cost within 3% of the infinite-horizon regulator's
    feedback; the library's evaluation carries the plans."""
    config = build_config(
        "pets", {"planner": {"horizon": 15, "population": 200, "iterations": 8, "particles": 1}}
    )
    task: Any = Linear()
    agent = PETS(SPEC, config, model=task, seed=0)
    got = evaluate(agent, task, 4, seed=1)
    p = linalg.solve_discrete_are(A, B, Q, R)
    gain = np.linalg.solve(R + B.T @ p @ B, B.T @ p @ A)
    costs = []
    for s in task.reset(4, torch.Generator().manual_seed(1)).double().numpy():
        costs.append(0.0)
        for _ in range(30):
            a = -gain @ s
            costs[-1] += s @ Q @ s + a @ R @ a
            s = A @ s + B @ a
    assert -got.mean() == pytest.approx(np.mean(costs), rel=0.03)
    assert (-got > np.array(costs) * (1 - 1e-6)).all()


def test_one_iteration_by_hand() -> None:
    config = PlannerConfig(population=4, elite_share=0.5, momentum=0.25)
    plans = torch.tensor([1.0, 2.0, 3.0, 8.0]).view(1, 4, 1, 1)
    values = torch.tensor([[0.0, 5.0, float("nan"), 1.0]])  # plans 2 and 8 are kept
    mean, variance = torch.full((1, 1, 1), 1.0), torch.full((1, 1, 1), 2.0)
    got, spread = refitted(plans, values, mean, variance, config)
    assert got.item() == pytest.approx(0.25 * 1.0 + 0.75 * 5.0)
    assert spread.item() == pytest.approx(0.25 * 2.0 + 0.75 * 9.0)


def test_plans_stay_inside_the_bounds() -> None:
    mean = torch.tensor([-1.0, -0.4, 0.0, 0.9])
    deviation = bounded_deviation(mean, torch.full((4,), 4.0))
    assert torch.allclose(deviation, torch.tensor([0.0, 0.3, 0.5, 0.05]))

    class Greedy(Linear):
        def predict(self, obs, action, generator, **rest):
            assert (action.abs() <= 3.0 + 1e-5).all()
            return super().predict(obs, action, generator)._replace(reward=action[:, 0])

    config = PlannerConfig(horizon=2, population=400, iterations=20, particles=1)
    planner = CrossEntropyPlanner(SPEC, Greedy(), config, seed=0)
    action, rest = planner.step(torch.zeros(2, 2), None, None)
    assert (action > 2.9).all() and (rest[:, -1] == 0).all()


class Members:
    """Member m adds m + 1 a step and pays what it reached; ends above `end`."""

    spec, device = SPEC, torch.device("cpu")

    def __init__(self, members: int, end: float = 1e9) -> None:
        self.num_members, self.end = members, end
        self.asked: list[Tensor] = []

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        self.asked.append(member.clone())
        following = obs + 1.0 + member[:, None]
        return Prediction(following, following[:, 0].clone(), following[:, 0] > self.end)


def test_ts_inf_keeps_members_and_ts_1_draws_anew() -> None:
    obs, actions = torch.zeros(2, 2), torch.zeros(2, 3, 6, 1)
    config, generator = PlannerConfig(particles=6), torch.Generator().manual_seed(0)
    fixed = Members(3)
    values = plan_values(fixed, obs, actions, config, generator)
    assert len(fixed.asked) == 6
    assert all(torch.equal(m, fixed.asked[0]) for m in fixed.asked)
    assert torch.equal(fixed.asked[0].view(6, 6), torch.tensor([[0, 1, 2, 0, 1, 2]] * 6))
    # member m earns (m + 1) (1 + 2 + ... + 6); the mean over members is 2 * 21
    assert torch.allclose(values, torch.full((2, 3), 42.0))
    drawn = Members(3)
    plan_values(drawn, obs, actions, replace(config, sampling="ts_1"), generator)
    assert not any(torch.equal(a, b) for a, b in zip(drawn.asked, drawn.asked[1:], strict=False))
    assert set(torch.cat(drawn.asked).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_ended_particles_earn_nothing_more(discount: float) -> None:
    """Against a loop over particles: the step that ends is still paid."""
    config = PlannerConfig(particles=4, discount=discount)
    generator = torch.Generator().manual_seed(0)
    actions = torch.zeros(1, 1, 8, 1)
    got = plan_values(Members(4, end=9.5), torch.zeros(1, 2), actions, config, generator)
    total = 0.0
    for m in range(4):
        s = 0.0
        for t in range(8):
            s += m + 1
            total += discount**t * s / 4
            if s > 9.5:
                break
    assert got.item() == pytest.approx(total)


class Counting:
    """A planner whose state counts the steps of each row's episode; the state is the action."""

    def step(self, obs, state, generator, *, deterministic=True):
        state = torch.zeros(len(obs), 2) if state is None else state
        return state[:, :1], state + 1.0

    def observe_reward(self, state, reward):
        return state

    def parameters(self):
        return iter([torch.zeros(1)])


class Leaver:
    """Row i ends after i + 2 steps; the reward is the action."""

    spec = Spec("leaver", 1, 1, None, (-100.0,), (100.0,), 6)
    device = torch.device("cpu")

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.stack([torch.arange(count) + 2.0, torch.zeros(count)], 1)

    def observe(self, state: Tensor) -> Tensor:
        return state[:, 1:]

    def step(self, state: Tensor, action: Tensor) -> Step:
        following = state + torch.tensor([0.0, 1.0])
        ended = following[:, 1] >= following[:, 0]
        return Step(following, following[:, 1:], action[:, 0], ended)


class Carrier:
    """The agent around `Counting`; keeps the actions that the collector asked for."""

    updates_per_step = 3

    def __init__(self) -> None:
        self.policy, self.rows = Counting(), []

    def act(self, obs, *, deterministic, state, generator):
        return self.policy.step(obs, state, generator)

    def observe(self, data) -> None:
        self.rows.append(data.action[:, 0].tolist())


def test_evaluation_and_collector_carry_the_state() -> None:
    """Each episode counts from 0, rows that leave take their state with them."""
    agent: Any = Carrier()
    task: Any = Leaver()
    got = evaluate(agent, task, 3)
    assert got.tolist() == [0 + 1, 0 + 1 + 2, 0 + 1 + 2 + 3]
    collector = Collector(task, envs=2, warmup=0)
    updates = [collector.collect(agent) for _ in range(4)]
    assert agent.rows == [[0, 0], [1, 1], [0, 2], [1, 0]]
    assert updates == [3, 3, 3, 3]
    again = Collector(task, envs=2, warmup=0)
    again.load_state_dict(collector.state_dict())
    again.collect(agent)
    assert agent.rows[-1] == [0, 1]


def test_act_takes_and_gives_plans(pendulum: Dataset) -> None:
    agent = PETS(pendulum.spec, build_config("pets", CONFIGS["pets"]), seed=0)
    with pytest.raises(ConfigError, match="not fitted"):
        agent.act(np.zeros(3))
    agent.fit(pendulum, 2, callbacks=[])
    one, plan = agent.act(np.zeros(3))
    assert one.shape == (1,) and plan.shape == (1, 3, 1)
    again, _ = agent.act(np.zeros(3))
    assert np.array_equal(one, again)  # the draws are fixed unless a generator is given
    batch, plans = agent.act(pendulum.transitions.obs[:5])
    assert batch.shape == (5, 1) and plans.shape == (5, 3, 1) and (batch.abs() <= 2).all()
    warm, _ = agent.act(pendulum.transitions.obs[:5], state=plans)
    assert not torch.equal(warm, batch)
    with pytest.raises(ConfigError, match=r"state has shape \(1, 3, 1\)"):
        agent.act(pendulum.transitions.obs[:5], state=plan)
    with pytest.raises(ConfigError, match=r"elite_share is 0\.0"):
        PlannerConfig(elite_share=0.0)
    generator = agent.generator.get_state()
    mixed, _ = agent.predict(pendulum.transitions.obs[:3], plans[:3], [True, False, False])
    for i, state in enumerate((None, plans[:3], plans[:3])):
        agent.generator.set_state(generator)
        assert np.array_equal(
            agent.predict(pendulum.transitions.obs[:3], state, [False] * 3)[0][i], mixed[i]
        )


@pytest.mark.long
def test_pets_learns_the_regulator_online() -> None:
    """From some hundred steps of experience, costs near those of the true regulator; doing nothing
    costs far more."""
    task: Any = Linear()
    task.spec = replace(SPEC, max_episode_steps=10)  # uniform actions drift far away
    model = {"members": 3, "elites": 3, "hidden": [32, 32], "weight_decay": [1e-5]}
    model |= {"min_epochs": 60, "max_epochs": 100, "target": "standardised", "batch_size": 32}
    planner = {"horizon": 10, "population": 60, "iterations": 4, "particles": 3}
    online = {"warmup": 300, "refit_every": 50, "refit_epochs": 50}
    config: PETSConfig = build_config(
        "pets",
        {
            "model": model | {"learning_rate": 3e-3},
            "planner": planner,
            "online": online,
            "termination": "never",
        },
    )
    agent = PETS(task.spec, config, seed=0).learn(task, 400, callbacks=[])
    assert agent.source.online and len(agent.source.rows) == 400
    starts = task.reset(4, torch.Generator().manual_seed(1)).double().numpy()
    p = linalg.solve_discrete_are(A, B, Q, R)
    best = np.mean([s @ p @ s for s in starts])
    idle = np.mean([s @ riccati_without_action(10) @ s for s in starts])
    got = -evaluate(agent, task, 4, seed=1).mean()
    assert best < got < 1.3 * best and got < 0.6 * idle


def test_a_buffer_gives_its_transitions_back(pendulum: Dataset) -> None:
    data = pendulum.transitions
    buffer = Buffer(pendulum.spec, len(data), 0.99)
    buffer.append(data)
    got = transitions(buffer)
    for name in ("obs", "action", "reward", "next_obs", "terminated"):
        assert torch.allclose(getattr(got, name).float(), getattr(data, name).float(), atol=1e-6)
