"""Runs survive what happens to machines: flipped bits, full disks, clocks that jump, signals, two
commands at once; or end in one line that says what happened."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from experiments.__main__ import main
from experiments.runs import folders, jobs, manifest, pool
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from mbrl import checkpoint
from mbrl.data import from_arrays
from mbrl.errors import CheckpointError, ConfigError, DivergenceError
from mbrl.records import MetricsFile
from tests import forked
from tests.behaviour.test_resume import assert_same


def described(folder: Path, steps: int = 40, **options) -> Path:
    settings = RunSettings(
        "bc",
        "pendulum/expert",
        steps=steps,
        eval_every=0,
        eval_episodes=2,
        final_episodes=2,
        **options,
    )
    runs.create(settings, build_config("bc", {"hidden": [4]}), folder)
    return folder


def test_flipped_bits_of_a_checkpoint_are_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    content = {"state": {"weights": torch.randn(64, 64), "step": 3, "names": ["a", "b"]}}
    checkpoint.save(path, content)
    whole, draw, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(50):
        place = draw.randrange(len(whole))
        flipped = bytes([whole[place] ^ (1 << draw.randrange(8))])
        path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        try:
            found = checkpoint.load(path)
        except CheckpointError:
            refused += 1
        else:
            assert torch.equal(found["state"]["weights"], content["state"]["weights"])
            assert found["state"]["step"] == 3 and found["state"]["names"] == ["a", "b"]
    assert refused > 40


def test_two_commands_for_one_folder_cannot_mix(tmp_path: Path) -> None:
    """The second is refused while the first describes its run, and takes nothing away."""
    folder = tmp_path / "run"
    settings = RunSettings("bc", "pendulum/expert", steps=10)
    with folders.locked(folder):
        assert folders.busy(folder)
        for begin in (runs.create, runs.start):
            with pytest.raises(CheckpointError, match="another process"):
                begin(settings, build_config("bc", {}), folder)
        folders.write_json(folder / "config.json", {"run": {}})
        with pytest.raises(ConfigError, match="already holds a run"):
            runs.start(settings, build_config("bc", {}), folder)
        assert (folder / "config.json").exists()
    assert not folders.busy(folder)


def test_a_full_disk_ends_in_one_line_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    folder = described(tmp_path / "run", steps=4000, checkpoint_every=50, tensorboard=False)

    def small() -> None:
        warnings.simplefilter("ignore")  # PyTorch's own are lines too
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    ended = forked.command(["resume", str(folder), "--quiet"], small)
    assert ended.status in (1, 2) and "Traceback" not in ended.error
    assert len(ended.error.strip().splitlines()) == 1 and "could not be saved" in ended.error
    assert "or give the command again" in ended.error
    assert not list(folder.rglob("*.partial"))
    (folder / "checkpoint.pt.999.partial").write_bytes(b"half")
    jobs.resume(folder, quiet=True)
    assert not list(folder.rglob("*.partial")) and jobs.finished(folder)


def test_a_save_that_fails_keeps_the_one_before(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"step": 1})

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left.*checkpoint before it stays"):
        checkpoint.save(path, {"step": 2})
    assert checkpoint.load(path)["step"] == 1 and [p.name for p in tmp_path.iterdir()] == [
        path.name
    ]


def test_a_full_disk_is_named_with_what_to_do(monkeypatch, capsys) -> None:
    def write(arguments: list[str]) -> int:
        with open("/dev/full", "w") as file:
            file.write("x")
        return 0

    monkeypatch.setattr("experiments.__main__.verb", lambda name: write)
    assert main(["list"]) == 1
    assert "No space left on device; make room, and give the command" in capsys.readouterr().err


def test_sigterm_during_a_save_saves(tmp_path: Path, monkeypatch) -> None:
    folder = described(tmp_path / "run", steps=200, checkpoint_every=50, tensorboard=False)
    real, sent = os.fsync, []

    def interrupted(file: int) -> None:
        if (folder / "metrics.csv").exists() and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        real(file)

    monkeypatch.setattr(os, "fsync", interrupted)
    assert main(["resume", str(folder), "--quiet"]) == 130
    monkeypatch.undo()
    assert 0 < checkpoint.load(folder / "checkpoint.pt")["step"] < 200
    jobs.resume(folder, quiet=True)
    again = described(tmp_path / "again", steps=200, checkpoint_every=50, tensorboard=False)
    jobs.resume(again, quiet=True)
    for name in ("checkpoint.pt", "evaluations.npz"):
        assert (folder / name).exists() and (again / name).exists()
    one, other = (checkpoint.load(f / "checkpoint.pt") for f in (folder, again))
    assert_same(one["state"], other["state"])


def test_a_second_ctrl_c_and_a_closed_pipe_end_quietly(monkeypatch, capsys) -> None:
    def stopped(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.__main__.verb", lambda name: stopped)
    assert main(["list"]) == 130 and "Traceback" not in capsys.readouterr().err
    monkeypatch.undo()
    text = f"{sys.executable} -m experiments list recipes | head -1"
    ended = subprocess.run(text, shell=True, capture_output=True, text=True)
    assert ended.stderr == "" and ended.stdout.count("\n") == 1
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-u", "-m", "experiments", "--help"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.stderr, ended.returncode) == ("", 141)


def test_a_clock_that_jumps_does_not_count(tmp_path: Path, monkeypatch) -> None:
    folder = described(tmp_path / "run", steps=100, tensorboard=False)
    for began in (8.5e9, 0.0):
        folders.write_json(folder / "sessions.json", {"seconds": 2.0, "began": began, "spent": 5.0})
        assert folders.spent(folder) == 5.0
    os.utime(folder / "config.json", (8.5e9, 8.5e9))
    folders.write_json(folder / "sessions.json", {"seconds": 2.0, "began": time.time() - 3})
    assert folders.spent(folder) < 10
    jobs.resume(folder, quiet=True)
    assert 0 < folders.read_json(folder / "sessions.json")["spent"] < 60


def test_a_resume_under_another_commit_is_in_the_manifest(tmp_path: Path, monkeypatch) -> None:
    folder = described(tmp_path / "run", tensorboard=False)
    jobs.resume(folder, quiet=True)
    before = folders.read_json(folder / "manifest.json")
    jobs.resume(folder, quiet=True)
    assert folders.read_json(folder / "manifest.json") == before and "sessions" not in before
    now = manifest.environment("cpu") | {"commit": "another"}
    monkeypatch.setattr("experiments.runs.job.environment", lambda device: now)
    jobs.resume(folder, quiet=True)
    jobs.resume(folder, quiet=True)
    after = folders.read_json(folder / "manifest.json")
    assert after["commit"] == before["commit"]
    assert [session["commit"] for session in after["sessions"]] == ["another"]


def test_no_thread_outlives_a_run_with_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    before = threading.active_count()
    jobs.resume(described(tmp_path / "run"), quiet=True)
    assert list((tmp_path / "run" / "events").iterdir())
    assert threading.active_count() == before


def test_rows_are_on_the_disk_at_a_checkpoint(tmp_path: Path, monkeypatch) -> None:
    file = MetricsFile(tmp_path / "metrics.csv")
    file.sync()  # nothing there yet
    file.append({"step": 1, "loss": 2.0})
    seen = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(os.fstat(number).st_ino))
    file.sync()
    assert seen == [file.path.stat().st_ino]


@pytest.mark.parametrize("name", ["bc", "td3_bc", "iql", "awac", "crr", "rebrac", "edac", "sac_n"])
def test_fit_reports_weights_that_are_no_numbers(name: str) -> None:
    g = np.random.default_rng(0)
    obs = g.normal(size=(64, 2)) * 1e30
    data = from_arrays(
        obs=obs, action=g.uniform(-1, 1, (64, 1)), reward=g.normal(size=64),
        next_obs=obs, terminated=np.zeros(64), truncated=np.ones(64),
    )  # fmt: skip
    cls, config = ALGORITHMS[name]
    small = {"learner": {"hidden": [8]}} if "learner" in vars(config()) else {"hidden": [8]}
    agent = cls(data.spec, build_config(name, small), seed=0)
    if name not in ("bc", "td3_bc"):  # whose bounded policies clone at any size of input
        with pytest.raises(DivergenceError, match="not finite"):
            agent.fit(data, 20, callbacks=[])
        return
    agent.fit(data, 20, callbacks=[])
    weights = [w for m in agent.modules.values() for w in m.state_dict().values()]
    assert all(bool(torch.isfinite(w).all()) for w in weights)


@pytest.mark.usefixtures("quick_jobs")
def test_a_pool_waits_for_the_process_that_has_a_job(tmp_path: Path, capsys) -> None:
    folder = described(tmp_path / "run", tensorboard=False)
    held = threading.Event()

    def other() -> None:
        with folders.locked(folder):
            held.set()
            time.sleep(1.0)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    assert pool.run_all([folder], 1) == {}
    thread.join()
    assert jobs.finished(folder) and "waiting for another process" in capsys.readouterr().out


def test_settings_that_were_changed_in_the_folder_are_refused(tmp_path: Path, capsys) -> None:
    """Before, the run went on with those of its checkpoint, and the folder said others."""
    folder = described(tmp_path / "run", checkpoint_every=20)
    jobs.resume(folder, quiet=True)
    content = json.loads((folder / "config.json").read_text())
    content["run"]["steps"], content["config"]["batch_size"] = 60, 17
    folders.write_json(folder / "config.json", content)
    (folder / "result.json").unlink()
    assert main(["resume", str(folder), "--quiet"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "batch_size from 256 to 17" in error and "run --config" in error
    content["config"]["batch_size"] = 256
    folders.write_json(folder / "config.json", content)
    assert main(["resume", str(folder), "--quiet"]) == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert main(["run", "bc", "pendulum/expert", "--steps", "1", "--out", str(out)]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert "cannot be made" in error and "--out" in error and "Errno" not in error


@pytest.mark.usefixtures("quick_jobs")
def test_a_sweep_runs_what_can_be_and_exits_non_zero(tmp_path: Path, capsys) -> None:
    sweep = ["sweep", "--algorithms", "bc", "--data", "pendulum/expert", "--steps", "20"]
    sweep += ["--workers", "1", "--set", "batch_size=16,0", "--out", str(tmp_path)]
    assert main(sweep) == 1
    seen = capsys.readouterr()
    assert "batch_size is 0, it must be at least 1" in seen.err
    assert len(list(tmp_path.glob("bc-batch_size=16/**/0.json"))) == 1
    assert main([*sweep[:-4], "--set", "batch_size=0", "--out", str(tmp_path / "b")]) == 2


def test_a_broken_description_is_named(tmp_path: Path, capsys) -> None:
    for text in ("{", "[1]", "[" * 100_000, ""):
        (tmp_path / "config.json").write_text(text)
        assert main(["resume", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert "config.json" in error and "Traceback" not in error
    (tmp_path / "config.json").write_text(json.dumps({"run": {}}))
    assert main(["resume", str(tmp_path)]) == 2
