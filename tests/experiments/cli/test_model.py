"""The verb `model`: what `inspect` says of a run."""

import json
from pathlib import Path

from experiments.__main__ import main
from experiments.runs import history


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
