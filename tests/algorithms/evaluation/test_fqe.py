"""Fitted Q evaluation where the values are known: a table, a linear-quadratic task, true returns of
graded policies; many policies at once against one at a time."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms import BC, NEUBAY, TD3BC, BCConfig, TD3BCConfig
from algorithms.evaluation.fqe import (
    LOGGED,
    FQEConfig,
    NearestActions,
    evaluate_policies,
    greedy_actions,
    return_moments,
    return_range,
    select,
)
from experiments.recording.environment import collect
from experiments.settings import build_config
from mbrl import statistics
from mbrl.errors import ConfigError, DataError, DivergenceError
from mbrl.tasks import make
from mbrl.types import Dataset, Spec, Transitions
from tests.mbrl.own_environments import Corridor
from tests.small import CONFIGS

SMALL = FQEConfig(hidden=(16, 16), steps=60, batch_size=32)


def flat(columns: list[list[Tensor]]) -> list[Tensor]:
    """Columns of [copies, ...] a time step, to rows in time order, copy after copy."""
    return [torch.stack(column, 1).flatten(0, 1) for column in columns]


class Table:
    """A random finite task: deterministic moves, some of which end it, one-hot observations."""

    def __init__(self, seed: int, states: int = 5, actions: int = 3) -> None:
        generator = np.random.default_rng(seed)
        self.states, self.actions = states, actions
        self.next = generator.integers(0, states, (states, actions))
        self.reward = generator.normal(1.0, 2.0, (states, actions))
        self.terminated = generator.random((states, actions)) < 0.15
        self.spec = Spec("table", states, 1, actions, max_episode_steps=8)
        self.policies = generator.integers(0, actions, (4, states))

    def values(self, policy: np.ndarray, gamma: float) -> np.ndarray:
        """V [states] of a policy [states] from the linear equations."""
        rows = np.arange(self.states)
        moves = np.zeros((self.states, self.states))
        moves[rows, self.next[rows, policy]] = 1.0 - self.terminated[rows, policy]
        return np.linalg.solve(np.eye(self.states) - gamma * moves, self.reward[rows, policy])

    def dataset(self, rows: int) -> Dataset:
        """Uniform actions from uniform starts, episodes truncated after 8 steps."""
        generator = np.random.default_rng(0)
        state, age, kept = 0, 8, []
        for _ in range(rows):
            if age == 8:
                state, age = int(generator.integers(self.states)), 0
            action, age = int(generator.integers(self.actions)), age + 1
            kept.append((state, action, age))
            state = int(self.next[state, action])
            if self.terminated[kept[-1][:2]]:
                age = 8
        s, a, ages = np.array(kept).T
        ends = torch.tensor(self.terminated[s, a])
        one_hot = torch.eye(self.states)
        truncated = torch.tensor(ages == 8) & ~ends
        truncated[-1] |= ~ends[-1]
        reward = torch.tensor(self.reward[s, a], dtype=torch.float32)
        data = Transitions(
            one_hot[s], torch.tensor(a), reward, one_hot[self.next[s, a]], ends, truncated
        )
        return Dataset(data, self.spec)

    def functions(self) -> list[Callable[[Tensor], Tensor]]:
        tables = [torch.tensor(policy) for policy in self.policies]
        return [lambda obs, table=table: table[obs.argmax(1)] for table in tables]


def test_values_of_a_table() -> None:
    """Four policies at once, each against its linear equations, at every start state; both ends of
    an episode occur."""
    task, gamma = Table(seed=1), 0.9
    data = task.dataset(3_000)
    flags = data.transitions
    assert flags.terminated.any() and flags.truncated.any()
    config = FQEConfig(hidden=(32, 32), steps=1_500, batch_size=64, gamma=gamma)
    result = evaluate_policies(task.functions(), data, config)
    starts = flags.obs[[first for first, _ in flags.episodes()]].argmax(1).numpy()
    expected = np.stack([task.values(policy, gamma)[starts] for policy in task.policies])
    assert np.ptp(expected.mean(1)) > 2.0
    assert abs(result.start_values - expected).max() < 0.05
    assert result.values == pytest.approx(expected.mean(1), abs=0.05)
    assert (result.td_errors < 0.05).all()


def line(noise: float = 0.05) -> tuple[Dataset, Callable[[float, float], float]]:
    """s' = 0.6 s + 0.4 a / 3 + noise with reward -(s^2 + 0.1 a^2), episodes of 20 uniform actions
    in [-3, 3], all truncated; and the value of a = -gain s over the starts."""
    generator = torch.Generator().manual_seed(0)
    start = 2 * torch.rand(200, 1, generator=generator) - 1
    columns: list[list[Tensor]] = [[] for _ in range(6)]
    obs, never = start, torch.zeros(200, dtype=torch.bool)
    for time in range(20):
        action = 3 * (2 * torch.rand(200, 1, generator=generator) - 1)
        reward = -(obs.square() + 0.1 * action.square())[:, 0]
        next_obs = 0.6 * obs + 0.4 * action / 3 + noise * torch.randn(200, 1, generator=generator)
        row = (obs, action, reward, next_obs, never, ~never if time == 19 else never)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        obs = next_obs
    spec = Spec("line", 1, 1, None, (-3.0,), (3.0,), 20)

    def true_value(gain: float, gamma: float) -> float:
        weight = (1 + 0.1 * gain**2) / (1 - gamma * (0.6 - 0.4 * gain / 3) ** 2)
        constant = gamma * weight * noise**2 / (1 - gamma)
        return -(weight * float(start.square().mean()) + constant)

    return Dataset(Transitions(*flat(columns)), spec), true_value


@pytest.mark.long
def test_values_of_a_linear_quadratic_task() -> None:
    """The value is quadratic in the state, far above the behaviour's; actions are in the task's
    units, not in [-1, 1]."""
    data, value = line()
    gains = [-2.0, -1.0, 0.0, 1.5]
    policies = [lambda obs, gain=gain: -gain * obs for gain in gains]
    config = FQEConfig(hidden=(32, 32), steps=2_500, batch_size=128, gamma=0.9)
    result = evaluate_policies(policies, data, config)
    expected = [value(gain, 0.9) for gain in gains]
    behaviour, _ = return_moments(data.transitions, 0.9)
    assert min(expected) - behaviour > 2.0
    assert result.values == pytest.approx(expected, abs=0.12)


def test_many_policies_are_many_fits(pendulum: Dataset, cartpole: Dataset) -> None:
    """The same numbers as one policy at a time, whatever its companions."""
    for data, agents, tolerance in (
        (pendulum, [TD3BC(pendulum.spec, TD3BCConfig((8,)), seed=k) for k in range(3)], 0.0),
        (cartpole, [BC(cartpole.spec, BCConfig((8,)), seed=k) for k in range(3)], 1e-4),
    ):
        together = evaluate_policies(agents, data, SMALL)
        again = evaluate_policies(agents, data, SMALL)
        other = evaluate_policies(agents, data, dataclasses.replace(SMALL, seed=1))
        assert np.array_equal(together.start_values, again.start_values)
        assert not np.array_equal(together.start_values, other.start_values)
        assert together.start_values.shape == (3, len(data.transitions.episodes()))
        for k, agent in enumerate(agents):
            alone = evaluate_policies([agent.policy], data, SMALL)
            for name in ("values", "start_values", "td_errors", "out_of_range"):
                got, expected = getattr(together, name)[k], getattr(alone, name)[0]
                assert got == pytest.approx(expected, rel=tolerance, abs=0), name


def test_ranking_follows_true_returns() -> None:
    """Proportional controllers of a point mass from uniform data: their order by fitted values is
    that of their true returns."""
    task = make("PointMass-v0")
    generator = torch.Generator().manual_seed(0)
    columns: list[list[Tensor]] = [[] for _ in range(6)]
    state = task.reset(100, generator)
    for time in range(30):
        action = 2 * torch.rand(100, 2, generator=generator) - 1
        step = task.step(state, action)
        cut = torch.full((100,), time == 29)
        row = (state, action, step.reward, step.obs, step.terminated, cut)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        state = step.state
    data = Dataset(Transitions(*flat(columns)), task.spec)
    gains = [-0.1, 0.0, 0.05, 0.1, 0.2, 0.4, 1.0]
    policies = [lambda obs, gain=gain: (-gain * obs).clamp(-1, 1) for gain in gains]

    def true_return(policy: Callable[[Tensor], Tensor]) -> float:
        state, total = task.reset(500, torch.Generator().manual_seed(1)), 0.0
        for _ in range(30):
            step = task.step(state, policy(state))
            state, total = step.state, total + float(step.reward.mean())
        return total

    config = FQEConfig(hidden=(32, 32), steps=1_500, batch_size=128, gamma=0.95)
    result = evaluate_policies(policies, data, config)
    returns = [true_return(policy) for policy in policies]
    assert statistics.rank_correlation(result.values, returns).estimate > 0.9
    assert select(result.values) == len(gains) - 1


class Opposite:
    """Begins with action 0 and then takes the action that was not taken the step before."""

    def step(
        self,
        obs: Tensor,
        state: Tensor | None,
        generator: torch.Generator | None,
        *,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor]:
        state = torch.ones(len(obs), 1) if state is None else state
        return 1 - state[:, 0].long(), state

    def observe_reward(self, state: Tensor, reward: Tensor, action: Tensor | None = None) -> Tensor:
        assert action is not None
        return action[:, None].float()


def test_value_of_a_policy_with_memory() -> None:
    """One state, two actions that pay 1 and -1/2, logged at random in episodes of several lengths:
    acting against the action before alternates, whatever the data did."""
    generator, gamma = torch.Generator().manual_seed(0), 0.8
    lengths = torch.randint(1, 9, (200,), generator=generator)
    ends, rows = lengths.cumsum(0) - 1, int(lengths.sum())
    action = torch.randint(2, (rows,), generator=generator)
    truncated = torch.zeros(rows, dtype=torch.bool)
    truncated[ends] = True
    same = torch.ones(rows, 1)
    reward = torch.tensor([1.0, -0.5])[action]
    data = Transitions(same, action, reward, same, torch.zeros_like(truncated), truncated)
    spec = Spec("one", 1, 1, 2, max_episode_steps=8)
    config = FQEConfig(hidden=(16,), steps=1_500, batch_size=64, gamma=gamma)
    policies = [Opposite(), lambda obs: torch.zeros(len(obs), dtype=torch.long)]
    found = evaluate_policies(policies, Dataset(data, spec), config)
    assert found.values == pytest.approx([(1 - 0.5 * gamma) / (1 - gamma**2), 5.0], abs=0.02)


@torch.no_grad()
def test_actions_of_a_memory_step_by_step(pendulum: Dataset) -> None:
    """One episode after the other, with the logged action and reward in the carried state."""
    policy = NEUBAY(pendulum.spec, build_config("neubay", CONFIGS["neubay"]), seed=1).policy
    rows = pendulum.transitions
    data = rows.select(slice(0, 80))
    cuts = torch.tensor([4, 33, 36, 79])
    data = dataclasses.replace(data, truncated=torch.zeros(80, dtype=torch.bool))
    data.truncated[cuts] = True
    starts = torch.tensor([first for first, _ in data.episodes()])
    assert starts.tolist() == [0, 5, 34, 37]
    found = greedy_actions(policy, data, starts)
    for e, (first, stop) in enumerate(data.episodes()):
        action, state = policy.step(data.obs[first : first + 1], None, None)
        torch.testing.assert_close(found[80 + e], action[0], rtol=1e-4, atol=1e-5)
        for t in range(first, stop):
            memory = state[:, : policy.encoder.state_size]
            known = data.action[t : t + 1] / 2.0  # Pendulum's torque reaches 2
            state = torch.cat([memory, known, data.reward[t : t + 1, None]], 1)
            action, state = policy.step(data.next_obs[t : t + 1], state, None)
            torch.testing.assert_close(found[t], action[0], rtol=1e-4, atol=1e-5)


def test_units_of_reward_are_undone(cartpole: Dataset, pendulum: Dataset) -> None:
    """Rewards times c give values times c, with terminations too; rewards plus b give values plus
    b / (1 - gamma) where nothing ends."""
    policies = [lambda obs: (obs[:, 0] > 0).long(), lambda obs: (obs[:, 2] > 0).long()]
    assert cartpole.transitions.terminated.any()
    plain = evaluate_policies(policies, cartpole, SMALL)
    scaled = evaluate_policies(policies, with_reward(cartpole, 300.0, 0.0), SMALL)
    assert scaled.start_values == pytest.approx(300.0 * plain.start_values, rel=1e-3)
    assert scaled.td_errors == pytest.approx(300.0 * plain.td_errors, rel=1e-3)
    policies = [lambda obs: obs[:, :1], lambda obs: -obs[:, 1:2]]
    plain = evaluate_policies(policies, pendulum, SMALL)
    shifted = evaluate_policies(policies, with_reward(pendulum, 1.0, 5.0), SMALL)
    assert shifted.values == pytest.approx(plain.values + 500.0, abs=1e-2 * abs(plain.values).max())


def with_reward(data: Dataset, scale: float, shift: float) -> Dataset:
    rows = data.transitions
    return data.with_transitions(dataclasses.replace(rows, reward=scale * rows.reward + shift))


def test_returns_by_hand() -> None:
    low, high = torch.tensor([-2.0, 3.0]), torch.tensor([1.0, 3.0])
    some, none = torch.tensor([True, False]), torch.tensor([False, False])
    assert return_range(low, some, 0.5) == return_range(low, none, 0.5) == (-4.0, 6.0)
    assert return_range(high, some, 0.5) == (1.0, 6.0)
    assert return_range(high, none, 0.5) == (2.0, 6.0)
    assert return_range(-high, some, 0.5) == (-6.0, -1.0)
    obs, action = torch.zeros(4, 1), torch.zeros(4, 1)
    reward = torch.tensor([1.0, 2.0, 4.0, 1.0])  # their mean for ever is 2 / (1 - 0.5) = 4
    terminated = torch.tensor([False, True, False, False])
    truncated = torch.tensor([False, False, False, True])
    rows = Transitions(obs, action, reward, obs, terminated, truncated)
    returns = [1 + 0.5 * 2, 2.0, 4 + 0.5 * (1 + 0.5 * 4), 1 + 0.5 * 4]
    assert return_moments(rows, 0.5) == pytest.approx((np.mean(returns), np.std(returns)))


def test_progress_and_range(pendulum: Dataset) -> None:
    """A report every so many updates, the last one with the result's values."""
    reports: list[dict[str, Tensor]] = []
    config = dataclasses.replace(SMALL, steps=50, report_every=20)
    policies = [lambda obs: obs[:, :1], lambda obs: obs[:, 1:2]]
    result = evaluate_policies(policies, pendulum, config, on_progress=reports.append)
    assert [int(r["fqe/update"]) for r in reports] == [20, 40, 50]
    assert all(value.ndim == 0 for report in reports for value in report.values())
    last = [float(reports[-1][f"fqe/value_{k}"]) for k in range(2)]
    assert result.values == pytest.approx(last, rel=1e-5)
    assert (result.out_of_range >= 0).all() and (result.out_of_range <= 1).all()


def test_divergence_is_reported(pendulum: Dataset) -> None:
    config = dataclasses.replace(SMALL, learning_rate=1e4, clip=False, report_every=10)
    with pytest.raises(DivergenceError, match=r"TD error of policy 0 is .* at update 10"):
        evaluate_policies([lambda obs: obs[:, :1]], pendulum, config)


def test_select() -> None:
    assert select([1.0, 3.0, 3.0, 2.0]) == 1
    for bad in ([], [1.0, float("nan")], [[1.0]]):
        with pytest.raises(ConfigError, match="values must be"):
            select(bad)


def test_bad_input_is_named(pendulum: Dataset, cartpole: Dataset) -> None:
    def good(obs: Tensor) -> Tensor:
        return obs[:, :1]

    cases = [
        (pendulum, [], ConfigError, "policies is empty"),
        (pendulum, [good, lambda obs: obs], ConfigError, "policy 1 gives actions of shape"),
        (pendulum, [lambda obs: obs[:, :1] / 0], DataError, "policy 0 gives .* not finite"),
        (pendulum, [3], ConfigError, "policy 0 is of type int"),
        (cartpole, [lambda obs: torch.full((len(obs),), 2)], ConfigError, "2 to 2, .* 0 to 1"),
        (
            pendulum.with_transitions(pendulum.transitions.select(slice(0))),
            [good],
            DataError,
            "no transitions",
        ),
    ]
    for data, policies, error, message in cases:
        with pytest.raises(error, match=message):
            evaluate_policies(policies, data, SMALL)
    for field, value in (
        ("gamma", 1.0),
        ("tau", 0.0),
        ("steps", 0),
        ("hidden", ()),
        ("learning_rate", -1.0),
    ):
        with pytest.raises(ConfigError, match=f"{field} is"):
            FQEConfig(**{field: value})


class Leaning(nn.Module):
    """Goes left (action 0) or right, where it is allowed to."""

    def __init__(self, action: int) -> None:
        super().__init__()
        self.lean = nn.Parameter(torch.tensor([0.5 - action, action - 0.5]))

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = self.lean.expand(len(obs), 2)
        return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).argmax(1)


def test_values_keep_to_action_masks() -> None:
    """In the corridor with a wall at its left end: right all the way costs one a step, 4 - c steps
    from cell c; left wherever it is allowed goes to and fro for ever."""
    dataset = collect(Corridor, steps=2000)
    gamma, rows = 0.9, dataset.transitions
    config = FQEConfig(hidden=(32, 32), steps=2500, batch_size=128, gamma=gamma)
    result = evaluate_policies([Leaning(1), Leaning(0), LOGGED], dataset, config)
    cells = np.array([int(rows.obs[a].argmax()) for a, _ in rows.episodes()])
    right = -(1 - gamma ** (4 - cells)) / (1 - gamma)
    assert np.abs(result.start_values[0] - right).max() < 0.15
    assert np.abs(result.start_values[1] + 1 / (1 - gamma)).max() < 0.15
    assert result.values[1] < result.values[2] < result.values[0]
    with pytest.raises(ConfigError, match="did not allow there"):
        evaluate_policies([lambda obs: torch.zeros(len(obs), dtype=torch.long)], dataset, config)


def test_after_a_cut_the_logged_policy_takes_an_allowed_action() -> None:
    rows = collect(Corridor, steps=400).transitions
    cut = (rows.truncated & ~rows.terminated).nonzero().flatten()
    assert len(cut)
    mask = torch.tensor([[False, True]]).repeat(len(cut), 1)  # whatever the neighbours did
    generator = torch.Generator().manual_seed(0)
    assert (NearestActions(rows)(rows.next_obs[cut], generator, mask) == 1).all()
    both = torch.ones(4000, 2, dtype=torch.bool)
    place = rows.next_obs[cut[:1]].expand(4000, -1)
    free = NearestActions(rows)(place, generator, both).float().mean()
    same = (rows.obs == place[:1]).all(1)
    assert abs(free - rows.action[same].float().mean()) < 0.25  # of 32 rows of one cell
