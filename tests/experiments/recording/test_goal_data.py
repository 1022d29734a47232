"""Three kinds of goal data: what is recorded of each."""

import pytest
import torch

from experiments.recording.goal_data import (
    HELD,
    PIECE,
    TURN,
    Player,
    Wandering,
    blocks_kind,
    maze_kind,
)
from mbrl import data
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.point_maze import search


def test_pieces_are_short_and_ways_lead_to_their_goals() -> None:
    middle = search("large").task.middle.repeat(2)
    longest = {}
    for kind in ("navigate", "stitch"):
        rows = data.load(f"pointmaze/large-{kind}").transitions
        starts = torch.tensor([a for a, _ in rows.episodes()])
        least = search("large").steps(rows.obs[starts].double() + middle)
        longest[kind] = float(least.max())
        assert rows.terminated[rows.ends].double().mean() > 0.97
    assert longest == {"navigate": 55.0, "stitch": PIECE}


def test_wandering_holds_directions_of_its_own() -> None:
    task, act = make("PointMaze-medium-v0"), Wandering()
    generator = torch.Generator().manual_seed(0)
    obs = task.observe(task.reset(200, generator))
    actions = torch.stack([act(obs, generator, t) for t in range(2 * HELD)])
    first, second = actions[:HELD].mean(0), actions[HELD:].mean(0)
    assert float((actions[:HELD] - first).abs().mean()) < 0.1
    assert float((first - second).abs().mean()) > 0.4
    assert float(first.mean().abs()) < 0.2 and float(first.std()) == pytest.approx(0.577, abs=0.1)
    goals = obs[:, 2:]
    same = (goals[:, None] == goals[None]).all(-1)
    apart = (first[:, None] - first[None]).abs().sum(-1)
    assert float(apart[~same].mean()) > 0.8 > 0.4 > float(apart[same].mean())


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="kind of goal data"):
        maze_kind("medium-play")
    with pytest.raises(ConfigError, match="kind of goal data"):
        blocks_kind("2-stitch")


def test_a_player_moves_a_block_a_turn_to_many_places() -> None:
    rows = data.load("pushblocks/2-play").transitions
    changed = (rows.next_obs - rows.obs)[:, 2:6].view(-1, 2, 2).abs().amax(-1) > 0
    moved, places = [], []
    for begin, end in rows.episodes():
        for turn in range(begin, end - TURN + 1, TURN):
            pushes = changed[turn : turn + TURN].sum(0)
            moved.append(int((pushes > 0).sum()))
            places.append(rows.next_obs[turn + TURN - 1, 2:4])
    # each push has one block in mind, and sometimes meets the other; a short one moves none
    share = torch.tensor(moved).bincount(minlength=3) / len(moved)
    assert share[1] > 0.55 and share[2] < 0.45
    assert (torch.stack(places).std(0) > 0.9).all()


def test_blocks_are_pushed_to_the_goals_and_rows_are_whole_numbers() -> None:
    dataset = data.load("pushblocks/2-navigate")
    rows = dataset.transitions
    assert rows.terminated[rows.ends].double().mean() > 0.4
    assert torch.equal((rows.action * 64).round() / 64, rows.action)
    assert torch.equal((rows.obs * 128).round() / 128, rows.obs)
    step = make("PushBlocks-2-v0").step(rows.obs.double(), rows.action)
    assert torch.equal(step.obs, rows.next_obs) and torch.equal(step.terminated, rows.terminated)


def test_players_side_by_side_differ() -> None:
    task, act = make("PushBlocks-2-v0"), Player()
    generator = torch.Generator().manual_seed(0)
    state = task.reset(1, generator).repeat(8, 1)
    state[:, 6:] += torch.arange(8)[:, None] / 64  # the goals alone differ
    actions = act(task.observe(state), generator, 0)
    assert len((2 * actions).round().unique(dim=0)) > 3
