"""The verb `plot`: curves of runs, and what cannot be drawn."""

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.cli.plot import lines_of
from experiments.reports import figures
from experiments.runs import history, training
from experiments.runs.training import TrainingRun
from experiments.settings import RunSettings, build_config
from mbrl import config as configs
from mbrl import data
from mbrl.errors import CheckpointError
from tests.small import CONFIGS


def test_a_plot_joins_seeds(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "figures" / "scores.png"
    assert main(["plot", *map(str, runs), "--out", str(out)]) == 0
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    ravl = [float(r["mean"]) for r in rows if r["name"] == "ravl"]
    parts = [history.scores(folder)[1] for folder in runs[:2]]
    np.testing.assert_allclose(ravl, np.mean(parts, axis=0), rtol=1e-5)
    assert {r["name"] for r in rows} == {"ravl", "bc"}
    assert main(["plot", str(runs[0]), "--metric", "critic/q_mean", "--out", str(out)]) == 0


def test_what_cannot_be_drawn(runs: list[Path], tmp_path: Path, capsys) -> None:
    assert main(["plot", str(runs[0]), "--metric", "critic/q_men"]) == 2
    assert "critic/q_mean" in capsys.readouterr().err
    other = runs[0].parent / "." / runs[0].name / ".." / runs[0].name
    assert main(["plot", str(runs[0]), str(other)]) == 2
    assert "more than once" in capsys.readouterr().err
    twin = tmp_path / "twin"
    shutil.copytree(runs[0], twin)
    assert main(["plot", str(runs[0]), str(twin)]) == 2
    assert "have the same settings and seed 0" in " ".join(capsys.readouterr().err.split())
    assert main(["plot", str(runs[0]), "--out", str(tmp_path / "x.csv")]) == 2
    assert "name a picture" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["report"]) == 2
    with pytest.raises(CheckpointError, match="holds no run"):
        TrainingRun(tmp_path).read()


def test_runs_that_learned_otherwise_are_no_seeds_of_each_other(tmp_path: Path) -> None:
    folders = []
    for name, options in {
        "a": {},
        "b": {"seed": 1, "log_every": 7},
        "c": {"holdout": 0.5},
        "d": {"matmul_precision": "medium"},
    }.items():
        settings = RunSettings("bc", "pendulum/expert", steps=5, **options)
        training.create(settings, build_config("bc", CONFIGS["bc"]), tmp_path / name)
        folders.append(tmp_path / name)
    names = lines_of(folders)
    assert names[folders[0]] == names[folders[1]] and len(set(names.values())) == 3
    assert "holdout=0.5" in names[folders[2]] and "medium" in names[folders[3]]
    assert lines_of(folders[:2]) == dict.fromkeys(folders[:2], "bc")


def test_runs_after_other_runs_are_no_seeds_of_each_other(tmp_path: Path) -> None:
    """Those of two seeds of one run before are, and a run scored in another task is not."""
    folders = []
    for name, expectile, seed in (("a", 0.7, 0), ("b", 0.7, 1), ("c", 0.9, 2)):
        before = tmp_path / f"before-{name}"
        values = CONFIGS["iql"] | {"expectile": expectile}
        settings = RunSettings("iql", "pendulum/expert", steps=5, seed=seed)
        training.create(settings, build_config("iql", values), before)
        after = RunSettings("iql", "Pendulum-v1", steps=5, seed=seed, after=str(before))
        (tmp_path / name).mkdir()
        content = {
            "run": asdict(after),
            "config": configs.to_dict(build_config("iql", CONFIGS["iql"])),
        }
        (tmp_path / name / "config.json").write_text(json.dumps(content))
        folders.append(tmp_path / name)
    names = lines_of(folders)
    assert names[folders[0]] == names[folders[1]] == "iql after.expectile=0.7"
    assert names[folders[2]] == "iql after.expectile=0.9"


def test_changed_rows_are_no_seed(runs: list[Path], tmp_path: Path, capsys) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs[1], other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["data"]["fingerprint"] = "another"
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert main(["plot", str(runs[0]), str(other)]) == 2
    assert "different contents of" in " ".join(capsys.readouterr().err.split())


def test_axes_name_what_is_drawn_and_files_are_of_their_kind(
    runs: list[Path], tmp_path: Path, monkeypatch
) -> None:
    drawn = []
    monkeypatch.setattr(figures, "curves", lambda *a: drawn.append(a[1:3]))
    assert main(["plot", str(runs[0])]) == 0
    folder = tmp_path / "returns"
    shutil.copytree(runs[0], folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["spec"]["reference_returns"] = None
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["plot", str(folder)]) == 0
    assert drawn == [("updates", "score"), ("updates", "return")]
    monkeypatch.undo()
    assert main(["plot", str(folder), "--out", str(tmp_path / "x.pdf")]) == 0
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


def test_a_line_with_gaps_is_drawn(tmp_path: Path) -> None:
    for values in ([1.0, np.nan, 3.0], [np.nan] * 3):
        line = figures.curve(np.arange(3.0), np.array([values, values]))
        figures.curves({"": {"": line}}, "updates", "score", tmp_path / "gaps.png")
        assert (tmp_path / "gaps.png").stat().st_size > 1000


def test_a_run_without_evaluations_says_what_can_be_drawn(tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(40, 2)), rng.uniform(-1, 1, (40, 1))
    ends, cuts = np.zeros(40, dtype=bool), np.arange(40) % 10 == 9
    log = data.from_arrays(obs, action, obs[:, 0], terminated=ends, truncated=cuts)
    data.save_npz(log, tmp_path / "log.npz")  # of no task, in which it could be evaluated
    settings = RunSettings("td3_bc", str(tmp_path / "log.npz"), steps=20, log_every=5)
    folder = tmp_path / "run"
    training.create(settings, build_config("td3_bc", CONFIGS["td3_bc"]), folder)
    assert main(["plot", str(folder), "--out", str(tmp_path / "x.png")]) == 2
    assert "resume the run first" in capsys.readouterr().err
    TrainingRun(folder).finish()
    assert main(["plot", str(folder), "--out", str(tmp_path / "x.png")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "--metric NAME" in told and "resume" not in told
    name = told.split("NAME: ")[1].split(",")[0]
    assert main(["plot", str(folder), "--metric", name, "--out", str(tmp_path / "x.png")]) == 0
