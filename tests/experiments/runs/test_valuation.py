"""What `value` refuses: data that the policy does not fit, logs in other units, and the run's own
data, changed."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.__main__ import main
from experiments.runs import drift
from experiments.runs.training import TrainingRun
from experiments.runs.valuation import episodes_for
from mbrl.data import from_arrays, from_log, save_npz
from mbrl.errors import ConfigError, DataError
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


def patients(scale: float, ward: str = "B") -> pd.DataFrame:
    """Ten patients of six hours; the first measurement of each is missing."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"patient": np.repeat(np.arange(10), 6), "hour": np.tile(np.arange(6), 10)}
    )
    frame["lactate"] = np.where(frame.hour == 0, np.nan, scale * rng.uniform(1, 3, 60))
    frame["ward"] = np.where(frame.patient == 3, ward, "A")
    frame["dose"], frame["gain"] = rng.uniform(0, 1, 60), rng.normal(size=60)
    return frame


def test_other_logs_have_the_units_and_the_fill_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"obs": ("lactate", "ward"), "action": ("dose",), "reward": "gain",
               "episode": "patient", "order": "hour", "missing": "impute"}  # fmt: skip
    for name, scale, unit in (("own", 1.0, "mmol/l"), ("mg", 9.0, "mg/dl"), ("new", 2.0, "mmol/l")):
        log = from_log(patients(scale), **columns, units=(f"lactate={unit}",))
        save_npz(log, f"{name}.npz")
        patients(scale).to_csv(f"{name}.csv", index=False)
    assert main(["run", "bc", "own.npz", "--steps", "2", "--hidden", "8", "--out", "run"]) == 0
    run = TrainingRun(Path("run"))
    with pytest.raises(ConfigError, match=r"lactate is in mg/dl in .* and in mmol/l in the data"):
        episodes_for(run, "mg.npz")
    with pytest.raises(ConfigError, match=r"lactate is in mg/dl in mg.npz and in mmol/l in"):
        drift.drift_of("mg.npz", drift.reference_of(Path("run")), {})
    with pytest.warns(UserWarning, match="other numbers in the place of missing ones"):
        filled = episodes_for(run, "new.npz")[0].transitions
    own, new = (episodes_for(run, name)[0].transitions for name in ("own.npz", "new.csv"))
    missing = own.obs[:, 1] == 1
    assert torch.equal(new.obs[missing], own.obs[missing])
    assert torch.equal(new.obs[~missing], filled.obs[~missing])
    assert not torch.equal(filled.obs[missing], own.obs[missing])
    patients(1.0, "C").to_csv("ward.csv", index=False)
    with pytest.raises(DataError, match=r"6 rows of ward.csv have labels .*\(ward: C\)"):
        episodes_for(run, "ward.csv")
    Path("own.npz").unlink()
    with pytest.warns(UserWarning, match="since those cannot be read"):
        episodes_for(run, "new.npz")
