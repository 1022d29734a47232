"""OGBench's files for goals, in small files of the published layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import GCIVL
from experiments.settings import build_config
from mbrl.data import check, load
from mbrl.data.cards import find_card
from mbrl.errors import DataError

LENGTHS = (4, 3)  # steps; a trajectory has one row more


def published(seed: int = 0, size: int = 2, **changes: Any) -> dict[str, np.ndarray]:
    """Rows s0 .. s4, s0 .. s3, each with an action, also the last of a trajectory."""
    rng = np.random.default_rng(seed)
    count = sum(n + 1 for n in LENGTHS)
    obs = rng.normal(size=(count, size))
    terminals = np.zeros(count, np.float32)
    terminals[np.cumsum([n + 1 for n in LENGTHS]) - 1] = 1.0
    arrays = {
        "observations": obs,
        "actions": rng.uniform(-1, 1, size=(count, 2)).astype(np.float32),
        "terminals": terminals,
        "qpos": obs.astype(np.float64),
        "qvel": np.zeros_like(obs),
    }
    return arrays | changes


def test_steps_goals_and_ends(tmp_path: Path) -> None:
    arrays = published()
    np.savez(tmp_path / "pointmaze-medium-navigate-v0.npz", **arrays)
    data = load(tmp_path / "pointmaze-medium-navigate-v0.npz")
    rows, spec = data.transitions, data.spec
    assert spec.task == "pointmaze-medium-navigate-v0" and spec.obs_dim == 4
    assert (spec.goal, spec.achieved) == ((2, 3), (0, 1))
    obs, action = arrays["observations"].astype(np.float32), arrays["actions"]
    expected, begin = [], 0
    for length in LENGTHS:
        goal = obs[begin + length]
        for t in range(begin, begin + length):
            end = t == begin + length - 1
            expected.append((np.r_[obs[t], goal], action[t], np.r_[obs[t + 1], goal], end))
        begin += length + 1
    assert len(rows) == sum(LENGTHS)
    for i, (here, act, following, end) in enumerate(expected):
        assert np.array_equal(rows.obs[i].numpy(), here)
        assert np.array_equal(rows.action[i].numpy(), act)
        assert np.array_equal(rows.next_obs[i].numpy(), following)
        assert bool(rows.truncated[i]) == end and not rows.terminated[i]
    assert (rows.reward == -1).all() and "2 trajectories" in " ".join(data.provenance.notes)
    assert not [
        f for f in check(tmp_path / "pointmaze-medium-navigate-v0.npz") if f.severity == "error"
    ]


def test_by_name_with_its_validation_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    (tmp_path / "ogbench").mkdir()
    for seed, end in enumerate(("", "-val")):
        file = tmp_path / "ogbench" / f"antmaze-large-explore-v0{end}.npz"
        np.savez(file, **published(seed, 29, actions=np.zeros((9, 8), np.float32)))
    train, val = (load("ogbench/antmaze-large-explore-v0", split=s) for s in ("train", "val"))
    for data, seed in ((train, 0), (val, 1)):
        assert data.spec.obs_dim == 58 and data.spec.achieved == tuple(range(29))
        first = torch.tensor(published(seed, 29)["observations"][0], dtype=torch.float32)
        assert torch.equal(data.transitions.obs[0, :29], first)
    config = build_config("gcivl", {"hidden": [8], "batch_size": 16})
    agent = GCIVL(train.spec, config, seed=0).fit(train, 3, callbacks=[])
    assert agent.act(val.transitions.obs)[0].shape == (7, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": np.zeros((9, 8, 8, 3), np.uint8)}, "not images or discrete actions"),
        ({"terminals": np.zeros(9, np.float32)}, "the file is cut short"),
        ({"actions": np.zeros((8, 2), np.float32)}, "9 observations, 8 actions"),
        ({"terminals": np.float32([0, 0, 0, 0, 1, 1, 0, 0, 1])}, "has one row and no step"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    np.savez(tmp_path / "raw.npz", **published(**changes))
    with pytest.raises(DataError, match=message):
        load(tmp_path / "raw.npz")


def test_names_are_those_of_published_files() -> None:
    card = find_card("ogbench")
    assert len(card.names()) == 20
    tier = card.tier("pointmaze-giant-stitch-v0")
    assert card.addresses(tier, str(tier.file)) == [
        "https://rail.eecs.berkeley.edu/datasets/ogbench/pointmaze-giant-stitch-v0.npz"
    ]
