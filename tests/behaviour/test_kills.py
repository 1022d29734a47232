"""Sweeps whose workers are killed at random end exactly as undisturbed ones: every checkpoint,
metric and evaluation, on local processes and on Ray."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.runs import jobs, launchers, pool
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from mbrl import checkpoint
from mbrl.records import TIME_COLUMNS, MetricsFile
from tests.behaviour.test_resume import assert_same

STEPS = 2000


class Killer(threading.Thread):
    """Kills processes that hold the lock of a run folder under `root`, at random moments, `count`
    times in all; the folder's checkpoint must have moved since its last two kills."""

    def __init__(self, root: Path, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.root, self.count, self.random = root, count, random.Random(seed)
        self.over = threading.Event()
        self.kills: list[tuple[Path, int]] = []

    def run(self) -> None:
        while len(self.kills) < self.count and not self.over.wait(self.random.uniform(0.1, 0.8)):
            victims = [v for v in self.workers() if self.fair(v[0])]
            if victims:
                folder, process = self.random.choice(victims)
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.kills.append((folder, self.step(folder)))

    def workers(self) -> list[tuple[Path, int]]:
        """(folder, process id) of everything at work, by the open lock file."""
        result = []
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                target = Path(os.readlink(link))
            except OSError:
                continue
            if target.name == "lock" and target.is_relative_to(self.root):
                result.append((target.parent, int(link.parts[2])))
        return [(f, p) for f, p in result if p != os.getpid()]

    def fair(self, folder: Path) -> bool:
        """Not a third time at one checkpoint: the pool gives up on a job that never moves."""
        return [s for f, s in self.kills if f == folder].count(self.step(folder)) < 2

    def step(self, folder: Path) -> int:
        file = folder / "checkpoint.pt"
        return int(checkpoint.load(file)["step"]) if file.exists() else -1


def folders(root: Path, count: int) -> list[Path]:
    made = []
    for seed in range(count):
        folder = root / f"seed-{seed}"
        settings = RunSettings(
            "td3_bc",
            "pendulum/expert",
            steps=STEPS,
            seed=seed,
            eval_episodes=2,
            final_episodes=3,
            checkpoint_every=200,
            tensorboard=False,
        )
        runs.create(settings, build_config("td3_bc", {"hidden": [8]}), folder)
        made.append(folder)
    return made


def campaign(where: launchers.Launcher, tmp_path: Path, count: int, kills: int) -> int:
    """Run the same jobs without and with kills, and compare; returns how many kills there were."""
    whole, torn = folders(tmp_path / "whole", count), folders(tmp_path / "torn", count)
    killer = Killer(tmp_path / "torn", kills, seed=0)
    try:
        assert pool.run_all(whole, where) == {}
        killer.start()
        assert pool.run_all(torn, where) == {}
    finally:
        killer.over.set()
        where.close()
    for first, second in zip(whole, torn, strict=True):
        assert jobs.finished(second)
        assert_same(*(checkpoint.load(f / "checkpoint.pt") for f in (first, second)))
        rows = [MetricsFile(f / "metrics.csv").rows() for f in (first, second)]
        kept = [[{k: v for k, v in r.items() if k not in TIME_COLUMNS} for r in t] for t in rows]
        assert kept[0] == kept[1] and len(kept[0]) == STEPS // 100
        with np.load(first / "evaluations.npz") as a, np.load(second / "evaluations.npz") as b:
            assert all(np.array_equal(a[key], b[key]) for key in a.files)
    return len(killer.kills)


@pytest.mark.usefixtures("quick_jobs")
def test_a_few_kills_change_nothing(tmp_path: Path) -> None:
    assert campaign(launchers.Local(2), tmp_path, count=2, kills=2) >= 1


# With servers that are started as commands start them.
@pytest.mark.long
@pytest.mark.parametrize("name", ["local", "ray"])
def test_fifty_kills_change_nothing(name: launchers.Name, tmp_path: Path, capsys) -> None:
    if name == "ray":
        pytest.importorskip("ray")
    began = time.monotonic()
    kills = campaign(launchers.launcher(name, 2), tmp_path, count=12, kills=50)
    with capsys.disabled():
        print(f"\n{name}: {kills} kills, 12 runs identical, {time.monotonic() - began:.0f} s")
    assert kills == 50


def test_a_job_that_always_dies_is_given_up(tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)

    class Deadly(launchers.Local):
        starts = 0

        def start(self, folder: Path) -> Path:  # type: ignore[override]
            self.starts += 1
            return folder

        def poll(self, handle: object) -> launchers.Exit:
            return launchers.Exit(-9, True)

    deadly = Deadly(1)
    failed = pool.run_all([folder], deadly)
    assert set(failed) == {folder} and "killed" in failed[folder]
    assert deadly.starts == pool.PATIENCE
