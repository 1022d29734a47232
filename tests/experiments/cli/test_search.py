"""The verb `search`: ranges, trials that are continued, and spaces."""

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.cli import search
from experiments.runs import launchers
from experiments.settings import build_config, from_file
from experiments.tables import records
from mbrl import config as configs
from mbrl import data
from mbrl.errors import ConfigError
from mbrl.types import Dataset
from tests.experiments.tables.test_table import Here
from world_models.disagreement import MEASURES

pytestmark = pytest.mark.usefixtures("quick_jobs")


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


@pytest.mark.parametrize(
    "text", ["gamma", "gamma=1:0", "gamma=log:0:1", "gamma=exp:1:2", "g=a:b", "n=int:2.5:9"]
)
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
    for row in rows:  # the score beside a value is that of the policy that has this value
        record = _record(next((tmp_path / "found" / f"trial-{row['trial']}").rglob("0.json")))
        assert float(row["score_in_task"]) == pytest.approx(records.selected_score(record))
    settings, config = from_file(tmp_path / "found" / "best.json", "bc", "pendulum/expert")
    first = _record(next((tmp_path / "found" / f"trial-{rows[0]['trial']}").rglob("0.json")))
    assert configs.to_dict(config) == first["key"]["config"]
    assert settings.steps == 10 and settings.fqe_steps == 5
    assert "--config" in printed and str(tmp_path / "found" / "best.json") in printed
    for changed, value in (("fingerprint", "data edited since"), ("version", 1000)):
        with monkeypatch.context() as now:
            if changed == "fingerprint":
                now.setattr(search, "fingerprint", lambda _, value=value: value)
            else:
                now.setattr(search.ALGORITHMS["bc"][0], "version", value)
            with pytest.raises(ConfigError, match=f"another {changed} of .*now {value}"):
                search.Search("bc", "pendulum/expert", ranges, trials=3, **values).main()
    with pytest.raises(ConfigError, match="pets plans and learns no policy"):
        search.Search("pets", "pendulum/expert", ("gamma_=1:2",), **values).main()
    with pytest.raises(ConfigError, match="give another --out"):
        search.Search("bc", "pendulum/expert", ranges, objective="score", **values).main()


def _record(file: Path) -> dict:
    import json

    return json.loads(file.read_text())


@pytest.mark.parametrize("sampler", ["gp", "random"])
def test_other_samplers(sampler: str, tmp_path, monkeypatch) -> None:
    """More trials than the Gaussian process draws at random first; the sampler is kept to."""
    pytest.importorskip("optuna")
    values = {"steps": 10, "fqe_steps": 5, "workers": 1, "out": tmp_path / "found"}
    made = search.Search(
        "bc",
        "pendulum/expert",
        ("learning_rate=1e-4:1e-3", "hidden=[8],[8,8]"),
        sampler=sampler,
        **values,
    )
    study = made._study()
    suggest = [search.parse_range(text) for text in ("gamma=0.9:0.99", "hidden=[8],[8,8]")]
    for k in range(14):
        trial = made._draw(study, suggest)
        study.tell(trial, -((trial.params["gamma"] - 0.93) ** 2) * 1e4 + 0.01 * k)
    if sampler == "gp":
        assert abs(study.best_params["gamma"] - 0.93) < 0.01
    other = search.Search(
        "bc", "pendulum/expert", ("learning_rate=1e-4:1e-3", "hidden=[8],[8,8]"), **values
    )
    with pytest.raises(ConfigError, match="holds a search of"):
        other._study()


def test_an_unfinished_trial_is_finished_first(tmp_path, monkeypatch) -> None:
    optuna = pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    values = {"steps": 10, "objective": "score", "workers": 1, "out": tmp_path / "found"}
    command = search.Search(
        "bc", "pendulum/expert", ("learning_rate=0.001:0.002",), trials=1, **values
    )
    study = command._study()
    trial = study.ask()
    wanted = trial.suggest_float("learning_rate", 0.001, 0.002)
    command.main()
    (done,) = optuna.load_study(
        study_name="search", storage=f"sqlite:///{tmp_path / 'found' / 'search.db'}"
    ).trials
    assert done.params == {"learning_rate": wanted} and math.isfinite(done.value)
    record = _record(next((tmp_path / "found").glob("trial-0/*/0.json")))
    assert record["key"]["config"]["learning_rate"] == wanted
    assert done.value == pytest.approx(float(np.asarray(records.scores(record))[-1]))


def test_a_trial_that_cannot_be_fails_by_name(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    out = tmp_path / "{odd}"  # Optuna fills a template
    values = {"steps": 10, "objective": "score", "workers": 1, "trials": 2, "out": out}
    assert search.Search("bc", "pendulum/expert", ("batch_size=int:-2:-1",), **values).main() == 1
    told = capsys.readouterr()
    assert "batch_size is -" in told.err and "0 trials, 2 failed" in told.out
    assert (out / "trials.csv").exists() and not (out / "best.json").exists()
    again = search.Search("bc", "pendulum/expert", ("batch_size=int:-2:-1",), **values)
    assert again.main() == 1  # nothing is left to do, and nothing came of it


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


def test_why_a_trial_diverged_is_said(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(launchers, "launcher", lambda *a: Here())
    monkeypatch.setattr(search.table, "finish", lambda *a: 0)
    text = "training diverged: critic/loss is inf at update 4"
    monkeypatch.setattr(records, "read", lambda *a: {"diverged": text})
    found = search.Search("bc", "pendulum/expert", ("hidden=[8],[8,8]",), trials=1, out=tmp_path)
    assert found.main() == 1
    assert f"trial 0 failed: {text}" in " ".join(capsys.readouterr().err.split())


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
        "mopo", "pendulum/medium", ("model.members=3", "rollout=3:4"), "design-choices"
    ).ranges
    assert [text.split("=")[0] for text in ranges] == [*names, "rollout"]
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hyperparameter": ("gamma=0.9:0.99",)}, "gamma changes what a value is"),
        ({"hyperparameter": ("learner.gamma=0.9:0.99",)}, "learner.gamma changes what"),
        ({"hyperparameter": ("hidden=[8],[9]",), "fqe_steps": 0}, "fqe_steps is 0"),
        ({"hyperparameter": ("hidden=[8]", "hidden=[9]")}, "hidden twice"),
        ({"hyperparameter": ("hidden=[8]",), "seeds": (0, 0)}, "seeds has 0 twice"),
    ],
)
def test_searches_that_would_mislead_are_refused(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        search.Search("bc", "pendulum/expert", **options)
    if "gamma" in text:
        search.Search("bc", "pendulum/expert", objective="score", **options)


def test_a_misspelt_hyperparameter_costs_no_trial(tmp_path: Path) -> None:
    for names, text in (
        ("learning_rat=log:1e-4:1e-2", "'learning_rat': did you mean 'learning_rate'"),
        ("learner.eta=0:1", "'learner.eta'"),
    ):
        with pytest.raises(ConfigError, match=text):
            search.Search("bc", "pendulum/medium", (names,), out=tmp_path / "found").main()
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    "sampler", ["gp", *(pytest.param(name, marks=pytest.mark.long) for name in ("random", "tpe"))]
)
def test_a_search_in_many_calls_draws_as_in_one(sampler: str, tmp_path: Path) -> None:
    """Ten trials are drawn at random first. A stopped call leaves a trial unfinished."""
    optuna = pytest.importorskip("optuna")
    suggest = [search.parse_range("learning_rate=0:1")]

    def drawn(out: Path, calls: list[int], seed: int = 0) -> list[float]:
        values = []
        for count in calls:
            command = search.Search(
                "bc", "pendulum/expert", ("learning_rate=0:1",), sampler=sampler,
                sampler_seed=seed, out=out,
            )  # fmt: skip
            study = command._study()
            left = study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
            for k in range(count):
                trial = command._draw(study, suggest, *left[k : k + 1])
                values.append(trial.params["learning_rate"])
                study.tell(trial, -abs(values[-1] - 0.3))
            if count < 13:
                command._draw(study, suggest)
        return values

    first = drawn(tmp_path / "a", [13])
    assert len(set(first)) == 13
    assert drawn(tmp_path / "b", [2, 9, 2]) == first
    assert not set(drawn(tmp_path / "c", [3], seed=1)) & set(first)


def test_data_that_cannot_be_searched_cost_no_trial(
    pendulum: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    options = ["--hyperparameter", "learning_rate=0.1:1", "--steps", "10", "--trials", "1"]
    broken = tmp_path / "bad.npz"
    broken.write_bytes(b"none")
    out = ["--out", str(tmp_path / "out")]
    assert main(["search", "bc", str(broken), *options, *out]) == 2
    assert "bad.npz" in capsys.readouterr().err and not (tmp_path / "out").exists()
    own = tmp_path / "own.npz"
    spec = dataclasses.replace(pendulum.spec, task="own", reference_returns=None)
    data.save_npz(dataclasses.replace(pendulum, spec=spec), own)
    assert main(["search", "bc", str(own), *options, *out, "--objective", "score"]) == 2
    assert "names no task that scores could come from" in capsys.readouterr().err
    assert main(["search", "bc", "pendulum/expert", *options, "--out", str(tmp_path / "a?b")]) == 2
    assert "has a question mark" in capsys.readouterr().err


def test_a_database_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "search.db").write_bytes(b"other" * 1000)
    options = ["--hyperparameter", "learning_rate=0.1:1", "--steps", "10", "--trials", "1"]
    assert main(["search", "bc", "pendulum/expert", *options, "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "search.db could not be read or written (file is not a database)" in line


def test_a_whole_number_is_not_drawn_from_a_range_of_others(tmp_path: Path) -> None:
    def names(text: str) -> None:
        search.Search("iql", "pendulum/expert", hyperparameter=(text,))._require_names()

    for text in ("batch_size=16:128", "batch_size=log:16:128"):
        with pytest.raises(ConfigError, match="int:16:128"):
            names(text)
    for text in ("batch_size=int:16:128", "batch_size=16,128", "learning_rate=log:1e-5:1e-3"):
        names(text)
