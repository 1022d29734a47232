"""Commands as a new user types them: help, good runs, and bad input that stops before any work."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from algorithms import ALGORITHMS
from experiments import cli
from experiments.__main__ import VERBS, main
from experiments.cli.list import description
from experiments.runs import training as run
from mbrl.native.build import library
from world_models import EnsembleConfig


def test_usage_names_every_verb(capsys) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)


def test_every_verb_is_a_file() -> None:
    """Or several, whose names begin with its own, such as language_sequence."""
    files = {file.stem for file in Path(cli.__file__).parent.glob("[a-z]*.py")}
    assert {name.split("_")[0] for name in files} == set(VERBS)


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help(verb: str, capsys) -> None:
    try:
        status = main([verb, "--help"])
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 0
    text = capsys.readouterr().out
    assert len(text) > 60
    usage = text.split("\n\n")[0].split()
    for before, word in itertools.pairwise(usage):  # an option's value may be named by its type
        assert word.strip("[]") not in ("STR", "PATH") or before.strip("[").startswith("--")


def test_the_list_has_whole_sentences(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for name, (cls, _) in ALGORITHMS.items():
        text = description(cls)
        assert text.endswith(".") and f" {name} " in listed and f" {text} " in listed
    parts = ""
    for what in ("algorithms", "tasks", "datasets"):
        assert main(["list", what]) == 0
        parts += capsys.readouterr().out
    assert parts == listed
    (row,) = (line for line in listed.splitlines() if " policy_gradient " in line)
    assert "both; online only" in row


BAD = [
    (["list", "dataset"], "unknown list 'dataset': did you mean 'datasets'"),
    (["rnu"], "unknown command 'rnu': did you mean 'run'"),
    (["run", "ravk", "pendulum/medium"], "did you mean 'ravl'"),
    (["run", "ravl", "pendulum/mediun"], "did you mean 'medium'"),
    (["run", "ravl", "pendulun/medium"], "pendulum"),
    (["run", "edac", "CartPole-v1"], "needs continuous actions and those of CartPole-v1"),
    (["run", "edac", "cartpole/medium"], "needs continuous actions"),
    (["run", "edac", "missing.npz"], "missing.npz does not exist"),
    (["run", "edac", "pendulum/medium", "--learner.critics", "0"], "critics is 0"),
    (["run", "edac", "pendulum/medium", "--steps", "0"], "steps is 0"),
    (["run", "edac", "pendulum/medium", "--learner.gamma", "1.5"], "gamma is 1.5"),
    (["run", "iql", "pendulum/medium", "--expectile", "2"], "expectile is 2"),
    (["run", "ravl", "pendulum/medium", "--imagination.real-ratio", "2"], "real_ratio is 2"),
    (["run", "ravl", "pendulum/medium", "--device", "tpu"], "device"),
    (["resume", "nowhere"], "holds no run"),
    (["evaluate", "nowhere"], "no checkpoint"),
    (["evaluate", "any", "--fqe-steps", "5", "--json"], "--json has no part in --fqe-steps"),
    (["evaluate", "any", "--fqe-steps", "5", "--out", "x"], "--out has no part in --fqe-steps"),
    (["evaluate", "--sb3", "f", "--task", "Pendulum-v1", "--step", "5"], "--step is for runs"),
    (["model", "fiit"], "did you mean 'fit'"),
    (["table", "clasic"], "did you mean 'classic'"),
    (["data", "info", "pendulum/nothing"], "unknown pendulum dataset"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda v: " ".join(v)[:40])
def test_bad_input_stops_at_once(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    text = capsys.readouterr()
    assert status == 2
    assert message in " ".join((text.out + text.err).replace("│", " ").split())
    assert "Traceback" not in text.err
    assert not list(tmp_path.glob("runs/**/checkpoint.pt"))


@pytest.mark.usefixtures("short_episodes")
def test_run_evaluate_inspect(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["run", "ravl", "pendulum/medium-replay", "--out", "run", "--steps", "20"]
    assert main([*train, "--model.max-epochs", "2", "--imagination.starts", "50"]) == 0
    output = capsys.readouterr().out
    assert "last evaluation: return" in output and "score" in output
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["data"]["name"] == "pendulum/medium-replay"
    assert len(manifest["data"]["fingerprint"]) == 64
    assert manifest["machine"]["compiled"] == (library() is not None)
    assert main(["evaluate", "run", "--episodes", "3"]) == 0
    assert "over 3 starts" in capsys.readouterr().out
    assert main(["model", "inspect", "run", "--steps", "5"]) == 0
    assert "5-step error" in capsys.readouterr().out
    assert (tmp_path / "run" / "inspect.png").stat().st_size > 10_000
    assert main(train) == 2 and "already holds a run" in capsys.readouterr().err


def test_the_fit_of_a_world_model_is_forecast_from_its_second_epoch(capsys, monkeypatch) -> None:
    clock = iter([100.0, 107.2, 120.0])
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(clock))
    agent = SimpleNamespace(config=SimpleNamespace(model=EnsembleConfig(max_epochs=50)), step=0)
    shown = run.Forecast(10)
    for epoch in (1.0, 2.0, 3.0):
        shown("prepare", agent, {"model/epoch": torch.tensor(epoch)})
    expected = "the world model takes 7.2 s an epoch, for 50 epochs at most 0.1 h here\n"
    assert capsys.readouterr().out == expected
