"""Three kinds of goal data: what is recorded of each."""

import pytest
import torch

from experiments.recording.goal_data import HELD, PIECE, Wandering, maze_kind
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
