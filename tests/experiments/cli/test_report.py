"""`report`, `plot` and what `model inspect` says of a run: pages, figures and their data from run
folders."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.runs import history
from experiments.runs.training import TrainingRun
from mbrl.errors import CheckpointError
from mbrl.records import Evaluations, MetricsFile


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short RAVL runs that differ in their seed, and one of BC."""
    home = tmp_path_factory.mktemp("runs")
    small = ["--learner.hidden", "8", "8", "--learner.critics", "3", "--imagination.starts", "32"]
    small += [
        "--imagination.truth",
        "1",
        "--imagination.every",
        "10",
        "--imagination.diagnose",
        "10",
    ]
    common = ["--steps", "40", "--log-every", "5", "--final-episodes", "2", "--eval-episodes", "2"]
    for seed in ("0", "1"):
        out = ["--out", str(home / f"ravl-{seed}"), "--seed", seed]
        assert main(["run", "ravl", "pendulum/medium", *common, *small, *out]) == 0
    assert main(["run", "bc", "pendulum/medium", *common, "--out", str(home / "bc")]) == 0
    return [home / "ravl-0", home / "ravl-1", home / "bc"]


def test_a_report_tells_scores_danger_and_settings(runs: list[Path]) -> None:
    assert main(["report", str(runs[0]), str(runs[2])]) == 0
    page = (runs[0] / "report.html").read_text()
    returns = Evaluations.load(runs[0] / "evaluations.npz").returns[-1]
    assert f"return {returns.mean():.1f}" in page
    result = history.verdict(runs[0])
    assert result is not None and result.sentence.replace("'", "&#x27;") in page
    assert "config.learner.critics" in page and "packages.torch" in page
    for name in ("report-scores", "report-losses", "report-reach"):
        assert f'src="{name}.png"' in page
        assert (runs[0] / f"{name}.png").exists() and (runs[0] / f"{name}.csv").exists()
    assert "Reach and values" not in (runs[2] / "report.html").read_text()


def test_the_figures_data_are_those_of_the_run(runs: list[Path]) -> None:
    main(["report", str(runs[0])])
    with (runs[0] / "report-reach.csv").open() as file:
        drawn = [row for row in csv.DictReader(file) if row["name"] == "earned in the model"]
    logged = MetricsFile(runs[0] / "metrics.csv").rows()
    expected = {float(r["value/at"]): float(r["value/monte_carlo"]) for r in logged}
    assert {float(r["x"]): float(r["mean"]) for r in drawn} == pytest.approx(expected, rel=1e-5)
    assert sorted(expected) == [0, 10, 20, 30]


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
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["report"]) == 2
    with pytest.raises(CheckpointError, match="holds no run"):
        TrainingRun(tmp_path).read()


def test_inspecting_a_runs_model_tells_the_verdict(tmp_path: Path, capsys) -> None:
    small = ["--learner.hidden", "8", "8", "--learner.critics", "3", "--imagination.starts", "32"]
    small += ["--model.hidden", "16", "--model.min-epochs", "1", "--model.max-epochs", "2"]
    small += ["--imagination.every", "10", "--imagination.diagnose", "10", "--log-every", "5"]
    out = tmp_path / "run"
    options = ["--steps", "20", "--final-episodes", "2", "--eval-every", "0", "--out", str(out)]
    assert main(["run", "ravl", "pendulum/medium", *small, *options]) == 0
    capsys.readouterr()
    assert main(["model", "inspect", str(out), "--steps", "3"]) == 0
    text = capsys.readouterr().out
    result = history.verdict(out)
    assert result is not None and result.sentence in text
    assert json.loads((out / "inspect.json").read_text())["rows"] > 0
