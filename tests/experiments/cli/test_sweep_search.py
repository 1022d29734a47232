"""Sweeps without a file, and the search of settings: what is parsed, run, chosen and continued."""

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import quickstart, search, sweep
from experiments.runs import folders, jobs, launchers
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from experiments.tables import plan, records, render, summary
from mbrl.data import save_npz
from mbrl.errors import ConfigError
from tests.experiments.tables.test_table import Here
from world_models.disagreement import MEASURES


def test_values_of_a_hyperparameter() -> None:
    assert plan.parse_values("learner.eta=0.5,1") == ("learner.eta", [0.5, 1])
    assert plan.parse_values("hidden=[8],[64,64]") == ("hidden", [[8], [64, 64]])
    assert plan.parse_values("model.target=raw,standardised")[1] == ["raw", "standardised"]
    with pytest.raises(ConfigError, match="'eta' is not NAME=VALUE"):
        plan.parse_values("eta")


def test_every_combination_is_a_column() -> None:
    made = sweep.Sweep(
        ("edac", "sac_n"), ("pendulum/expert",), set=("learner.critics=2,5", "learner.gamma=0.9")
    )._plan()
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
    rows = list(csv.DictReader((tmp_path / "s" / "table.csv").open()))
    assert [r["column"] for r in rows] == ["bc learning_rate=0.001", "bc learning_rate=0.1"]
    drawn = list(csv.DictReader((tmp_path / "s" / "knob.csv").open()))
    assert [float(r["learning_rate"]) for r in drawn] == [0.001, 0.1]
    assert [float(r["mean"]) for r in drawn] == pytest.approx(
        [float(r["mean"]) for r in rows], 1e-4
    )
    assert (tmp_path / "s" / "knob.png").stat().st_size > 5000


def test_data_without_a_task_have_no_scores(pendulum, tmp_path: Path) -> None:
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
    assert math.isnan(records.last_score(record)) and math.isnan(records.selected_score(record))
    entry = summary.Entry()
    summary._add_run(entry, 0, record, None)
    assert render.text_of(entry, 1) == "none"
    described = folders.read_json(folder / "config.json")
    described["run"]["steps"] = 25
    folders.write_json(folder / "config.json", described)
    jobs.resume(folder, quiet=True)
    assert jobs.seconds(folder) > 0.9 * first


def test_a_decay_as_long_as_the_budget_follows_it() -> None:
    """Else nothing is learned after the preset's budget; other decays stay as they are."""
    column = plan.Column("iql", "iql")
    for data, budget in (("pendulum/medium", 5000), ("d4rl/hopper-medium-v2", 1_000_000)):
        for steps in (None, budget, 300, 50_000):
            assert plan.config_of(column, data, steps).decay_steps == (steps or budget)
    own = plan.Column("iql", "iql", {"decay_steps": 0})
    assert plan.config_of(own, "pendulum/medium", 50_000).decay_steps == 0


def test_the_quickstart_mixes_no_budgets(tmp_path: Path) -> None:
    folder = tmp_path / "ravl"
    quickstart.require_same(folder, 100)
    folders.write_json(folder / "config.json", {"run": {"steps": 100}})
    quickstart.require_same(folder, 100)
    with pytest.raises(ConfigError, match=r"a run of 100 updates, not of 4000.*--steps 100"):
        quickstart.require_same(folder, 4000)


class Trial:
    """Records what was asked of Optuna."""

    def __getattr__(self, name: str):
        return lambda *a, **k: (name, a, k)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("gamma=0.9:0.99", ("suggest_float", ("gamma", 0.9, 0.99), {"log": False})),
        ("a.eta=log:0.1:10", ("suggest_float", ("a.eta", 0.1, 10.0), {"log": True})),
        ("n=int:2:20", ("suggest_int", ("n", 2, 20), {})),
        ("h=[8],[16]", ("suggest_categorical", ("h", ["[8]", "[16]"]), {})),
    ],
)
def test_ranges(text: str, asked: tuple) -> None:
    assert search.parse_range(text)(Trial()) == asked


@pytest.mark.parametrize("text", ["gamma", "gamma=1:0", "gamma=log:0:1", "gamma=exp:1:2", "g=a:b"])
def test_wrong_ranges_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=text.split("=")[0]):
        search.parse_range(text)


def test_a_search_is_continued_and_keeps_its_objective(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    values = {"steps": 10, "fqe_steps": 5, "workers": 1, "out": tmp_path / "found"}
    ranges = ("learning_rate=log:1e-4:1e-1", "hidden=[8],[8,8]")
    search.Search("bc", "pendulum/expert", ranges, trials=2, **values).main()
    search.Search("bc", "pendulum/expert", ranges, trials=3, **values).main()
    printed = capsys.readouterr().out
    assert "3 trials" in printed and "the data alone decide" in " ".join(printed.split())
    rows = list(csv.DictReader((tmp_path / "found" / "trials.csv").open()))
    assert sorted(int(r["trial"]) for r in rows) == [0, 1, 2]
    objective = [float(r["fqe"]) for r in rows]
    assert objective == sorted(objective, reverse=True)
    files = (tmp_path / "found").glob("trial-*/*/0.json")
    best = [max(_record(f)["selection"]["values"]) for f in files]
    assert sorted(best, reverse=True) == pytest.approx(objective)
    with pytest.raises(ConfigError, match="give another --out"):
        search.Search("bc", "pendulum/expert", ranges, objective="score", **values).main()


def _record(file: Path) -> dict:
    import json

    return json.loads(file.read_text())


def test_an_unfinished_trial_is_finished_first(tmp_path, monkeypatch) -> None:
    optuna = pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    values = {"steps": 10, "objective": "score", "workers": 1, "out": tmp_path / "found"}
    command = search.Search("bc", "pendulum/expert", ("gamma=0.8:0.9",), trials=1, **values)
    study = command._study()
    trial = study.ask()
    wanted = trial.suggest_float("gamma", 0.8, 0.9)
    command.main()
    (done,) = optuna.load_study(
        study_name="search", storage=f"sqlite:///{tmp_path / 'found' / 'search.db'}"
    ).trials
    assert done.params == {"gamma": wanted} and math.isfinite(done.value)
    record = _record(next((tmp_path / "found").glob("trial-0/*/0.json")))
    assert record["key"]["config"]["gamma"] == wanted
    assert done.value == pytest.approx(float(np.asarray(records.scores(record))[-1]))


class Corner:
    """Answers Optuna's questions with an end of the range, or with a choice by number."""

    def __init__(self, number: int) -> None:
        self.number, self.params = number, {}

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> None:
        self.params[name] = (low, high)[self.number % 2]

    def suggest_int(self, name: str, low: int, high: int) -> None:
        self.params[name] = (low, high)[self.number % 2]

    def suggest_categorical(self, name: str, options: list) -> None:
        self.params[name] = options[self.number % len(options)]


@pytest.mark.parametrize("space", search.spaces())
def test_corners_of_a_space_are_settings_of_mopo(space: str) -> None:
    for number in range(12):
        trial = Corner(number)
        for text in search.space_ranges(space):
            search.parse_range(text)(trial)
        build_config("mopo", search._settings(trial.params))


def test_design_choices_hold_every_penalty_and_the_number_of_models() -> None:
    texts = dict(text.split("=") for text in search.space_ranges("design-choices"))
    assert texts["imagination.rollout.penalty"].split(",") == list(MEASURES)
    assert texts["imagination.rollout.penalty_weight"].startswith("log:")
    assert int(texts["model.elites"].split(":")[2]) == int(texts["model.members"])
    assert {"imagination.rollout.horizon", "imagination.real_ratio"} < set(texts)


def test_a_hyperparameter_replaces_that_of_the_space() -> None:
    names = [text.split("=")[0] for text in search.space_ranges("design-choices")]
    ranges = search.Search(
        "mopo", "pendulum/medium", ("model.members=3", "gamma=0.9:0.99"), "design-choices"
    ).ranges
    assert [text.split("=")[0] for text in ranges] == [*names, "gamma"]
    assert "model.members=3" in ranges and "model.members=10" not in ranges
    with pytest.raises(ConfigError, match="did you mean 'design-choices'"):
        search.Search("mopo", "pendulum/medium", space="design-choice").main()
    with pytest.raises(ConfigError, match=r"nothing to search; .*design-choices"):
        search.Search("mopo", "pendulum/medium").main()


def test_a_space_is_searched(tmp_path, monkeypatch) -> None:
    """Two tiny trials of MOPO; each record has the settings that the trial asked for."""
    pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    small = (
        *("model.members=3", "model.elites=int:2:3", "model.max_epochs=1", "model.min_epochs=1"),
        *("model.hidden=[8]", "imagination.starts=20", "imagination.rollout.horizon=int:1:3"),
    )
    values = {"steps": 5, "fqe_steps": 2, "workers": 1, "out": tmp_path / "found"}
    search.Search(
        "mopo", "pendulum/medium-replay", small, "design-choices", trials=2, **values
    ).main()
    for row in csv.DictReader((tmp_path / "found" / "trials.csv").open()):
        (file,) = (tmp_path / "found").glob(f"trial-{row['trial']}/*/0.json")
        config = _record(file)["key"]["config"]
        assert config["model"]["elites"] == int(row["model.elites"])
        rollout = config["imagination"]["rollout"]
        assert rollout["penalty"] == row["imagination.rollout.penalty"]
        assert rollout["penalty_weight"] == float(row["imagination.rollout.penalty_weight"])
        assert rollout["horizon"] == int(row["imagination.rollout.horizon"])
