"""What `value` refuses: data that the policy does not fit, and the run's own data, changed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main
from mbrl.data import from_arrays, save_npz
from mbrl.types import Spec

QUICK = ["--steps", "10", "--resamples", "2", "--dice-steps", "0", "--model-starts", "0"]


def write(path: Path, names: tuple[str, ...], labels: tuple[str, ...], seed: int = 0) -> Path:
    """Ten episodes of eight steps."""
    rng = np.random.default_rng(seed)
    sizes = {"obs_dim": len(names), "num_actions": len(labels), "max_episode_steps": 20}
    spec = Spec("file", **sizes, obs_names=names, action_names=labels)
    dataset = from_arrays(
        obs=rng.normal(size=(80, len(names))),
        action=rng.integers(0, len(labels), 80),
        reward=rng.normal(size=80),
        terminated=np.arange(80) % 8 == 7,
        spec=spec,
    )
    save_npz(dataset, path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("value")
    log = write(home / "log.npz", ("x", "v"), ("0", "2", "5"))
    command = ["run", "discrete_iql", str(log), "--steps", "4", "--holdout", "0.2", "--hidden", "8"]
    assert main([*command, "--out", str(home / "run")]) == 0
    return home / "run"


@pytest.mark.parametrize(
    ("names", "labels", "words"),
    [
        (("x",), ("0", "2", "5"), "differ in (obs_dim, action_dim, num_actions)"),
        (("v", "x"), ("0", "2", "5"), "differ in obs_names: ['x', 'v'] against ['v', 'x']"),
        (("x", "v"), ("full", "half", "off"), "differ in action_names"),
    ],
)
def test_other_observations_and_actions_are_refused(
    names: tuple[str, ...], labels: tuple[str, ...], words: str, run: Path, tmp_path: Path, capsys
) -> None:
    other = write(tmp_path / "other.npz", names, labels)
    assert main(["value", str(run), "--data", str(other), *QUICK]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    same = write(tmp_path / "same.npz", ("x", "v"), ("0", "2", "5"), seed=1)
    assert main(["value", str(run), "--data", str(same), *QUICK]) == 0


def test_held_out_episodes_of_changed_data_are_refused(run: Path, capsys) -> None:
    assert main(["value", str(run), *QUICK]) == 0
    log, kept = run.parent / "log.npz", run.parent / "kept.npz"
    shutil.copy(log, kept)
    write(log, ("x", "v"), ("0", "2", "5"), seed=2)
    assert main(["value", str(run), *QUICK]) == 2
    assert "has changed" in " ".join(capsys.readouterr().err.split())
    shutil.copy(kept, log)
    assert main(["value", str(run), *QUICK]) == 0
