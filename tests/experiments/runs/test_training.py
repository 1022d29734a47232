"""The description of a training run, and what is left of one that cannot begin."""

from pathlib import Path

import pytest

from experiments.runs import jobs, training
from experiments.settings import RunSettings, build_config, preset_config
from mbrl.errors import ConfigError, DataError
from tests.small import CONFIGS


def settings(algorithm: str, data: str, device: str = "cpu") -> RunSettings:
    return RunSettings(algorithm, data, steps=5, device=device, tensorboard=False)


def test_a_run_is_described_without_its_data(tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the data were loaded")

    monkeypatch.setattr(training.data, "load", fail)
    training.create(
        settings("bc", "pendulum/expert"), preset_config("bc", "pendulum/expert"), tmp_path
    )
    assert {file.name for file in tmp_path.iterdir()} <= {"config.json", "lock"}
    with pytest.raises(ConfigError, match="already holds a run"):
        training.create(settings("bc", "pendulum/expert"), build_config("bc", {}), tmp_path)
    for data, text in (
        ("cartpole/medium", "needs continuous"),
        ("cartpole/mediun", "did you mean"),
    ):
        with pytest.raises(ConfigError, match=text):
            training.create(settings("edac", data), build_config("edac", {}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_precision_of_products_is_set_by_every_job(tmp_path: Path, monkeypatch) -> None:
    """Also by one that goes on, and by one that comes after another in a process."""
    seen = []
    monkeypatch.setattr(training, "set_matmul_precision", seen.append)
    values = {"steps": 5, "tensorboard": False, "final_episodes": 2}
    medium = RunSettings("bc", "pendulum/expert", matmul_precision="medium", **values)
    config = build_config("bc", CONFIGS["bc"])
    training.start(medium, config, tmp_path / "a", quiet=True)
    training.start(settings("bc", "pendulum/expert"), config, tmp_path / "b", quiet=True)
    (tmp_path / "a" / "result.json").unlink()
    jobs.resume(tmp_path / "a", quiet=True)
    assert seen == ["medium", "highest", "medium"]
    assert '"matmul_precision": "medium"' in (tmp_path / "a" / "manifest.json").read_text()
    with pytest.raises(ConfigError, match="matmul_precision"):
        RunSettings("bc", "pendulum/expert", matmul_precision="low", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "device", "error"),
    [("pendulum/expert", "tpu", ConfigError), ("nowhere.npz", "cpu", DataError)],
)
def test_a_run_that_cannot_begin_leaves_nothing(
    data: str, device: str, error: type[Exception], tmp_path: Path
) -> None:
    config = build_config("bc", CONFIGS["bc"])
    with pytest.raises(error):
        training.start(settings("bc", data, device), config, tmp_path / "new/run", quiet=True)
    assert not (tmp_path / "new").exists() and tmp_path.exists()
    training.start(settings("bc", "pendulum/expert"), config, tmp_path / "run", quiet=True)
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    assert '"fingerprint"' in manifest and (tmp_path / "run" / "result.json").exists()
