"""A run killed at any step and resumed ends bit for bit where the uninterrupted run ends."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.rambo import AdversarialRows
from experiments.runs import folders, jobs
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from mbrl import checkpoint
from mbrl.data import save_npz
from mbrl.errors import CheckpointError
from mbrl.records import TIME_COLUMNS, MetricsFile
from tests.small import CONFIGS, OFFLINE, others_long, suited, with_goals
from world_models.fitting import Fit

pytestmark = pytest.mark.usefixtures("short_episodes")

STEPS = 45


def test_every_algorithm_is_covered() -> None:
    assert set(CONFIGS) == set(ALGORITHMS)


@pytest.fixture(scope="module")
def data_file(pendulum, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "pendulum.npz"
    save_npz(pendulum, path)
    return str(path)


@pytest.fixture(scope="module")
def goal_file(pendulum, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "goals.npz"
    save_npz(with_goals(pendulum), path)
    return str(path)


@pytest.fixture(scope="module")
def discrete_file(cartpole, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("data") / "cartpole.npz"
    save_npz(cartpole, path)
    return str(path)


def settings(algorithm: str, data_file: str, **changes: Any) -> RunSettings:
    values = {
        "steps": STEPS,
        "eval_every": 20,
        "eval_episodes": 2,
        "final_episodes": 3,
        "log_every": 5,
        "checkpoint_every": 7,
        "tensorboard": False,
    }
    data = "Pendulum-v1" if algorithm == "sac" else data_file
    return RunSettings(algorithm, data, **(values | changes))


def killed_after(folder: Path, work: Any, owner: type, method: str, count: int) -> None:
    """Run `work` in a child process that is killed in call number `count` of `owner.method`."""

    def child() -> None:
        original, calls = getattr(owner, method), [0]

        def counted(*arguments: Any, **keywords: Any) -> Any:
            calls[0] += 1
            if calls[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **keywords)

        setattr(owner, method, counted)
        work()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def assert_same(first: Any, second: Any, where: str = "") -> None:
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same(first[key], second[key], f"{where}.{key}")
    elif isinstance(first, list | tuple):
        assert len(first) == len(second), where
        for index, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same(a, b, f"{where}[{index}]")
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second), where
    else:
        assert first == second, where


def assert_same_runs(first: Path, second: Path) -> None:
    contents = [checkpoint.load(folder / "checkpoint.pt") for folder in (first, second)]
    assert contents[0]["step"] == STEPS
    assert_same(*contents)
    for name in ("metrics.csv", "model.csv"):
        rows = [MetricsFile(folder / name).rows() for folder in (first, second)]
        kept = [[{k: v for k, v in r.items() if k not in TIME_COLUMNS} for r in t] for t in rows]
        assert kept[0] == kept[1]
    assert MetricsFile(first / "metrics.csv").rows()
    with np.load(first / "evaluations.npz") as a, np.load(second / "evaluations.npz") as b:
        for key in a.files:
            assert np.array_equal(a[key], b[key])
        assert a["steps"].tolist() == [20, 40, STEPS]


ALIKE = (
    "cql",
    "sac",
    "wsrl",
    "generative_bc",
    "gcbc",
    "smore",
    "cdsa",
    "famo2o",
)  # in what a checkpoint holds


@pytest.mark.parametrize("algorithm", others_long(OFFLINE, ALIKE))
def test_killed_at_several_steps(
    algorithm: str, data_file: str, discrete_file: str, goal_file: str, tmp_path: Path
) -> None:
    config = build_config(algorithm, CONFIGS[algorithm])
    continuous = goal_file if ALGORITHMS[algorithm][0].needs_goals else data_file
    chosen = settings(algorithm, suited(algorithm, continuous, discrete_file))
    runs.start(chosen, config, tmp_path / "whole", quiet=True)
    folder, cls = tmp_path / "killed", ALGORITHMS[algorithm][0]
    draw = random.Random(algorithm)
    start = lambda: runs.start(chosen, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, start, cls, "update", draw.randint(2, 20))
    for _ in range(2):
        count = draw.randint(1, 9)
        killed_after(folder, lambda: jobs.resume(folder, quiet=True), cls, "update", count)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)


OTHER_FITS = [pytest.param(n, marks=pytest.mark.long) for n in ("ravl", "mopo", "rambo", "pets")]


@pytest.mark.parametrize("algorithm", ["morel", *OTHER_FITS])
def test_killed_inside_the_model_fit(algorithm: str, data_file: str, tmp_path: Path) -> None:
    config = build_config(algorithm, CONFIGS[algorithm])
    runs.start(settings(algorithm, data_file), config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    eager = settings(algorithm, data_file, checkpoint_seconds=1e-6)
    start = lambda: runs.start(eager, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, start, Fit, "epoch", 4)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), Fit, "epoch", 2)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)


def test_killed_while_the_policy_is_cloned(data_file: str, tmp_path: Path) -> None:
    """What comes after the model's fit is continued too, and its epochs are logged once each."""
    values = CONFIGS["rambo"] | {"cloning": {"epochs": 5, "batch_size": 64}}
    config, cls = build_config("rambo", values), AdversarialRows
    runs.start(settings("rambo", data_file), config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    eager = settings("rambo", data_file, checkpoint_seconds=1e-6)
    start = lambda: runs.start(eager, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, start, cls, "clone", 3)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), cls, "clone", 2)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)
    rows = MetricsFile(folder / "model.csv").rows()
    assert [int(row["epoch"]) for row in rows] == list(range(1, len(rows) + 1))
    assert sum(row["actor/cloning"] != "" for row in rows) == 5


def test_sigterm_saves_and_the_command_line_resumes(data_file: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "experiments"]
    options = ["--steps", "100000", "--eval-every", "0", "--out", str(folder)]
    process = subprocess.Popen(
        [*command, "run", "bc", data_file, *options], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (folder / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"python -m experiments resume {folder}" in errors
    step = checkpoint.load(folder / "checkpoint.pt")["step"]
    assert 100 <= step < 100000


def test_a_changed_dataset_is_refused(data_file, pendulum, tmp_path: Path) -> None:
    other = tmp_path / "data.npz"
    save_npz(pendulum, other)
    config = build_config("bc", CONFIGS["bc"])
    chosen = settings("bc", str(other))
    runs.start(chosen, config, tmp_path / "run", quiet=True)
    changed = pendulum.transitions.select(slice(0, 400))
    save_npz(pendulum.with_transitions(changed), other)
    with pytest.raises(Exception, match="has changed"):
        jobs.resume(tmp_path / "run", quiet=True)


def test_a_changed_seed_is_refused(data_file, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    runs.start(settings("bc", data_file), build_config("bc", CONFIGS["bc"]), folder, quiet=True)
    described = folders.read_json(folder / "config.json")
    described["run"]["seed"] += 1
    folders.write_json(folder / "config.json", described)
    with pytest.raises(CheckpointError, match=r"the seed of .* has changed: it was 0, now it is 1"):
        jobs.resume(folder, quiet=True)


def test_an_online_run_in_mujoco_resumes_exactly(tmp_path: Path) -> None:
    """The collector's state holds the simulator's whole integration state."""
    values = CONFIGS["sac"] | {"envs": 2, "warmup": 10}
    config = build_config("sac", values)
    chosen = RunSettings(
        "sac",
        "Hopper-v5",
        steps=STEPS,
        eval_every=20,
        eval_episodes=2,
        final_episodes=3,
        log_every=5,
        checkpoint_every=7,
        tensorboard=False,
    )
    runs.start(chosen, config, tmp_path / "whole", quiet=True)
    folder, cls = tmp_path / "killed", ALGORITHMS["sac"][0]
    killed_after(folder, lambda: runs.start(chosen, config, folder, quiet=True), cls, "update", 17)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)


@pytest.mark.parametrize(
    "algorithm", ["mbpo", "coplanner", pytest.param("pets", marks=pytest.mark.long)]
)
def test_online_runs_with_a_model_resume_exactly(algorithm: str, tmp_path: Path) -> None:
    """Killed while it acts, inside a refit of the model, and between the updates of a step."""
    config = build_config(algorithm, CONFIGS[algorithm])
    chosen = settings(algorithm, "Pendulum-v1")
    runs.start(chosen, config, tmp_path / "whole", quiet=True)
    folder, cls = tmp_path / "killed", ALGORITHMS[algorithm][0]
    start = lambda: runs.start(chosen, config, folder, quiet=True)  # noqa: E731
    again = lambda: jobs.resume(folder, quiet=True)  # noqa: E731
    killed_after(folder, start, cls, "observe", 24)
    killed_after(folder, again, Fit, "epoch", 3)
    killed_after(folder, again, cls, "update", 10)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder)
    state = checkpoint.load(folder / "checkpoint.pt")["state"]
    assert len(state["experience"]["rows"]) == STEPS


def test_tensorboard_events_are_cut_back(data_file: str, tmp_path: Path) -> None:
    """After a kill and a resume, no step is in the event files twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = build_config("bc", CONFIGS["bc"])
    chosen = settings("bc", data_file, tensorboard=True)
    folder = tmp_path / "run"
    start = lambda: runs.start(chosen, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, start, ALGORITHMS["bc"][0], "update", 33)
    jobs.resume(folder, quiet=True)
    steps: list[int] = []
    for file in sorted((folder / "events").glob("*")):
        events = EventAccumulator(str(file)).Reload()
        if "actor/bc" in events.Tags()["scalars"]:
            steps += [e.step for e in events.Scalars("actor/bc")]
    assert sorted(steps) == list(range(5, STEPS + 1, 5))


def test_a_finished_run_is_not_run_again(data_file: str, tmp_path: Path) -> None:
    config = build_config("bc", CONFIGS["bc"])
    chosen = settings("bc", data_file)
    runs.start(chosen, config, tmp_path / "run", quiet=True)
    before = checkpoint.load(tmp_path / "run" / "checkpoint.pt")
    jobs.resume(tmp_path / "run", quiet=True)
    assert_same(before, checkpoint.load(tmp_path / "run" / "checkpoint.pt"))
    with pytest.raises(Exception, match="already holds a run"):
        runs.start(chosen, config, tmp_path / "run", quiet=True)
