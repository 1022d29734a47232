"""Runs with imagined rows: what they learn from, exact resume, and what is refused."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.cli import run
from experiments.runs import imagined, jobs, training
from experiments.runs.folders import read_json
from experiments.settings import CollectionSettings, ImaginedSettings, RunSettings, build_config
from mbrl import checkpoint
from mbrl.data import load, save_npz
from mbrl.errors import CheckpointError, ConfigError
from tests.conftest import random_dataset
from tests.small import CONFIGS

STEPS = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    for name, seed in (("real", 0), ("other", 1)):
        save_npz(random_dataset("Pendulum-v1", 1000, seed=seed), folder / f"{name}.npz")
    return {name: str(folder / f"{name}.npz") for name in ("real", "other")}


def settings(files: dict[str, str], algorithm: str = "td3_bc", **chosen: Any) -> RunSettings:
    return RunSettings(
        algorithm, files["real"], steps=STEPS, eval_every=0, final_episodes=2, checkpoint_every=7,
        tensorboard=False, imagined=ImaginedSettings(**{"data": files["other"]} | chosen),
    )  # fmt: skip


def config(algorithm: str = "td3_bc") -> Any:
    return build_config(algorithm, CONFIGS[algorithm])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = checkpoint.load(folder / "checkpoint.pt")["state"]["modules"]
    return {f"{m}.{k}": v for m, values in state.items() for k, v in values.items()}


def test_a_killed_run_goes_on_with_the_rows_that_it_kept(files: Any, tmp_path: Path) -> None:
    chosen = settings(files, filter="consistency", quantile=0.8)
    training.start(chosen, config(), tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"

    def child() -> None:
        def die(*arguments: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        from algorithms import TD3BC  # in the child alone

        original, calls = TD3BC.update, [0]

        def counted(*arguments: Any) -> Any:
            calls[0] += 1
            return die() if calls[0] == 17 else original(*arguments)

        TD3BC.update = counted  # type: ignore[method-assign, assignment]
        training.start(chosen, config(), folder, quiet=True)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    kept = (folder / imagined.FILE).stat().st_mtime_ns
    jobs.resume(folder, quiet=True)
    assert (folder / imagined.FILE).stat().st_mtime_ns == kept
    first, second = weights(tmp_path / "whole"), weights(folder)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    keep = checkpoint.load(folder / imagined.FILE)["keep"]
    assert abs(float(keep.double().mean()) - 0.8) < 0.1
    assert read_json(folder / "manifest.json")["data"]["imagined"]["rows"] == 1000


def test_the_share_matters_and_0_is_the_logged_rows_alone(files: Any, tmp_path: Path) -> None:
    real = load(files["real"])
    joined = imagined.with_imagined(settings(files, share=0.25), real, tmp_path)
    weight = joined.transitions.weight
    assert weight is not None and float(weight[1000:].sum()) == pytest.approx(0.25, abs=1e-5)
    assert imagined.with_imagined(settings(files, data=None), real, tmp_path) is real
    even = imagined.with_imagined(settings(files, share=None), real, tmp_path).transitions.weight
    assert even is not None and (even == 1).all()


def test_the_options_of_the_command(files: Any, tmp_path: Path) -> None:
    options = ["--imagined.data", files["other"], "--imagined.share", "0.3"]
    command = run.run_command("iql", files["real"], [*options, "--imagined.filter", "consistency"])
    expected = ImaginedSettings(files["other"], 0.3, "consistency")
    assert command.settings.imagined == expected


def test_changed_rows_stop_a_resume_and_a_run_in_the_task(files: Any, tmp_path: Path) -> None:
    copy = tmp_path / "other.npz"
    copy.write_bytes(Path(files["other"]).read_bytes())
    training.start(settings(files, data=str(copy)), config(), tmp_path / "run", quiet=True)
    online = RunSettings(
        "td3_bc", "Pendulum-v1", steps=5, after=str(tmp_path / "run"), eval_every=0,
        final_episodes=2, tensorboard=False, collection=CollectionSettings(logged_share=0.0),
    )  # fmt: skip
    training.start(online, config(), tmp_path / "online", quiet=True)
    save_npz(random_dataset("Pendulum-v1", 1000, seed=5), copy)
    with pytest.raises(CheckpointError, match="has changed"):
        training.start(online, config(), tmp_path / "again", quiet=True)


def test_what_cannot_mean_anything_is_refused(files: Any, tmp_path: Path) -> None:
    for chosen, text in (
        (settings(files, data=None, filter="consistency"), "there are no imagined rows"),
        (RunSettings("sac", "Pendulum-v1", imagined=ImaginedSettings(files["other"])), "is a task"),
    ):
        with pytest.raises(ConfigError, match=text):
            training.check(chosen)
    with pytest.raises(ConfigError, match=r"share is 1\.5"):
        ImaginedSettings(files["other"], 1.5)
    with pytest.raises(ConfigError, match="quantile"):
        ImaginedSettings(files["other"], quantile=0.0)
    with pytest.raises(ConfigError, match="would be fitted to all alike"):
        training.start(settings(files, "mopo"), config("mopo"), tmp_path / "run", quiet=True)


def test_a_file_of_tidy_arrays_takes_the_task_of_the_logged_rows(
    files: Any, tmp_path: Path
) -> None:
    rows = load(files["other"]).transitions
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    np.savez(tmp_path / "plain.npz", **{n: getattr(rows, n).numpy() for n in names})
    chosen = settings(files, data=str(tmp_path / "plain.npz"))
    joined = imagined.with_imagined(chosen, load(files["real"]), tmp_path)
    assert len(joined) == 2000 and joined.spec.task == "Pendulum-v1"
