"""Files of d3rlpy (as published, where they are here) and in OGBench's layout."""

from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch

from mbrl.data import load
from mbrl.errors import DataError

PUBLISHED = Path(__file__).resolve().parents[5] / "shared/data/d3rlpy"
published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="d3rlpy's files are not here")


@published
@pytest.mark.parametrize("tier", ["random", "replay"])
def test_d3rlpys_pendulum_rewards_follow_from_their_rows(tier):
    data = load(PUBLISHED / f"pendulum_{tier}.h5", spec="Pendulum-v1")
    rows = data.transitions
    assert len(data) == 100_000 - 498  # the last row of an episode holds no step
    theta = torch.atan2(rows.obs[:, 1], rows.obs[:, 0])
    cost = theta**2 + 0.1 * rows.obs[:, 2] ** 2 + 0.001 * rows.action[:, 0] ** 2
    assert torch.allclose(rows.reward, -cost, atol=2e-3)
    assert rows.terminated.sum() == 0 and len(rows.episodes()) == 498


@published
def test_d3rlpys_cartpole_rows_are_steps_of_gymnasiums():
    rows = load(PUBLISHED / "cartpole_replay.h5", spec="CartPole-v1").transitions
    assert len(rows.episodes()) == 1240 and rows.terminated.sum() == 1045
    assert bool((rows.reward == 1).all())
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    for row in [*range(200), *rows.terminated.nonzero().flatten().tolist()[:50]]:
        env.state = rows.obs[row].double().numpy()
        env.steps_beyond_terminated = None
        obs, _, terminated, _, _ = env.step(int(rows.action[row]))
        assert np.allclose(obs, rows.next_obs[row].numpy(), atol=1e-5)
        assert terminated == bool(rows.terminated[row])


def test_a_d3rlpy_file_of_another_version_is_refused(tmp_path):
    with h5py.File(tmp_path / "new.h5", "w") as file:
        file["observations"], file["actions"] = np.zeros((4, 2)), np.zeros((4, 1))
        file["rewards"], file["terminals"] = np.zeros(4), np.zeros(4)
        file["episode_terminals"], file["discrete_action"] = np.zeros(4), False
        file["version"] = 2
    with pytest.raises(DataError, match="written by d3rlpy 2"):
        load(tmp_path / "new.h5")


def ogbench(**changes):
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(9, 3)).astype(np.float32)
    # two trajectories of four steps; the goal is reached in row 1, and at the end of the second
    arrays = {
        "observations": obs[[0, 1, 2, 3, 4, 5, 6, 7]],
        "next_observations": obs[[1, 2, 3, 8, 5, 6, 7, 8]],
        "actions": rng.uniform(-1, 1, size=(8, 2)).astype(np.float32),
        "rewards": np.array([-1, 0, -1, -1, -1, -1, -1, 0.0]),
        "terminals": np.array([0, 0, 0, 1, 0, 0, 0, 1.0]),
        "masks": np.array([1, 0, 1, 1, 1, 1, 1, 0.0]),
    }
    return arrays | changes


def test_ogbenchs_masks_decide_the_bootstrap_and_terminals_the_trajectory(tmp_path):
    np.savez(tmp_path / "task.npz", **ogbench())
    data = load(tmp_path / "task.npz")
    rows = data.transitions
    assert rows.terminated.tolist() == [False, True, *[False] * 5, True]
    assert rows.truncated.tolist() == [*[False] * 3, True, *[False] * 4]
    assert torch.equal(rows.discounts(0.9) == 0, rows.terminated)
    assert "2 rows with mask 0 terminated" in " ".join(data.provenance.notes)
