"""What is written is read back bit for bit, by this library's readers and by other programs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.__main__ import main
from experiments.recording.environment import collect
from mbrl.data import from_arrays, load
from mbrl.data.writers import write
from mbrl.errors import ConfigError, DataError
from mbrl.tasks import make
from mbrl.types import Dataset, Transitions

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


def path_of(folder: Path, kind: str) -> Path:
    return folder / "deep" / ("set" if kind == "minari" else f"set.{kind}")


def same(left: Transitions, right: Transitions) -> None:
    for name in FIELDS:
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype and torch.equal(a, b), name


@pytest.mark.parametrize("kind", ["minari", "npz", "csv", "parquet"])
@pytest.mark.parametrize("discrete", [False, True])
def test_bit_for_bit(
    kind: str, discrete: bool, pendulum: Dataset, cartpole: Dataset, tmp_path: Path
) -> None:
    if kind == "minari":
        pytest.importorskip("minari", reason="the extra `minari` is not installed")
    data = cartpole if discrete else pendulum
    path = write(data, path_of(tmp_path, kind), kind)
    again = load(path, spec=data.spec.task)
    same(data.transitions, again.transitions)
    assert len(again.transitions.episodes()) == len(data.transitions.episodes())
    assert [f.name for f in path.parent.iterdir()] == [path.name]


def test_minari_reads_its_folder_itself(
    cartpole: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari", reason="the extra `minari` is not installed")
    write(cartpole, tmp_path / "cartpole-v3", "minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    opened = minari.load_dataset("cartpole-v3")
    rows, spans = cartpole.transitions, cartpole.transitions.episodes()
    assert opened.total_episodes == len(spans) and opened.total_steps == len(rows)
    assert opened.env_spec.id == "CartPole-v1"
    for episode, (a, b) in zip(opened.iterate_episodes(), spans, strict=True):
        np.testing.assert_array_equal(episode.observations[:-1], rows.obs[a:b])
        np.testing.assert_array_equal(episode.observations[-1], rows.next_obs[b - 1])
        np.testing.assert_array_equal(episode.actions, rows.action[a:b])
        np.testing.assert_array_equal(episode.rewards, rows.reward[a:b])
        np.testing.assert_array_equal(episode.terminations, rows.terminated[a:b])
    assert load(tmp_path / "cartpole-v3").spec.task == "CartPole-v1"


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("CliffWalking-v1,is_slippery=true,max_episode_steps=30", "CliffWalking-v1"),
        ("Hopper-v4,exclude_current_positions_from_observation=false", "Hopper-v4"),
        ("Pendulum-v1,sticky_actions=0.5", None),  # gymnasium has no such
    ],
)
def test_minari_has_the_options_of_the_task(name: str, env: str | None, tmp_path: Path) -> None:
    minari = pytest.importorskip("minari", reason="the extra `minari` is not installed")
    data = collect(make(name), steps=40)
    path = write(data, tmp_path / "set", "minari")
    opened, spec = minari.MinariDataset(path / "data").env_spec, load(path).spec
    if env is None:
        assert opened is None and spec.task == str(path) and spec.task_options == {}
        return
    wanted = {k: v for k, v in data.spec.task_options.items() if k != "max_episode_steps"}
    assert opened.kwargs == wanted == spec.task_options and opened.id == spec.task == env
    assert opened.max_episode_steps == spec.max_episode_steps == data.spec.max_episode_steps


def test_pandas_reads_the_tables(pendulum: Dataset, tmp_path: Path) -> None:
    for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        frame = read(write(pendulum, tmp_path / f"x.{kind}", kind))
        obs = frame[["obs_0", "obs_1", "obs_2"]].to_numpy(np.float32)
        np.testing.assert_array_equal(obs, pendulum.transitions.obs)
        assert frame.episode.nunique() == len(pendulum.transitions.episodes())


def test_columns_that_some_data_have(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "obs": rng.normal(size=(20, 2)), "action": rng.uniform(-1, 1, (20, 1)),
        "reward": rng.normal(size=20), "terminated": np.zeros(20, bool),
        "truncated": np.arange(20) % 5 == 4, "next_obs": rng.normal(size=(20, 2)),
    }  # fmt: skip
    data = from_arrays(**arrays, boundaries="cut")
    rows = data.transitions
    data = data.with_transitions(
        Transitions(
            **{
                **vars(rows),
                "behaviour_prob": torch.rand(20),
                "duration": torch.rand(20),
                "expert": torch.arange(20) < 7,
                "segment": torch.arange(20) % 4,
            }
        )
    )
    for kind in ("csv", "parquet", "npz", "rows"):
        again = load(write(data, tmp_path / f"x.{kind}", kind), spec=data.spec).transitions
        same(data.transitions, again)
        for name in ("behaviour_prob", "duration", "expert", "segment"):
            assert torch.equal(getattr(data.transitions, name), getattr(again, name))
    names = "duration, behaviour_prob, expert, segment"
    with pytest.raises(DataError, match=f"has {names}, which Minari"):
        write(data, tmp_path / "minari", "minari")


def test_refusals(pendulum: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'parquet'"):
        write(pendulum, tmp_path / "x", "parket")
    with pytest.raises(ConfigError, match=r"end the name in \.csv"):
        write(pendulum, tmp_path / "x.npz", "csv")
    pytest.importorskip("minari", reason="the extra `minari` is not installed")
    with pytest.raises(DataError, match="exists"):
        write(pendulum, tmp_path, "minari")
    rows = pendulum.transitions
    unknown = Transitions(**{**vars(rows), "next_known": ~rows.terminated & ~rows.truncated})
    with pytest.raises(DataError, match="does not know what its episodes ended in"):
        write(pendulum.with_transitions(unknown), tmp_path / "x", "minari")
    assert not list(tmp_path.iterdir())


def test_the_verb(tmp_path: Path, capsys) -> None:
    pytest.importorskip("minari", reason="the extra `minari` is not installed")
    out = str(tmp_path / "set")
    assert main(["data", "export", "pendulum/medium", "--format", "minari", "--out", out]) == 0
    assert "written to" in capsys.readouterr().out
    same(load("pendulum/medium").transitions, load(out).transitions)
