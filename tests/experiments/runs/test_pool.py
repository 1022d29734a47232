"""Runs side by side: all finish, one failure disturbs nothing, a second call does nothing."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from experiments.runs import jobs, pool
from experiments.runs import training as runs
from experiments.runs.launchers import Exit
from experiments.settings import RunSettings, build_config
from mbrl.callbacks import Interrupted
from mbrl.data import save_npz
from mbrl.errors import CheckpointError


@pytest.fixture
def folders(pendulum, tmp_path: Path) -> list[Path]:
    data = tmp_path / "data.npz"
    save_npz(pendulum, data)
    made = []
    for seed in range(3):
        folder = tmp_path / f"seed-{seed}"
        settings = RunSettings(
            "bc",
            str(data),
            steps=30,
            seed=seed,
            eval_every=0,
            final_episodes=2,
            tensorboard=False,
        )
        runs.create(settings, build_config("bc", {"hidden": [8]}), folder)
        made.append(folder)
    return made


@pytest.mark.usefixtures("quick_jobs")
def test_all_finish_and_one_failure_is_isolated(folders: list[Path]) -> None:
    (folders[1] / "checkpoint.pt").write_bytes(b"broken")
    ended: list[Path] = []
    failed = pool.run_all(folders, where=2, on_finished=ended.append)
    assert set(failed) == {folders[1]} and "not a readable checkpoint" in failed[folders[1]]
    assert sorted(ended) == [folders[0], folders[2]]
    (folders[1] / "checkpoint.pt").unlink()
    ended.clear()
    began = time.perf_counter()
    assert pool.run_all(folders, where=2, on_finished=ended.append) == {}
    assert sorted(ended) == folders
    began = time.perf_counter()
    pool.run_all(folders, where=2)
    assert time.perf_counter() - began < 1


def test_a_job_that_could_not_even_write_why_is_not_called_killed(tmp_path: Path) -> None:
    queue = pool._Queue([tmp_path], ended=set())
    queue.running[tmp_path] = None
    assert not queue.record_exit(tmp_path, Exit(1, died=False, text=""))
    assert queue.failed[tmp_path] == "it ended with status 1 and printed nothing; is the disk full?"


@pytest.mark.usefixtures("quick_jobs")
def test_ctrl_c_stops_and_saves_all(folders: list[Path], tmp_path: Path) -> None:
    for folder in folders:
        values = json.loads((folder / "config.json").read_text())
        values["run"]["steps"] = 10**6
        (folder / "config.json").write_text(json.dumps(values))
    said = tmp_path / "said"

    def work() -> None:
        try:
            pool.run_all(folders, 2)
        except Interrupted as stopped:
            said.write_text(str(stopped))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    deadline = time.monotonic() + 60
    while not all((f / "checkpoint.pt").exists() for f in folders[:2]):
        assert time.monotonic() < deadline and process.is_alive()
        time.sleep(0.1)
    with pytest.raises(CheckpointError, match="another process is training"):
        jobs.resume(folders[0])
    os.kill(process.pid, signal.SIGTERM)  # handled as Ctrl-C is
    process.join(60)
    assert process.exitcode == 0 and "the same command continues" in said.read_text()
