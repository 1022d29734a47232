"""A user's own callbacks and sinks on the command line."""

import csv
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.runs.own_callbacks import load
from mbrl.errors import ConfigError

MODULE = """
SEEN = []

def printer(event, agent, metrics):
    SEEN.append((event, agent.step))

class Writer:
    def __init__(self):
        self.file = open("seen.csv", "w")
    def __call__(self, event, agent, metrics):
        if event == "step":
            self.file.write(f"{agent.step},{float(metrics['actor/bc'])!r}\\n")
        if event == "end":
            self.file.close()

class Needy:
    def __init__(self, path): ...
    def __call__(self, event, agent, metrics): ...

def short(event): ...
number = 3
writer = Writer
"""
SMALL = ["--hidden", "8", "--steps", "5", "--eval-every", "0", "--final-episodes", "1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "users_own.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_callback_of_ones_own_is_called_at_every_step(here: Path) -> None:
    names = ["--callback", "users_own:printer", "users_own:Writer"]
    common = ["--log-every", "1", "--out", "run", "--no-tensorboard"]
    assert main(["run", "bc", "pendulum/medium", *SMALL, *names, *common]) == 0
    import users_own  # type: ignore[import-not-found]

    steps = [("start", 0), *(("step", i) for i in range(1, 6)), ("end", 5)]
    assert [e for e in users_own.SEEN if e[0] != "prepare"] == steps
    with (here / "run" / "metrics.csv").open() as file:
        logged = [(int(r["step"]), float(r["actor/bc"])) for r in csv.DictReader(file)]
    written = [line.split(",") for line in (here / "seen.csv").read_text().splitlines()]
    assert [(int(a), float(b)) for a, b in written] == logged


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("users_own", "write it as module:object"),
        ("nowhere.there:x", "cannot be imported"),
        ("users_own:printr", "did you mean 'printer'"),
        ("users_own:number", "is a int"),
        ("users_own:Needy", "cannot be made without arguments"),
        ("users_own:short", "is called with \\(event, agent, metrics\\)"),
    ],
)
def test_what_is_no_callback(name: str, words: str, here: Path, capsys) -> None:
    with pytest.raises(ConfigError, match=words):
        load(name)
    command = ["run", "bc", "pendulum/medium", *SMALL, "--callback", name, "--out", "run"]
    assert main(command) == 2
    assert not (here / "run").exists()


def test_a_sink_that_is_not_installed_stops_the_run_before_it_begins(
    here: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mbrl.sinks.find_spec", lambda name: None)
    command = ["run", "bc", "pendulum/medium", *SMALL, "--sinks", "trackio", "--out", "run"]
    assert main(command) == 2
    assert "--sinks trackio needs its package" in capsys.readouterr().err
    assert not (here / "run").exists()
