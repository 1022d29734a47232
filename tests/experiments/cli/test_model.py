"""The verb `model`: what `inspect` says of a run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.runs import history
from mbrl.data import save_npz
from tests.conftest import random_dataset


def test_inspecting_a_runs_model_tells_the_verdict(tmp_path: Path, capsys) -> None:
    small = ["--learner.hidden", "8", "8", "--learner.critics", "3", "--imagination.starts", "32"]
    small += ["--model.hidden", "16", "--model.min-epochs", "1", "--model.max-epochs", "2"]
    small += ["--imagination.every", "10", "--imagination.diagnose", "10", "--log-every", "5"]
    out = tmp_path / "run"
    options = ["--steps", "20", "--final-episodes", "2", "--eval-every", "0", "--out", str(out)]
    options += ["--holdout", "0.5"]
    assert main(["run", "ravl", "pendulum/medium", *small, *options]) == 0
    capsys.readouterr()
    assert main(["model", "inspect", str(out), "--steps", "3"]) == 0
    text = capsys.readouterr().out
    result = history.verdict(out)
    assert result is not None and result.sentence in text
    inspected = json.loads((out / "inspect.json").read_text())
    assert inspected["rows"] == 5000 and inspected["data_seen_by_fit"]  # of 10,000


SMALL = ["--hidden", "8", "--members", "2", "--elites", "2", "--min-epochs", "1"]


def test_rows_to_measure_on_are_those_of_the_fit_by_content_and_names(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another path they are the fit's own; with other names, sizes or steps they are refused,
    and so are rows that have changed."""
    monkeypatch.chdir(tmp_path)
    whole = random_dataset("Pendulum-v1", 400)
    rows = whole.transitions
    end = rows.ends
    rows = replace(rows, terminated=end, truncated=torch.zeros_like(end), next_known=~end)
    dataset = replace(whole, transitions=rows, spec=replace(whole.spec, obs_names=("x", "y", "w")))
    save_npz(dataset, "log.npz")
    fit = ["model", "fit", "log.npz", "--out", "m", "--test-share", "0.5", "--max-epochs", "1"]
    assert main([*fit, *SMALL]) == 0

    def inspect(*options: str) -> tuple[int, str]:
        result = main(["model", "inspect", "m", "--steps", "250", *options])
        said = capsys.readouterr()
        return result, " ".join((said.out + said.err).split())

    shutil.copy("log.npz", "copy.npz")
    for options in ((), ("--data", "copy.npz")):
        assert "m on rows the fit never saw (199 rows)" in inspect(*options)[1]
    save_npz(replace(dataset, spec=replace(dataset.spec, obs_names=("y", "x", "w"))), "named.npz")
    assert "world model and data differ in obs_names" in inspect("--data", "named.npz")[1]
    timed = dataset.with_transitions(replace(rows, duration=1.0 + torch.arange(400.0) % 2))
    save_npz(timed, "timed.npz")
    assert "the steps of test/Pendulum-v1 differ in length" in inspect("--data", "timed.npz")[1]
    assert main(["model", "fit", "timed.npz", "--out", "other", *SMALL]) == 2
    assert "the steps of test/Pendulum-v1 differ in length" in " ".join(
        capsys.readouterr().err.split()
    )
    save_npz(dataset.with_transitions(replace(rows, reward=-rows.reward)), "log.npz")
    code, text = inspect()
    assert code == 2 and "log.npz has changed since the fit in m" in text
    assert "on other data than those of the fit (398 rows)" in inspect("--data", "log.npz")[1]
