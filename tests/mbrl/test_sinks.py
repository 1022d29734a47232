"""Sinks of metrics: what they get, that a resumed run sends nothing twice, and, where their
packages are installed, what those then hold."""

import glob
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from mbrl import sinks
from mbrl.callbacks import Recorder
from mbrl.errors import ConfigError, DivergenceError
from mbrl.records import MetricsFile


class Fake:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1


class Stepping:
    step = 0


def test_a_sink_gets_what_the_csv_gets(tmp_path: Path) -> None:
    fake, agent = Fake(), Stepping()
    recorder = Recorder(tmp_path, 2, tensorboard=False, sinks=[fake])
    steps: Any = agent
    recorder("prepare", steps, {"model/epoch": torch.tensor(1), "model/loss": torch.tensor(3.0)})
    recorder("start", steps, {})
    for agent.step in range(1, 6):
        recorder("step", steps, {"loss": torch.tensor(float(agent.step))})
    recorder.scalar("evaluation/return", 9.0, 5)
    recorder("end", steps, {})
    recorder.close()
    assert fake.rows == [
        (1, {"model/epoch": 1.0, "model/loss": 3.0}), (2, {"loss": 2.0}), (4, {"loss": 4.0}),
        (5, {"evaluation/return": 9.0}),
    ]  # fmt: skip
    rows = MetricsFile(tmp_path / "metrics.csv").rows()
    assert [(int(r["step"]), float(r["loss"])) for r in rows] == [(2, 2.0), (4, 4.0)]
    assert fake.closed == 1 and not (tmp_path / "events").exists()


def test_nothing_that_is_not_finite_is_sent(tmp_path: Path) -> None:
    fake, agent = Fake(), Stepping()
    recorder = Recorder(tmp_path, 1, tensorboard=False, sinks=[fake])
    agent.step = 1
    with pytest.raises(DivergenceError):
        recorder("step", agent, {"loss": torch.tensor(float("nan"))})  # type: ignore[arg-type]
    assert fake.rows == []


def test_tensorboard_holds_what_it_was_given(tmp_path: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = sinks.TensorBoard(tmp_path)
    sink.write(3, {"a/b": 0.5})
    sink.close()
    events = module.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/b")] == [(3, 0.5)]


def test_a_resumed_run_sends_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session repeats steps since the checkpoint; it goes on in the same run."""
    opened: list[tuple[str, Any]] = []
    fake = Fake()

    def tracker(folder: Path, run: str, about: Mapping[str, Any]) -> Fake:
        opened.append((run, dict(about)))
        return fake

    monkeypatch.setitem(sinks.TRACKERS, "wandb", tracker)
    monkeypatch.setattr(sinks, "find_spec", lambda name: True)
    for steps in ((1, 2, 3), (2, 3, 4)):
        (sink,) = sinks.open_trackers(["wandb"], tmp_path, {"name": "x"})
        for step in steps:
            sink.write(step, {"loss": step / 2})
            if step == 3:
                sink.write(step, {"return": 7.0})
        sink.close()
    losses = [(1, {"loss": 0.5}), (2, {"loss": 1.0}), (3, {"loss": 1.5}), (3, {"return": 7.0})]
    assert fake.rows == [*losses, (4, {"loss": 2.0})]
    assert opened[0] == opened[1] and opened[0][1] == {"name": "x"} and fake.closed == 2
    state = json.loads((tmp_path / "tracking.json").read_text())
    assert state["wandb"]["last"] == {"loss": 4, "return": 3}


def test_missing_packages_and_unknown_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        sinks.require(["mlflo"])
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--sinks wandb needs its package: pip .*\[wandb\]"):
        sinks.require(["wandb"])


# The packages themselves, offline.

VALUES = {1: {"critic/loss": 0.5}, 2: {"critic/loss": 0.25, "evaluation/return": -3.0}}


def write_in_two_sessions(name: str, folder: Path) -> None:
    for steps in ((1,), (1, 2)):
        about = {"name": "a run", "config": {"gamma": 0.9}}
        (sink,) = sinks.open_trackers([name], folder, about)
        for step in steps:
            sink.write(step, VALUES[step])
        sink.close()


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_in_two_sessions("wandb", tmp_path)
    files = glob.glob(str(tmp_path / "wandb" / "offline-run-*" / "*.wandb"))
    assert len(files) == 2 and len({Path(f).name for f in files}) == 1  # two sessions of one run
    content = b"".join(Path(f).read_bytes() for f in files)
    assert b"critic/loss" in content and b"evaluation/return" in content and b"gamma" in content


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    write_in_two_sessions("mlflow", tmp_path)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("longreach")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "critic/loss")
    assert sorted((m.step, m.value) for m in history) == [(1, 0.5), (2, 0.25)]
    assert run.data.params["config.gamma"] == "0.9" and run.info.status == "FINISHED"
    assert run.data.metrics["evaluation/return"] == -3.0


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio")
    write_in_two_sessions("trackio", tmp_path)
    with sqlite3.connect(tmp_path / "trackio" / "longreach.db") as opened:
        rows = opened.execute("select run_name, step, metrics from metrics order by step")
        rows = list(rows)
    assert [(step, json.loads(text)) for _, step, text in rows] == list(VALUES.items())
    assert len({name for name, _, _ in rows}) == 1 and rows[0][0].startswith("a run-")
