"""Goals of relabelled rows: from where they are, how often, what follows from them, and that no
goal is from another episode."""

from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS, GCBC, GCIVL, GCBCConfig, GCIVLConfig
from algorithms.sources.relabelled import GoalDraws, RelabelledRows, distances, rows_ahead
from mbrl.errors import ConfigError, DataError
from mbrl.goals import with_last_states
from mbrl.types import Dataset, Spec, Transitions

SPEC = Spec("line", 3, 1, None, (-1.0,), (1.0,), 10, goal=(2,), achieved=(1,))
COUNT = 4000
LENGTHS = (4, 1, 7)


def rows(lengths: tuple[int, ...] = LENGTHS, first: int = 0, **columns: Any) -> Dataset:
    """Episodes whose states are numbered: 100 e + t in episode e, and half of that as achieved.
    Recorded goals are -1. Every other episode terminates."""
    obs, following, last = [], [], []
    for e, length in enumerate(lengths, start=first):
        for t in range(length):
            number = 100.0 * e + t
            obs.append([number, number / 2, -1.0])
            following.append([number + 1, (number + 1) / 2, -1.0])
            last.append(t == length - 1)
    ends = torch.tensor(last)
    n, kind = len(obs), torch.arange(len(obs)) % 2 == 0
    data = Transitions(
        torch.tensor(obs), torch.zeros(n, 1), torch.zeros(n), torch.tensor(following),
        ends & kind, ends & ~kind, **columns,
    )  # fmt: skip
    return Dataset(data, SPEC)


def source(data: Dataset | None = None, count: int = COUNT, **options: Any) -> RelabelledRows:
    made = RelabelledRows(SPEC, 0.8, count, torch.device("cpu"), **options)
    made.prepare(data or rows(), lambda metrics: None)
    return made


def drawn(made: RelabelledRows, seed: int = 0) -> Any:
    return made.sample(torch.Generator().manual_seed(seed))


def near(share: float, probability: float) -> bool:
    return abs(share - probability) <= 4 * (probability * (1 - probability) / COUNT) ** 0.5


def test_future_goals_are_of_the_same_episode_and_uniform() -> None:
    batch = drawn(source(values=GoalDraws(0.0, 1.0, 0.0, geometric=False)))
    now, goal = batch.obs[:, 0], 2 * batch.obs[:, 2]
    assert torch.equal(now // 100, goal // 100) and (goal > now).all()
    assert torch.equal(batch.obs[:, 2], batch.next_obs[:, 2])
    assert (batch.reward == -1).all() and (batch.discount == 0.8).all()  # no end but the goal's
    begin = goal[now == 200]
    for number in range(201, 208):  # the state that the episode ended in, too
        share = float((begin == number).float().mean())
        assert abs(share - 1 / 7) < 4 * (1 / 7 * 6 / 7 / len(begin)) ** 0.5


def test_geometric_distances() -> None:
    unit = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    steps = distances(unit, torch.full((100_000,), 6), 0.8)
    shares = torch.bincount(steps, minlength=7)[1:].double() / 100_000
    expected = [0.2 * 0.8**k for k in range(5)] + [0.8**5]  # what lies beyond is at the end
    assert shares.tolist() == pytest.approx(expected, abs=1e-4)
    assert distances(unit, torch.full((100_000,), 6), 0.0).unique().tolist() == [1]
    assert distances(torch.tensor([0.0, 1 - 2**-24]), torch.tensor([6, 6]), None).tolist() == [1, 6]


def test_proportions_and_what_follows_from_the_goal() -> None:
    batch = drawn(source(values=GoalDraws()))
    now, goal = batch.obs[:, 0], 2 * batch.obs[:, 2]
    here = batch.reward == 0
    assert torch.equal(now[here], goal[here])
    assert torch.equal(batch.discount, torch.where(here, 0.0, 0.8))
    assert near(float(here.float().mean()), 0.2 + 0.3 / 12)
    other = (now // 100 != goal // 100).float().mean()
    same = (4 * 4 + 1 + 7 * 7) / 144  # a random row of one's own episode
    assert near(float(other), 0.3 * (1 - same))


def test_the_goal_is_a_row_and_not_a_distance() -> None:
    """Two rows at the same place: the goal of one of them is not reached at the other."""
    data = rows((1, 1))
    data.transitions.obs[:] = torch.tensor([5.0, 5.0, -1.0])
    batch = drawn(source(data, values=GoalDraws(0.0, 0.0, 1.0)))
    assert (batch.obs[:, 2] == 5).all()
    assert near(float((batch.reward == 0).float().mean()), 0.5)


def test_goals_that_rows_leave() -> None:
    """OGBench's goals: observations of the episode's rows, the last row's own behind the last."""
    uniform = GoalDraws(0.0, 1.0, 0.0, geometric=False)
    batch = drawn(source(values=uniform, policy=uniform, steps=3, last_states=False))
    now, goal = batch.obs[:, 0], 2 * batch.obs[:, 2]
    left = torch.tensor([3.0, 0.0, 6.0])[(now // 100).long()] + now // 100 * 100
    assert torch.equal(goal == now, now == left)  # only the last row is at its goal
    assert (goal <= left).all() and torch.equal(batch.reward, -(now != left).float())
    assert torch.equal(batch.discount, 0.8 * (now != left).float())
    begin = goal[now == 200]
    for number in range(201, 207):
        assert (
            abs(float((begin == number).float().mean()) - 1 / 6) < 4 * (5 / 36 / len(begin)) ** 0.5
        )
    policy_goal = 2 * batch.policy_goal[:, 0]
    assert torch.equal(batch.waypoint[:, 0], torch.minimum(now + 3, policy_goal))
    assert torch.equal(2 * batch.low_goal[:, 0], torch.minimum(now + 3, left))
    batch = drawn(source(policy=GoalDraws(0.0, 0.0, 1.0), steps=3, last_states=False))
    assert torch.equal(2 * batch.low_goal[:, 0], batch.waypoint[:, 0])  # of a goal from anywhere
    with pytest.raises(DataError, match="no episode has two rows"):
        source(rows((1, 1)), last_states=False)
    assert len(drawn(source(rows((1, 1)))).obs)


@pytest.mark.parametrize("name", ["gcivl", "gciql", "hiql", "saw", "hecrl", "gcbc", "smore"])
def test_whose_goals_rows_leave(name: str) -> None:
    """Learners whose values of goals follow from next values."""
    bootstrap = name in ("gcivl", "gciql", "hiql", "saw", "hecrl")
    cls, kind = ALGORITHMS[name]
    made = cls(SPEC, kind(), seed=0)
    assert made.source.last_states is not bootstrap


def test_values_of_a_chain_whose_end_no_row_leaves() -> None:
    """One-hot states 0 to 5: the value of state 4 is -(1 - gamma^n) / (1 - gamma) from n steps
    away, 0 at itself."""
    eye, zero = torch.eye(6), torch.zeros(60, 6)
    obs = torch.cat([eye[:-1].repeat(12, 1), zero], 1)
    following = torch.cat([eye[1:].repeat(12, 1), zero], 1)
    cut = torch.arange(60) % 5 == 4
    data = Transitions(obs, torch.zeros(60, 1), torch.zeros(60), following, cut & False, cut)
    spec = Spec(
        "chain", 12, 1, None, (-1.0,), (1.0,), 5, goal=tuple(range(6, 12)), achieved=tuple(range(6))
    )
    config = GCIVLConfig(
        hidden=(32,), batch_size=64, learning_rate=2e-3, tau=0.05, layer_norm=False
    )

    def values(data: Dataset, goal: int) -> list[float]:
        agent = GCIVL(spec, config, seed=0)
        agent.fit(data, 500, callbacks=[])
        obs = torch.cat([eye[:goal], zero[:goal]], 1)
        return agent.learner.value.mean(obs, eye[goal].expand(goal, 6)).tolist()

    exact = [-(1 - 0.99**n) / 0.01 for n in (5, 4, 3, 2, 1)]
    with pytest.warns(UserWarning, match="1 goals end episodes and are at no row"):
        assert values(Dataset(data, spec), 4) == pytest.approx(exact[1:], abs=0.3)
    stays = with_last_states(Dataset(data, spec))
    assert values(stays, 5) == pytest.approx(exact, abs=0.3)


def test_waypoints_end_at_the_goal_and_low_goals_at_the_episode() -> None:
    draws = GoalDraws(0.0, 1.0, 0.0, geometric=False)
    batch = drawn(source(policy=draws, steps=3))
    assert (batch.obs[:, 2] == -1).all()  # values' goals are those that were recorded
    now, goal = batch.obs[:, 0], 2 * batch.policy_goal[:, 0]
    assert torch.equal(batch.waypoint[:, 0], torch.minimum(now + 3, goal))
    length = torch.tensor([4.0, 1.0, 7.0])[(now // 100).long()]
    end = now // 100 * 100 + length
    assert torch.equal(2 * batch.low_goal[:, 0], torch.minimum(now + 3, end))
    batch = drawn(source(policy=GoalDraws(1.0, 0.0, 0.0), steps=3))
    assert torch.equal(batch.waypoint, batch.obs)
    batch = drawn(source(policy=GoalDraws(0.0, 0.0, 1.0), steps=3))
    now, end = batch.obs[:, 0], batch.obs[:, 0] // 100 * 100
    end = end + torch.tensor([4.0, 1.0, 7.0])[(end / 100).long()]
    assert torch.equal(batch.waypoint[:, 0], torch.minimum(now + 3, end))


def test_rows_that_enter_their_goals() -> None:
    batch = drawn(source(values=GoalDraws(0.0, 0.8, 0.2, geometric=False), entering=True))
    assert len(batch.obs) == 2 * COUNT
    second = batch.obs[COUNT:]
    assert torch.equal(2 * second[:, 2], batch.next_obs[COUNT:, 0])
    assert torch.equal(second[:, 2], batch.next_obs[COUNT:, 2])
    # Of an episode with one row there is one such row; later rows are entered from all before them.
    of_last = {float(n): float((second[:, 0] == n).float().mean()) for n in (200, 206)}
    assert near(of_last[200], 0.2 / 12 + 0.8 / 12 / 7)
    assert near(of_last[206], 0.2 / 12 + 0.8 / 12 * sum(1 / k for k in range(1, 8)))
    batch = drawn(source(values=GoalDraws(0.6, 0.4, 0.0, geometric=False), entering=True))
    first = float((batch.obs[COUNT:, 0] == 200).float().mean())
    assert near(first, 0.6 / 12 + 0.4 / 12 / 7)  # goals that are a row's own state, too


def test_rows_that_are_never_drawn_end_the_look_ahead() -> None:
    weight = torch.ones(12)
    weight[7] = 0.0  # the third row of the last episode
    data = rows(weight=weight)
    assert rows_ahead(data.transitions)["ahead"].tolist() == [4, 3, 2, 1, 1, 2, 1, 5, 4, 3, 2, 1]
    made = source(data, values=GoalDraws(0.0, 1.0, 0.0), entering=True)
    assert not (drawn(made).obs[:, 0] == 202).any()


def test_rows_that_lead_to_nobody_knows_what_are_no_steps() -> None:
    """The last row of the first episode and all of the second: what is left of the first is cut."""
    known = torch.tensor([True] * 3 + [False] * 2 + [True] * 7)
    made = source(rows(next_known=known), values=GoalDraws(current=0.0, future=1.0, random=0.0))
    plain = rows().transitions.select(known)
    kept = made.rows.whole()
    assert torch.equal(kept.obs, plain.obs) and torch.equal(kept.next_obs, plain.next_obs)
    batch = drawn(made)
    first = batch.obs[:, 0] < 100
    assert set(batch.obs[first, 2].tolist()) == {0.5, 1.0, 1.5}  # goals of the three rows
    with pytest.raises(DataError, match="no row has a next observation"):
        source(rows(next_known=torch.zeros(12, dtype=torch.bool)))
    agent = GCBC(SPEC, GCBCConfig(hidden=(4,), batch_size=4))
    data = rows(next_known=known)
    agent.fit(data, 1, callbacks=[]).fit(data, 1, callbacks=[])  # again the same
    with pytest.raises(ConfigError, match="rows of another dataset"):
        agent.fit(rows(first=3, next_known=known), 1, callbacks=[])


def test_experience_joins_by_episodes_and_a_full_ring_goes_round() -> None:
    """Two copies of a task, one with episodes of 3 steps and one of 5, in a ring of 12 rows."""
    made = source(rows((3,)), values=GoalDraws(0.0, 1.0, 0.0, geometric=False))
    made.collection = made.collection.__class__(capacity=12, warmup=0)
    step = [0, 0]
    for t in range(30):
        numbers, ends = [], []
        for copy, length in enumerate((3, 5)):
            episode = step[copy] // length
            numbers.append(100.0 * (10 * (copy + 1) + episode) + step[copy] % length)
            ends.append(step[copy] % length == length - 1)
            step[copy] += 1
        obs = torch.tensor([[n, n / 2, -1.0] for n in numbers])
        following = torch.tensor([[n + 1, (n + 1) / 2, -1.0] for n in numbers])
        cut = torch.tensor(ends)
        zero = torch.zeros(2)
        made.observe(Transitions(obs, zero[:, None], zero, following, cut & False, cut), t)
        if len(made.rows):
            batch = drawn(made, t)
            now, goal = batch.obs[:, 0], 2 * batch.obs[:, 2]
            assert torch.equal(now // 100, goal // 100) and (goal > now).all()
    assert len(made.rows) == 12 and (now >= 1000).all()


def test_wrong_uses() -> None:
    with pytest.raises(ConfigError, match=r"add up to 0\.9"):
        GoalDraws(0.2, 0.5, 0.2)
    with pytest.raises(ConfigError, match="differ in length"):
        source(rows(duration=torch.ones(12)))
