"""The verb `sweep`: every combination is a column, and a table comes out."""

import csv
import dataclasses
import math
from pathlib import Path

import pytest

from experiments.cli import sweep
from experiments.runs import folders, jobs, launchers
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from experiments.tables import records, render, summary
from mbrl.data import save_npz
from mbrl.errors import ConfigError
from tests.experiments.tables.test_table import Here


def test_every_combination_is_a_column() -> None:
    made = sweep.Sweep(
        ("edac", "sac_n"), ("pendulum/expert",), set=("learner.critics=2,5", "learner.gamma=0.9")
    )._plan()[0]
    labels = [c.label for c in made.blocks[0].columns]
    assert labels == [
        *(f"edac critics={n} gamma=0.9" for n in (2, 5)),
        *(f"sac_n critics={n} gamma=0.9" for n in (2, 5)),
    ]
    with pytest.raises(ConfigError, match="edax"):
        sweep.Sweep(("edax",), ("pendulum/expert",))._plan()
    with pytest.raises(ConfigError, match="critcs"):
        sweep.Sweep(("edac",), ("pendulum/expert",), set=("learner.critcs=2",))._plan()


def test_a_sweep_writes_its_table_and_figure(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    options = ["--algorithms", "bc", "--data", "pendulum/expert", "--steps", "20"]
    out = ["--set", "learning_rate=0.001,0.1", "--out", str(tmp_path / "s")]
    assert sweep.main([*options, *out]) == 0
    with pytest.raises(ConfigError, match="results with steps 20, not 21; give another folder"):
        sweep.main([*options[:-1], "21", *out])
    with pytest.raises(ConfigError, match="seeds has 0 twice"):
        sweep.Sweep(("bc",), ("pendulum/expert",), seeds=(0, 0))
    rows = list(csv.DictReader((tmp_path / "s" / "table.csv").open()))
    assert [r["column"] for r in rows] == ["bc learning_rate=0.001", "bc learning_rate=0.1"]
    drawn = list(csv.DictReader((tmp_path / "s" / "knob.csv").open()))
    assert [float(r["learning_rate"]) for r in drawn] == [0.001, 0.1]
    assert [float(r["mean"]) for r in drawn] == pytest.approx(
        [float(r["mean"]) for r in rows], 1e-4
    )
    assert (tmp_path / "s" / "knob.png").stat().st_size > 5000


def test_data_without_a_task_have_estimates_in_place_of_scores(pendulum, tmp_path: Path) -> None:
    """As D4RL's kitchen: everything but evaluations. And the time of a run is that of all its
    sessions."""
    spec = dataclasses.replace(pendulum.spec, task="Kitchen-v0", reference_returns=None)
    file, folder = tmp_path / "kitchen.npz", tmp_path / "run"
    save_npz(dataclasses.replace(pendulum, spec=spec), file)
    settings = RunSettings("td3_bc", str(file), steps=20, fqe_steps=10, tensorboard=False)
    runs.start(settings, build_config("td3_bc", {"hidden": [8]}), folder, quiet=True)
    first = jobs.seconds(folder)
    record = records.write(tmp_path / "0.json", {"algorithm": "td3_bc"}, folder)
    assert record["steps"] == [] and math.isfinite(max(record["selection"]["values"]))
    choice = record["selection"]
    assert records.last_score(record) == choice["values"][choice["steps"].index(choice["chosen"])]
    assert math.isnan(records.selected_score(record)) and records.estimated(record)
    entry = summary.Entry()
    summary._add_run(entry, 0, record, None)
    assert render.text_of(entry, 1).startswith("-")
    described = folders.read_json(folder / "config.json")
    described["run"]["steps"] = 25
    folders.write_json(folder / "config.json", described)
    jobs.resume(folder, quiet=True)
    assert jobs.seconds(folder) > 0.9 * first


def test_a_sweep_over_data_without_a_task_has_a_table_too(
    pendulum, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    spec = dataclasses.replace(pendulum.spec, task="Kitchen-v0", reference_returns=None)
    save_npz(dataclasses.replace(pendulum, spec=spec), tmp_path / "kitchen.npz")
    options = ["--algorithms", "bc", "td3_bc", "--data", str(tmp_path / "kitchen.npz")]
    assert sweep.main([*options, "--steps", "5", "--out", str(tmp_path / "s")]) == 0
    assert "--fqe-steps 2500 gives estimates" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "s" / "table.md").exists()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["learning_rate=0.001,0.001"], "--set learning_rate has 0.001 twice"),
        (["learning_rate=0.001", "learning_rate=0.01"], "--set has learning_rate twice"),
    ],
)
def test_a_run_counts_once(settings: list[str], text: str, tmp_path: Path) -> None:
    command = sweep.Sweep(("bc",), ("pendulum/expert",), set=tuple(settings), out=tmp_path)
    with pytest.raises(ConfigError, match=text):
        command._plan()


def test_values_and_scores_have_no_mean(pendulum, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    spec = dataclasses.replace(pendulum.spec, task="Kitchen-v0", reference_returns=None)
    save_npz(dataclasses.replace(pendulum, spec=spec), tmp_path / "kitchen.npz")
    options = ["--algorithms", "bc", "--data", str(tmp_path / "kitchen.npz"), "pendulum/expert"]
    options += ["--steps", "5", "--fqe-steps", "5", "--seeds", "0", "--out", str(tmp_path / "s")]
    assert sweep.main(options) == 0
    page = (tmp_path / "s" / "table.md").read_text()
    assert "| pendulum/expert | " in page and "over all datasets" not in page


def test_names_that_would_share_a_folder_are_refused(pendulum, tmp_path: Path) -> None:
    files = [tmp_path / "logä.npz", tmp_path / "logö.npz"]
    for file in files:
        save_npz(pendulum, file)
    with pytest.raises(ConfigError, match="would share the folder"):
        sweep.Sweep(("bc",), tuple(map(str, files)), out=tmp_path)._plan()


def test_the_figure_of_a_sweep_goes_from_low_to_high(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    options = ["--algorithms", "bc", "--data", "pendulum/expert", "--steps", "2"]
    out = ["--set", "learning_rate=0.1,0.001", "--out", str(tmp_path / "s")]
    assert sweep.main([*options, *out]) == 0
    drawn = list(csv.DictReader((tmp_path / "s" / "knob.csv").open()))
    assert [float(r["learning_rate"]) for r in drawn] == [0.001, 0.1]
