"""Readers of published formats, on files written by hand in the exact layout, quirks included."""

import hashlib
import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import torch

import mbrl.data.readers.published
from mbrl.data import check, load
from mbrl.data.cards import find_card
from mbrl.errors import ConfigError, DataError
from mbrl.tasks import make_for


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Every search path lies in the test's own folder, and no checksum is that of a real file."""
    for name in ("D4RL_DATASET_DIR", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
    return tmp_path


def d4rl_arrays(obs_dim=11, action_dim=3, dtype=np.float32):
    """Three episodes of 3, 4 and 2 rows: a termination, a timeout, and the file's end."""
    rng = np.random.default_rng(0)
    chains = [rng.normal(size=(n + 1, obs_dim)) for n in (3, 4, 2)]
    terminals, timeouts = np.zeros(9, bool), np.zeros(9, bool)
    terminals[2], timeouts[6] = True, True
    return {
        "observations": np.concatenate([c[:-1] for c in chains]).astype(dtype),
        "next_observations": np.concatenate([c[1:] for c in chains]).astype(dtype),
        "actions": rng.uniform(-1, 1, (9, action_dim)).astype(dtype),
        "rewards": rng.normal(size=9).astype(dtype),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def write_d4rl(path, arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
        file.create_dataset("infos/qpos", data=np.full((9, 6), np.nan))
        file.create_dataset("infos/action_log_probs", data=np.zeros(9))
        file["metadata/algorithm"] = "SAC"
        file["metadata/iteration"] = np.int32(500)
        file["metadata/policy/nonlinearity"] = "relu"
        file["metadata/policy/fc0/weight"] = np.zeros((4, 4))
    return path


@pytest.fixture
def any_checksum(monkeypatch):
    """Hand-written files stand in for published ones, whose checksum they cannot have."""
    monkeypatch.setattr(mbrl.data.readers.published, "checksum_findings", lambda *a, **k: ())


def hopper(home, arrays, name="gym_mujoco_v2/hopper_medium-v2.hdf5"):
    return write_d4rl(home / "data/d4rl" / name, arrays)


@pytest.mark.usefixtures("any_checksum")
def test_d4rl_stored_view_key_by_key(home):
    arrays = d4rl_arrays()
    hopper(home, arrays)
    data = load("d4rl/hopper-medium-v2")
    rows = data.transitions
    assert np.array_equal(rows.obs.numpy(), arrays["observations"])
    assert np.array_equal(rows.next_obs.numpy(), arrays["next_observations"])
    assert np.array_equal(rows.action.numpy(), arrays["actions"])
    assert np.array_equal(rows.reward.numpy(), arrays["rewards"])
    assert rows.terminated.nonzero().flatten().tolist() == [2]
    assert rows.truncated.nonzero().flatten().tolist() == [6, 8]  # the file ends in mid-episode
    assert data.spec.task == "Hopper-v4" and data.spec.reference_returns == (-20.272305, 3234.3)
    assert data.provenance.licence == "CC-BY-4.0" and len(data.provenance.sha256) == 64


def qlearning_view(arrays, horizon):
    """D4RL's rule, row by row: an independent loop over the file."""
    kept, step, count = [], 0, len(arrays["rewards"])
    for i in range(count - 1):
        if "timeouts" in arrays:
            final = bool(arrays["timeouts"][i])
        else:
            final = step == horizon - 1
        if final:
            step = 0
            continue
        step = 0 if arrays["terminals"][i] else step + 1
        kept.append(i)
    return kept


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize("both", [False, True])
def test_d4rl_next_row_view_equals_its_own_loop(home, both):
    arrays = d4rl_arrays()
    arrays["terminals"][6] |= both  # terminal and timeout on one row: dropped by D4RL
    hopper(home, arrays)
    rows = load("d4rl/hopper-medium-v2", next_obs="next-row").transitions
    kept = qlearning_view(arrays, 1000)
    assert kept == [0, 1, 2, 3, 4, 5, 7]
    following = arrays["observations"][[i + 1 for i in kept]]
    assert np.array_equal(rows.obs.numpy(), arrays["observations"][kept])
    assert np.array_equal(rows.next_obs.numpy(), following)
    assert np.array_equal(rows.terminated.numpy(), arrays["terminals"][kept])
    assert rows.episodes() == [(0, 3), (3, 6), (6, 7)]


@pytest.mark.usefixtures("any_checksum")
def test_d4rl_files_without_timeouts_and_next_observations_are_cut_by_length(home, monkeypatch):
    """The first version of the MuJoCo files; the limit is shortened to keep the file small."""
    arrays = d4rl_arrays()
    for name in ("timeouts", "next_observations"):
        arrays.pop(name)
    hopper(home, arrays, "gym_mujoco/hopper_mixed.hdf5")
    card = find_card("d4rl")
    environment = card.environments["hopper"]
    monkeypatch.setitem(
        card.environments, "hopper", type(environment)(**{**vars(environment), "horizon": 4})
    )
    rows = load("d4rl/hopper-medium-replay-v0").transitions
    kept = qlearning_view(arrays, 4)
    assert kept == [0, 1, 2, 3, 4, 5, 7]
    assert np.array_equal(rows.obs.numpy(), arrays["observations"][kept])


@pytest.mark.usefixtures("any_checksum")
def test_d4rl_quirks_two_dimensional_rewards_float_terminals_float64(home):
    arrays = d4rl_arrays(dtype=np.float64)
    plain = {k: v.copy() for k, v in arrays.items()}
    arrays["rewards"] = arrays["rewards"][:, None]
    arrays["terminals"] = arrays["terminals"].astype(np.float32)[:, None]
    hopper(home, arrays)
    rows = load("d4rl/hopper-medium-v2").transitions
    assert rows.reward.shape == (9,) and rows.obs.dtype == torch.float32
    assert np.array_equal(rows.reward.numpy(), plain["rewards"].astype(np.float32))
    assert rows.terminated.nonzero().flatten().tolist() == [2]


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize(
    ("name", "file", "sizes", "drop"),
    [
        ("kitchen-mixed-v0", None, (60, 9), ("next_observations", "timeouts")),
        ("antmaze-umaze-v2", None, (29, 8), ("next_observations",)),
        ("maze2d-large-v1", None, (4, 2), ("next_observations",)),
        ("pen-human-v1", None, (45, 24), ("next_observations",)),
        ("ant-medium-v2", None, (111, 8), ()),
    ],
)
def test_d4rl_families(home, name, file, sizes, drop):
    arrays = d4rl_arrays(*sizes)
    for key in drop:
        arrays.pop(key)
    arrays["terminals"] = arrays["terminals"].astype(np.float32)
    write_d4rl(home / "data/d4rl" / find_card("d4rl").tier(name).file, arrays)
    data = load(f"d4rl/{name}")
    assert (data.spec.obs_dim, data.spec.action_dim) == sizes
    assert data.transitions.terminated.sum() == 1
    if drop:
        assert any("taken from the next row" in note for note in data.provenance.notes)


def test_d4rl_files_are_found_where_d4rl_keeps_them(home, monkeypatch):
    arrays = d4rl_arrays()
    write_d4rl(home / "home/.d4rl/datasets/ant_medium-v2.hdf5", d4rl_arrays(111, 8))
    assert len(load("d4rl/ant-medium-v2", download=False)) == 9
    write_d4rl(home / "elsewhere/hopper_medium-v2.hdf5", arrays)
    monkeypatch.setenv("D4RL_DATASET_DIR", str(home / "elsewhere"))
    assert len(load("d4rl/hopper-medium-v2", verify=False)) == 9
    with pytest.raises(DataError, match=r"download=False.*\n.*hopper_expert-v2\.hdf5"):
        load("d4rl/hopper-expert-v2", download=False)


def test_a_published_checksum_is_compared_and_check_goes_on_after_it(home):
    arrays = d4rl_arrays()
    arrays["actions"][4, 1] = 3.0
    arrays["next_observations"][7] += 1.0
    hopper(home, arrays)
    with pytest.raises(DataError, match=r"sha256 is .* published is"):
        load("d4rl/hopper-medium-v2")
    errors = [f for f in check("d4rl/hopper-medium-v2") if f.severity == "error"]
    assert len(errors) == 3
    assert {f.row for f in errors} == {None, 4, 7}


def neorl_arrays(lengths=(4, 6, 3), obs_dim=12, limit=6):
    rng = np.random.default_rng(1)
    chains = [rng.normal(size=(n + 1, obs_dim)) for n in lengths]
    rows = sum(lengths)
    done = np.zeros((rows, 1), np.float32)
    done[np.cumsum(lengths) - 1] = 1.0
    return {
        "obs": np.concatenate([c[:-1] for c in chains]).astype(np.float32),
        "next_obs": np.concatenate([c[1:] for c in chains]).astype(np.float32),
        "action": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "reward": rng.normal(size=(rows, 1)).astype(np.float32),
        "done": done,
        "index": np.cumsum(lengths)[:-1].astype(np.float32),  # no leading 0, floats
    }


def short_limit(monkeypatch, family, name, horizon):
    card = find_card(family)
    environment = card.environments[name]
    changed = type(environment)(**{**vars(environment), "horizon": horizon})
    monkeypatch.setitem(card.environments, name, changed)


def write_npz(path, arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.usefixtures("any_checksum")
def test_neorl_key_by_key_with_done_split_by_length(home, monkeypatch):
    short_limit(monkeypatch, "neorl", "hopper", 6)
    arrays = neorl_arrays()
    write_npz(home / "data/neorl/Hopper-v3/Hopper-v3-low-1000-train-noise.npz", arrays)
    data = load("neorl/hopper-low")
    rows = data.transitions
    assert np.array_equal(rows.obs.numpy(), arrays["obs"])
    assert np.array_equal(rows.next_obs.numpy(), arrays["next_obs"])
    assert np.array_equal(rows.action.numpy(), arrays["action"])
    assert np.array_equal(rows.reward.numpy(), arrays["reward"][:, 0])
    assert rows.terminated.nonzero().flatten().tolist() == [3, 12]
    assert rows.truncated.nonzero().flatten().tolist() == [9]
    assert data.spec.obs_dim == 12 and data.spec.reference_returns == (5.0, 3294.0)
    assert any("3 trajectories in the file" in note for note in data.provenance.notes)


@pytest.mark.usefixtures("any_checksum")
def test_neorl_takes_the_first_trajectories_and_the_right_file(home, monkeypatch):
    short_limit(monkeypatch, "neorl", "hopper", 6)
    folder = home / "data/neorl/Hopper-v3"
    write_npz(folder / "Hopper-v3-low-1000-train-noise.npz", neorl_arrays())
    first = load("neorl/hopper-low", trajectories=2).transitions
    assert first.episodes() == [(0, 4), (4, 10)]
    write_npz(folder / "Hopper-v3-low-100-val-noise.npz", neorl_arrays((2, 6)))
    val = load("neorl/hopper-low", split="val").transitions
    assert val.episodes() == [(0, 2), (2, 8)]
    with pytest.raises(ConfigError, match="at most 10000"):
        load("neorl/hopper-low", trajectories=20000)


@pytest.mark.usefixtures("any_checksum")
@pytest.mark.parametrize(
    ("index", "text"),
    [
        ([4.0, 3.0], "index must rise"),
        ([4.0, 99.0], "index must rise"),
        ([5.0, 10.0], "done is set in row 3, where index ends no trajectory"),
        ([4.0, np.nan], "index must hold row numbers"),
    ],
)
def test_neorl_index_must_agree(home, monkeypatch, index, text):
    short_limit(monkeypatch, "neorl", "hopper", 6)
    arrays = neorl_arrays() | {"index": np.array(index, np.float32)}
    write_npz(home / "data/neorl/Hopper-v3/Hopper-v3-low-1000-train-noise.npz", arrays)
    with pytest.raises(DataError, match=text):
        load("neorl/hopper-low")


def neorl2_arrays():
    arrays = neorl_arrays((4, 6, 3), obs_dim=7)
    arrays["action"] = arrays["action"][:, :2]
    done, truncated = np.zeros(13, bool), np.zeros(13, bool)
    done[[3, 12]], truncated[9] = True, True
    return arrays | {"done": done, "truncated": truncated}


@pytest.mark.usefixtures("any_checksum")
def test_neorl2_npz_and_its_default_number_of_trajectories(home):
    arrays = neorl2_arrays()
    write_npz(home / "home/.neorl2/datasets/RocketRecovery-train.npz", arrays)
    data = load("neorl2/RocketRecovery")
    rows = data.transitions
    assert np.array_equal(rows.obs.numpy(), arrays["obs"])
    assert np.array_equal(rows.terminated.numpy(), arrays["done"])
    assert np.array_equal(rows.truncated.numpy(), arrays["truncated"])
    assert any("100 asked for" in note for note in data.provenance.notes)
    assert len(load("neorl2/RocketRecovery", trajectories=1)) == 4


@pytest.mark.parametrize("nested", [False, True])
def test_neorl2_parquet_copy(home, monkeypatch, nested):
    short_limit(monkeypatch, "neorl2", "RocketRecovery", 6)
    arrays = neorl2_arrays()
    ends = arrays["done"] | arrays["truncated"]
    columns = {"rewards": arrays["reward"][:, 0], "terminals": ends}
    for name, key in (("observations", "obs"), ("next_observations", "next_obs"),
                      ("actions", "action")):  # fmt: skip
        if nested:
            columns[name] = list(arrays[key])
        else:
            columns |= {f"{key}_{i}": column for i, column in enumerate(arrays[key].T)}
    path = home / "data/neorl2/RocketRecovery-train.parquet"
    path.parent.mkdir(parents=True)
    pa.parquet.write_table(pa.table(columns), path)
    rows = load("neorl2/RocketRecovery", download=False).transitions
    assert np.array_equal(rows.obs.numpy(), arrays["obs"])
    assert np.array_equal(rows.terminated.numpy(), arrays["done"])
    assert np.array_equal(rows.truncated.numpy(), arrays["truncated"])


BOX = {"type": "Box", "dtype": "float64", "shape": [3], "low": [-np.inf] * 3, "high": [np.inf] * 3}
ACT = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}


def minari_folder(
    folder, kind="hdf5", obs_space=BOX, act_space=ACT, steps=9, episodes=None, kwargs=None
):
    data = folder / "data"
    data.mkdir(parents=True)
    env = {"id": "Pendulum-v1", "max_episode_steps": 200, "kwargs": kwargs or {}}
    meta = {
        "total_steps": steps, "total_episodes": 2, "data_format": kind,
        "observation_space": json.dumps(obs_space), "action_space": json.dumps(act_space),
        "env_spec": json.dumps(env), "algorithm_name": "SAC", "minari_version": "0.5.4",
        "ref_min_score": -1200.0, "ref_max_score": -140.0,
    }  # fmt: skip
    (data / "metadata.json").write_text(json.dumps(meta))
    episodes = episodes if episodes is not None else minari_episodes()
    if kind == "hdf5":
        with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
            for number, episode in enumerate(episodes):
                group = file.create_group(f"episode_{number}")
                group.attrs.update({"id": number, "seed": 1, "total_steps": 1})
                for key, value in episode.items():
                    group[key] = value
                group["infos"] = np.array(["{}"] * 2, dtype=h5py.string_dtype())
        return data
    for number, episode in enumerate(episodes):
        pad = {k: np.concatenate([v, v[-1:] * 0]) for k, v in episode.items()}
        pad["observations"] = episode["observations"]
        columns = {"episode_id": pa.array([number] * len(pad["observations"]), pa.int32())}
        for key, value in pad.items():
            flat = value.reshape(len(value), -1)
            columns[key] = (
                pa.FixedSizeListArray.from_arrays(flat.reshape(-1), flat.shape[1])
                if value.ndim > 1
                else pa.array(value)
            )
        pa.dataset.write_dataset(
            pa.RecordBatch.from_pydict(columns), data, format="arrow",
            partitioning=["episode_id"], existing_data_behavior="overwrite_or_ignore",
        )  # fmt: skip
        (data / str(number) / "metadata.json").write_text(json.dumps({"id": number}))
    return data


def minari_episodes():
    rng = np.random.default_rng(3)
    return [
        {
            "observations": rng.normal(size=(n + 1, 3)),
            "actions": rng.uniform(-2, 2, (n, 1)).astype(np.float32),
            "rewards": rng.normal(size=n),
            "terminations": np.arange(n) == (n - 1 if n == 4 else -1),
            "truncations": np.arange(n) == (n - 1 if n == 5 else -1),
        }
        for n in (4, 5)
    ]


@pytest.mark.parametrize("kind", ["hdf5", "arrow"])
def test_minari_key_by_key(home, kind):
    folder = home / "home/.minari/datasets/my/pendulum-v0"
    data_folder = minari_folder(folder, kind)
    first, second = minari_episodes()
    data = load("minari/my/pendulum-v0")
    rows = data.transitions
    expected = np.concatenate([first["observations"][:-1], second["observations"][:-1]])
    following = np.concatenate([first["observations"][1:], second["observations"][1:]])
    assert np.array_equal(rows.obs.numpy(), expected.astype(np.float32))
    assert np.array_equal(rows.next_obs.numpy(), following.astype(np.float32))
    actions = np.concatenate([first["actions"], second["actions"]])
    assert np.array_equal(rows.action.numpy(), actions)
    rewards = np.concatenate([first["rewards"], second["rewards"]])
    assert np.array_equal(rows.reward.numpy(), rewards.astype(np.float32))
    assert rows.terminated.nonzero().flatten().tolist() == [3]
    assert rows.truncated.nonzero().flatten().tolist() == [8]
    assert data.spec.task == "Pendulum-v1" and data.spec.reference_returns == (-1200.0, -140.0)
    assert data.spec.action_high == (2.0,) and data.spec.max_episode_steps == 200
    assert len(load(data_folder)) == len(load(folder)) == 9  # by path, too


def test_minari_discrete_actions_start_anywhere(home):
    episodes = minari_episodes()
    for episode in episodes:
        episode["actions"] = np.arange(len(episode["rewards"])) % 3 + 1
    space = {"type": "Discrete", "dtype": "int64", "start": 1, "n": 3}
    minari_folder(home / "data/minari/a", act_space=space, episodes=episodes)
    rows = load("minari/a").transitions
    assert rows.action.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("name", ["pendulum/medium", "d4rl/hopper-medium-v2", "minari/x", "x.npz"])
@pytest.mark.parametrize("options", [{"split": "val"}, {"trajectories": 5}])
def test_parts_of_data_that_have_none_are_refused(home, name, options):
    """A request for held-out data is not answered with those to train on."""
    np.savez(home / "x.npz", obs=np.zeros((2, 1)))
    path = str(home / name) if name == "x.npz" else name
    (option,) = options
    with pytest.raises(
        ConfigError, match=f"{option} is .* has no such parts; it is an option of neo"
    ):
        load(path, download=False, **options)
    with pytest.raises(ConfigError, match=r"of neorl, neorl2\. Leave"):
        load("ogbench/antmaze-large-explore-v0", trajectories=5, download=False)


def test_minari_options_of_the_environment_are_those_of_the_task(home):
    kwargs = {"g": 5.0, "render_mode": "rgb_array"}
    minari_folder(home / "data/minari/moon", kwargs=kwargs)
    spec = load("minari/moon").spec
    assert spec.task_options == {"g": 5.0}
    with pytest.raises(ConfigError, match="'Pendulum-v1' has no option 'g'"):
        make_for(spec)


def test_minari_names_the_episode_that_lacks_something(home):
    data = minari_folder(home / "data/minari/many", steps=59, episodes=minari_episodes()[:1])
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for number in range(11):
            for key, value in minari_episodes()[0].items():
                if (number, key) != (2, "rewards"):
                    file[f"episode_{number}/{key}"] = value
    with pytest.raises(DataError, match="episode_2 has no rewards"):
        load("minari/many")


def test_minari_problems_say_what_to_do(home):
    with pytest.raises(DataError, match="minari download mujoco/hopper/medium-v0"):
        load("minari/mujoco/hopper/medium-v0")
    spaces = {"type": "Dict", "subspaces": {"observation": BOX, "goal": BOX}}
    minari_folder(home / "data/minari/dict", obs_space=spaces)
    with pytest.raises(DataError, match=r"Dict of observation, goal.*flatten"):
        load("minari/dict")
    minari_folder(home / "data/minari/short", steps=10)
    with pytest.raises(DataError, match="announces 10 steps, there are 9"):
        load("minari/short")
    broken = minari_episodes()
    broken[1]["actions"] = broken[1]["actions"][:-1]
    minari_folder(home / "data/minari/uneven", episodes=broken)
    with pytest.raises(DataError, match=r"episode 1 must have T \+ 1 observations"):
        load("minari/uneven")
    (home / "data/minari/short/data/main_data.hdf5").write_bytes(b"not a file")
    with pytest.raises(DataError, match="not a readable HDF5"):
        load("minari/short")
    assert check("minari/short")[0].severity == "error"


def test_hash_of_a_file_is_its_sha256(home):
    path = hopper(home, d4rl_arrays(), "x.hdf5")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert load(path).provenance.sha256 == digest
