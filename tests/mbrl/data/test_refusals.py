"""Data that would be read as something else than they say are refused by name."""

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from algorithms import BC, BCConfig
from mbrl.data import from_arrays, from_dataframe, from_log, from_sb3, load
from mbrl.data.columns import Columns
from mbrl.data.readers import published
from mbrl.data.readers.files import read_hdf5
from mbrl.errors import ConfigError, DataError
from mbrl.types import Spec

ROWS = 8


def arrays(**changes):
    generator = np.random.default_rng(0)
    whole = {
        "obs": generator.normal(size=(ROWS, 2)),
        "action": generator.uniform(-1, 1, (ROWS, 1)),
        "reward": generator.normal(size=ROWS),
        "next_obs": generator.normal(size=(ROWS, 2)),
        "terminated": np.zeros(ROWS, bool),
        "truncated": np.ones(ROWS, bool),
    }
    return whole | changes


def refused(match, **changes):
    given = arrays(**changes)
    with pytest.raises((DataError, ConfigError), match=match):
        from_arrays(**{name: value for name, value in given.items() if value is not None})


BOUNDS = {"action_dim": 1, "action_low": (-1.0,), "action_high": (1.0,)}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"action_high": (np.inf,)}, "action_high is .*inf.*must be finite"),
        ({"action_low": (-np.inf,)}, "action_low is .*inf.*must be finite"),
        ({"action_high": (np.nan,)}, "action_high"),
        ({"max_episode_steps": -5}, "max_episode_steps is -5, it must be at least 1"),
        ({"max_episode_steps": "100"}, "max_episode_steps is '100' .*integer"),
        ({"obs_dim": 2.5}, "obs_dim is 2.5 .*integer"),
        ({"reference_returns": (5.0, 5.0)}, "reference_returns is .*two different finite"),
        ({"reference_returns": (np.nan, 5.0)}, "reference_returns is .*two different finite"),
        ({"reference_returns": (1.0, "5")}, "reference_returns is .*two different finite"),
    ],
)
def test_an_impossible_spec_is_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        Spec(**{"task": "t", "obs_dim": 2, **BOUNDS, **changes})


def test_options_of_another_type_are_refused():
    refused("spec is 3; give a Spec or the id of a task", spec=3)
    refused("horizon is '100', it must be a number", horizon="100")
    refused("horizon is -3", horizon=-3)
    refused("action_high", action_low=-1.0, action_high=np.inf)


def test_missing_observations_are_named():
    with pytest.raises(DataError, match="no obs"):
        from_arrays(None, np.zeros(3), np.zeros(3), terminated=np.ones(3))
    with pytest.raises(DataError, match="obs"):
        from_log({"a": np.zeros(4), "r": np.zeros(4)}, action="a", reward="r")


def test_integers_that_float32_cannot_hold_are_refused():
    big = np.arange(ROWS * 2).reshape(ROWS, 2) + 2**24
    refused("obs .* float32", obs=big)
    refused("reward .* float32", reward=big[:, 1])
    refused("reward .* float32", reward=big[:, 1].astype(np.float64))
    even = from_arrays(**arrays(obs=big * 2 - big.min() * 2 + 2**24, next_obs=None) | {
        "truncated": np.arange(ROWS) == ROWS - 1, "next_obs": None
    })  # fmt: skip
    assert float(even.transitions.obs.max()) > 2**24


def test_masked_values_are_not_read_as_values():
    values = np.ma.MaskedArray(arrays()["obs"], mask=np.zeros((ROWS, 2), bool))
    from_arrays(**arrays(obs=values))
    values.mask[3, 1] = True
    refused("obs .*masked", obs=values)


def test_discrete_actions_beyond_every_table_are_refused():
    actions = np.arange(ROWS) % 2
    refused("discrete", action=actions.astype(np.uint64) * np.uint64(2**63))
    refused("discrete", action=np.where(actions == 1, 10**9, 0))
    refused("action", action=np.where(actions == 1, 2.0**63, 0.0), discrete=True)
    for value in (np.uint64(2**63), 2.0**63):
        spec = Spec(task="t", obs_dim=2, num_actions=3)
        refused("action is", action=np.where(actions == 1, value, 0), spec=spec)


def test_a_truncation_where_nothing_ended_is_refused():
    done = np.arange(ROWS) == ROWS - 1
    truncated = np.arange(ROWS) == 2
    refused("row 2 is truncated, but not done", terminated=None, done=done, truncated=truncated)


def test_images_are_refused():
    pixels = np.zeros((ROWS, 4, 4, 3), np.uint8)
    refused("image", obs=pixels, next_obs=pixels)
    space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    buffer = ReplayBuffer(8, space, spaces.Discrete(2), device="cpu")
    for _ in range(8):
        buffer.add(pixels[:1], pixels[:1], np.zeros((1, 1)), np.zeros(1), np.ones(1), [{}])
    with pytest.raises(DataError, match="image"):
        from_sb3(buffer)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
def test_buffers_with_several_discrete_actions_are_refused(space):
    obs = spaces.Box(-1, 1, (2,), np.float32)
    buffer = ReplayBuffer(8, obs, space, device="cpu")
    for _ in range(8):
        step = np.zeros((1, 2), np.float32)
        buffer.add(step, step, np.ones((1, 2)), np.zeros(1), np.ones(1), [{}])
    with pytest.raises(DataError, match="Multi"):
        from_sb3(buffer)


def test_duplicate_columns_are_refused(tmp_path):
    frame = pd.DataFrame(np.zeros((4, 4)), columns=["obs_0", "obs_0", "action_0", "reward"])
    frame["terminated"] = 1
    with pytest.raises(DataError, match="two columns"):
        from_dataframe(frame)
    path = tmp_path / "twice.csv"
    path.write_text("obs_0,obs_0,action_0,reward,terminated\n1,2,3,4,1\n")
    with pytest.raises(DataError, match="obs_0 twice"):
        load(str(path))


def write(path, **changes):
    with h5py.File(path, "w") as file:
        for name, value in arrays(**changes).items():
            if value is not None:
                file[name] = value
    return path


def test_hdf5_links_out_of_the_file_are_refused(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(64))
    other = write(tmp_path / "other.hdf5")
    cases = {
        "external storage": lambda f: f.create_dataset(
            "obs", (8,), "u1", external=[(str(secret), 0, 8)]
        ),
        "link": lambda f: f.__setitem__("obs", h5py.ExternalLink(str(other), "/obs")),
        "links": lambda f: f.__setitem__("obs", h5py.SoftLink("/reward")),
        "virtual": lambda f: f.create_virtual_dataset("obs", virtual(other)),
    }
    for word, make in cases.items():
        path = write(tmp_path / f"{word}.hdf5", obs=None)
        with h5py.File(path, "a") as file:
            make(file)
        with pytest.raises(DataError, match=f"obs .*{word.rstrip('s')}"):
            read_hdf5(path)


def virtual(other):
    layout = h5py.VirtualLayout((8, 2), "f8")
    layout[:] = h5py.VirtualSource(str(other), "obs", (8, 2))
    return layout


def test_hdf5_parts_that_were_never_written_are_refused(tmp_path):
    whole = write(tmp_path / "whole.hdf5", obs=None)
    with h5py.File(whole, "a") as file:
        file.create_dataset("obs", data=np.ones((8, 2)), chunks=(4, 2), compression="gzip")
    assert read_hdf5(whole)["obs"].all()
    for chunks in ((4, 2), None):
        path = write(tmp_path / f"{chunks}.hdf5", obs=None)
        with h5py.File(path, "a") as file:
            part = file.create_dataset("obs", (8, 2), chunks=chunks)
            if chunks:
                part[:4] = 1.0
        with pytest.raises(DataError, match=r"obs .*never written"):
            read_hdf5(path)


def minari(folder, totals=True, **changes):
    """A Minari folder of two episodes of 3 steps; `changes` of its metadata."""
    folder.mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32"}
    meta = {
        "total_steps": 6,
        "total_episodes": 2,
        "observation_space": json.dumps(box | {"shape": [2], "low": [-1, -1], "high": [1, 1]}),
        "action_space": json.dumps(box | {"shape": [1], "low": [-1], "high": [1]}),
    } | changes
    (folder / "metadata.json").write_text(json.dumps(meta))
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number in range(2):
            group = file.create_group(f"episode_{number}")
            group["observations"] = np.zeros((4, 2), np.float32)
            group["actions"] = np.zeros((3, 1), np.float32)
            group["rewards"] = np.zeros(3, np.float32)
            group["terminations"] = np.array([0.0, 0, 1])
            group["truncations"] = np.zeros(3)
    return folder


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"total_episodes": 3}, "announces 3 episodes"),
        ({"total_steps": "six"}, "total_steps"),
        ({"total_episodes": [2]}, "total_episodes"),
        ({"observation_space": json.dumps({"type": "Box", "shape": "two"})}, "metadata"),
        ({"action_space": 7}, "metadata"),
        ({"action_space": json.dumps({"type": "Discrete", "n": "many"})}, "metadata"),
        ({"action_space": json.dumps({"type": "Box", "shape": [1]})}, "metadata"),
        ({"env_spec": DEEP}, "metadata"),
        ({"env_spec": "[1, 2]"}, "metadata"),
        ({"env_spec": json.dumps({"id": "x", "max_episode_steps": "1"})}, "max_episode_steps"),
        ({"ref_min_score": 1.0, "ref_max_score": 1.0}, "reference_returns"),
    ],
)
def test_minari_metadata_of_other_types_are_refused(tmp_path, changes, match):
    with pytest.raises((DataError, ConfigError), match=match):
        load(str(minari(tmp_path / "data", **changes)))


def test_a_minari_folder_that_is_whole_is_read_and_a_cut_one_refused(tmp_path):
    folder = minari(tmp_path / "data")
    assert len(load(str(folder)).transitions.reward) == 6
    path = folder / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"main_data\.hdf5 is not a readable HDF5"):
        load(str(folder))


@pytest.mark.parametrize("value", [2.0, np.nan])
def test_minari_flags_that_are_neither_0_nor_1_are_refused(tmp_path, value):
    folder = minari(tmp_path / "data")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_1/truncations"][1] = value
    with pytest.raises(DataError, match=r"truncations is .*flags must be 0 or 1"):
        load(str(folder))


@pytest.mark.parametrize("value", [2.0, np.nan])
def test_neorl_flags_that_are_neither_0_nor_1_are_refused(value):
    done = np.array([[0.0], [value], [1.0]])
    rows = {name: np.zeros((3, 1)) for name in ("obs", "action", "reward", "next_obs")}
    with pytest.raises(DataError, match=r"x\.npz: done is .* in row 1; flags must be 0 or 1"):
        published._neorl_ends(Path("x.npz"), rows | {"done": done}, 10)
    columns = Columns(terminated=done[:, 0], truncated=np.zeros(3))
    with pytest.raises(DataError, match="flags must be 0 or 1"):
        published._first(columns, 1, Path("x.npz"))


def test_agents_do_not_change_with_torchs_default_type():
    spec = Spec(task="t", obs_dim=2, **BOUNDS)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"default dtype is torch\.float64"):
            BC(spec, BCConfig(hidden=(4,)), seed=0)
    finally:
        torch.set_default_dtype(torch.float32)
    agent = BC(spec, BCConfig(hidden=(4,)), seed=0)
    assert dataclasses.asdict(agent.config)["hidden"] == (4,)
