"""Observations with goals: their entries, what specs refuse, and files that keep them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import longreach as lr
from algorithms import GCBC, SMORe
from experiments.settings import build_config
from mbrl import data
from mbrl.data import save_npz
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import ConfigError
from mbrl.evaluation import require_fit
from mbrl.goals import (
    GoalEntries,
    count_unleft,
    goal_fields,
    with_last_states,
    with_reached_goals,
)
from mbrl.networks import Normaliser
from mbrl.tasks import make
from mbrl.types import Dataset, Spec, Transitions
from tests.small import with_goals


def spec(**fields: Any) -> Spec:
    return Spec(
        **({"task": "t", "obs_dim": 5, "action_low": (-1.0,), "action_high": (1.0,)} | fields)
    )


def test_entries_apart_and_together() -> None:
    entries = GoalEntries(spec(goal=(1, 4), achieved=(0, 2)))
    obs = torch.arange(10.0).view(2, 5)
    assert entries.own_of(obs).tolist() == [[0, 2, 3], [5, 7, 8]]
    assert entries.goal_of(obs).tolist() == [[1, 4], [6, 9]]
    assert entries.achieved_of(obs).tolist() == [[0, 2], [5, 7]]
    goal = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    placed = entries.with_goal(obs, goal)
    assert placed.tolist() == [[0, -1, 2, 3, -2], [5, -3, 7, 8, -4]]
    assert obs[0, 1] == 1  # the observation itself is as it was
    assert torch.equal(entries.own_of(placed), entries.own_of(obs))
    assert goal_fields(3, (1, 2)) == {"obs_dim": 5, "goal": (3, 4), "achieved": (1, 2)}


@pytest.mark.parametrize(
    ("goal", "achieved", "message"),
    [
        ((5,), (0,), r"name the entries \[5\]; they must be whole numbers from 0 to 4"),
        ((4,), (-1,), r"name the entries \[-1\]"),
        ((3, 4), (0,), "goal has 2 entries and achieved 1"),
        ((4,), (4,), "can be in goal once"),
        ((4, 4), (0, 1), "can be in goal once"),
    ],
)
def test_impossible_goals_are_refused(goal: Any, achieved: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(goal=goal, achieved=achieved)


def test_goals_last_in_dictionaries_and_files(tmp_path: Path, pendulum: Any) -> None:
    one = spec(goal=(3, 4), achieved=(0, 1))
    assert Spec.from_dict(one.to_dict()) == one
    assert "goal" not in spec().to_dict() and Spec.from_dict(spec().to_dict()) == spec()
    save_npz(with_goals(pendulum), tmp_path / "goals.npz")
    kept = data.load(tmp_path / "goals.npz").spec
    assert (kept.goal, kept.achieved) == ((2,), (0,))
    assert data.load("pointmaze/medium-navigate").spec == make(
        "PointMaze-medium-v0"
    ).spec.__class__(**{**vars(make("PointMaze-medium-v0").spec), "obs_names": ()})


def test_tasks_without_goals_are_refused(pendulum: Any) -> None:
    with pytest.raises(ConfigError, match=r"GCBC learns to reach goals, .*Spec\(goal=\(2, 3\)"):
        GCBC(pendulum.spec)
    with pytest.raises(ConfigError, match="has no goal"):
        GoalEntries(pendulum.spec)


def test_environments_of_gymnasium_robotics_have_goals() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    keys = {"achieved_goal": box, "desired_goal": box, "observation": spaces.Box(-1, 1, (4,))}
    made = Spec.from_spaces(spaces.Dict(keys), box, task="t")
    assert (made.goal, made.achieved, made.obs_dim) == ((2, 3), (0, 1), 8)
    assert not Spec.from_spaces(spaces.Dict({"desired_goal": box}), box, task="t").goal
    parts = spaces.Dict({"x": spaces.Box(-1, 1, (1,)), "y": spaces.Box(-1, 1, ())})
    nested = keys | {"achieved_goal": parts, "desired_goal": parts}
    made = Spec.from_spaces(spaces.Dict(nested), box, task="t")
    assert (made.goal, made.achieved, made.obs_dim) == ((2, 3), (0, 1), 8)
    pytest.importorskip("gymnasium_robotics", reason="gymnasium-robotics is not installed")
    task = make("gymnasium_robotics:PointMaze_UMaze-v3", max_episode_steps=5)
    assert (task.spec.goal, task.spec.achieved) == ((2, 3), (0, 1))
    agent = GCBC(task.spec, build_config("gcbc", {"hidden": [8], "batch_size": 8}))
    agent.fit(lr.collect(task, "random", steps=20), 2, callbacks=[])
    assert len(lr.evaluate(agent, task, episodes=2)) == 2


def place_and_nothing(rows: int = 400, unit: float = 1.0) -> Dataset:
    """Random places with goals of zeros, as where nobody had one."""
    place = 10 * unit * torch.rand(rows + 1, 2, generator=torch.Generator().manual_seed(0))
    obs = torch.cat([place, torch.zeros(rows + 1, 2)], 1)
    cut = torch.arange(rows) % 20 == 19
    nothing = torch.zeros(rows)
    rows_of = Transitions(obs[:-1], nothing[:, None], nothing, obs[1:], cut & ~cut, cut)
    return Dataset(rows_of, spec(obs_dim=4, goal=(2, 3), achieved=(0, 1)))


def test_drawn_goals_are_places_and_stay_for_a_step() -> None:
    given = place_and_nothing()
    rows, entries = with_reached_goals(given).transitions, GoalEntries(given.spec)
    assert torch.equal(entries.own_of(rows.obs), entries.own_of(given.transitions.obs))
    places = {tuple(x) for x in given.transitions.obs[:, :2].tolist()}
    drawn = [tuple(x) for x in entries.goal_of(rows.obs).tolist()]
    assert set(drawn) <= places and len(set(drawn)) > 150
    assert torch.equal(entries.goal_of(rows.obs), entries.goal_of(rows.next_obs))
    assert torch.equal(rows.next_obs[:, :2], given.transitions.next_obs[:, :2])


@pytest.mark.usefixtures("one_registry")
def test_the_score_of_an_export_is_of_goals_that_may_be_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    given = place_and_nothing()
    agent = GCBC(given.spec, build_config("gcbc", {"hidden": [8]}), seed=0)
    card = lr.export(agent, tmp_path / "out", given, fallback=[0.5])
    program = torch.export.load(tmp_path / "out" / "policy.pt2").module()
    obs = with_reached_goals(given, seed=1).transitions.obs
    with torch.no_grad():
        scores = dict(zip([o["name"] for o in card["outputs"]], program(obs), strict=True))
    assert float((scores["out_of_data"] > 1).float().mean()) < 0.1
    assert not bool(scores["fallback_used"].all())
    assert card["observations"][2]["high"] > 9 and card["data"]["rows"] == 400
    assert card["data"]["fingerprint"] == fingerprint(given)


def test_goals_are_standardised_by_what_is_reached() -> None:
    for unit in (1.0, 1000.0):
        given = place_and_nothing(unit=unit)
        config = build_config("smore", {"hidden": [8], "normalise_obs": True})
        agent = SMORe(given.spec, config, seed=0)
        agent.prepare(given, lambda metrics: None)
        scales = [
            m for module in agent.modules.values() for m in module.modules()
            if isinstance(m, Normaliser)
        ]  # fmt: skip
        assert scales
        for scale in scales:
            assert torch.allclose(scale.mean[:2], scale.mean[2:4])
            assert scale.mean[2] == pytest.approx(5 * unit, rel=0.1)


def test_rows_that_stay_in_last_states() -> None:
    """Two episodes, of 2 rows and of 1 without a flag: one row more behind each."""
    obs = torch.tensor([[0.0, 9.0], [1.0, 9.0], [5.0, 9.0]])
    rows = Transitions(
        obs, torch.full((3, 1), 0.7), torch.ones(3), obs + torch.tensor([1.0, 0.0]),
        torch.tensor([False, True, False]), torch.tensor([False, True, False]),
        state=torch.zeros(3, 1), weight=torch.tensor([1.0, 2.0, 3.0]),
    )  # fmt: skip
    place = Spec("line", 2, 1, None, (0.2,), (1.0,), 10, goal=(1,), achieved=(0,))
    made = with_last_states(Dataset(rows, place)).transitions
    assert made.obs[:, 0].tolist() == [0, 1, 2, 5, 6]
    assert made.next_obs[:, 0].tolist() == [1, 2, 2, 6, 6] and (made.next_obs[:, 1] == 9).all()
    assert made.action[:, 0].tolist() == pytest.approx([0.7, 0.7, 0.2, 0.7, 0.2])
    assert made.reward.tolist() == [1, 1, 0, 1, 0]
    for flag in (made.terminated, made.truncated):
        assert flag.tolist() == [False, False, True, False, False]
    assert made.episodes() == [(0, 3), (3, 5)]
    assert made.weight.tolist() == [1, 2, 2, 3, 3] and made.state is None
    discrete = Spec("d", 2, 1, 3, goal=(1,), achieved=(0,), action_mask=True)
    first, second = torch.tensor([[True, False, True]] * 3), torch.tensor([[False, True, True]] * 3)
    counted = replace(
        rows, action=torch.tensor([2, 0, 2]), state=None,
        action_mask=first, next_action_mask=second,
    )  # fmt: skip
    made = with_last_states(Dataset(counted, discrete)).transitions
    assert made.action.tolist() == [2, 0, 1, 2, 1]  # the first that is allowed there
    assert made.action_mask[2].tolist() == [False, True, True]
    assert torch.equal(made.action_mask[[0, 1, 3]], first)
    assert made.next_action_mask[2].tolist() == [False, True, True]


def test_ends_that_no_row_leaves_are_counted_where_they_repeat() -> None:
    def count(*episodes: list[float]) -> int:
        obs = torch.tensor([[s, 0.0] for e in episodes for s in e[:-1]])
        following = torch.tensor([[s, 0.0] for e in episodes for s in e[1:]])
        cut = torch.tensor([k == len(e) - 2 for e in episodes for k in range(len(e) - 1)])
        zero = torch.zeros(len(obs))
        rows = Transitions(obs, zero[:, None], zero, following, cut & False, cut)
        return count_unleft(rows, GoalEntries(spec(obs_dim=2, goal=(1,), achieved=(0,))))

    assert count([0, 1, 2], [1, 2], [3, 4]) == 1  # 4 ends one episode alone
    assert count([0, 1, 2], [1, 2], [2, 3]) == 0  # 2 is left by the last
    assert count([0.1, 0.2], [0.3, 0.4]) == 0


def test_goals_in_other_entries_are_refused() -> None:
    """As a log in the order observation, achieved, goal is against a task in gymnasium's."""
    mine = spec(goal=(3, 4), achieved=(0, 1))
    text = r"\(\(3, 4\), \(0, 1\)\) of .* against \(\(3, 4\), \(1, 2\)\)"
    with pytest.raises(ConfigError, match=text):
        require_fit(mine, spec(goal=(3, 4), achieved=(1, 2)))
    require_fit(mine, spec())
    require_fit(spec(), mine)
    require_fit(mine, replace(mine, task="other"))
