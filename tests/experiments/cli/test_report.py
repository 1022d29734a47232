"""The verb `report`: pages, figures and their data from run folders."""

import base64
import csv
import json
import shutil
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.reports import run_report
from experiments.runs import history
from experiments.runs.folders import DIVERGED
from mbrl.records import Evaluations, MetricsFile


def test_a_report_tells_scores_danger_and_settings(runs: list[Path]) -> None:
    assert main(["report", str(runs[0]), str(runs[2])]) == 0
    page = (runs[0] / "report.html").read_text()
    returns = Evaluations.load(runs[0] / "evaluations.npz").returns[-1]
    assert f"return {returns.mean():.1f}" in page
    result = history.verdict(runs[0])
    assert result is not None and result.sentence.replace("'", "&#x27;") in page
    assert "config.learner.critics" in page and "packages.torch" in page
    for name in ("report-scores", "report-losses", "report-reach"):
        for file in (runs[0] / f"{name}.png", runs[0] / f"{name}.csv"):  # the page is one file
            assert base64.b64encode(file.read_bytes()).decode() in page
    assert "Reach and values" not in (runs[2] / "report.html").read_text()


def test_a_report_counts_steps_of_a_task_and_says_why_a_run_diverged(
    runs: list[Path], tmp_path: Path
) -> None:
    assert run_report.unit_of(runs[0]) == "updates"
    folder = tmp_path / "run"
    shutil.copytree(runs[2], folder)
    (folder / DIVERGED).write_text('{"seconds": 1.0, "reason": "critic/loss is nan"}')
    content = json.loads((folder / "config.json").read_text())
    content["run"]["data"] = "Pendulum-v1"
    (folder / "config.json").write_text(json.dumps(content))
    facts = run_report._summary(folder)
    assert facts["steps"] == 40 and facts["state"] == "diverged: critic/loss is nan"
    assert "at step 40" in facts["last evaluation"]


def test_the_figures_data_are_those_of_the_run(runs: list[Path]) -> None:
    main(["report", str(runs[0])])
    with (runs[0] / "report-reach.csv").open() as file:
        drawn = [row for row in csv.DictReader(file) if row["name"] == "earned in the model"]
    logged = MetricsFile(runs[0] / "metrics.csv").rows()
    expected = {float(r["value/at"]): float(r["value/monte_carlo"]) for r in logged}
    assert {float(r["x"]): float(r["mean"]) for r in drawn} == pytest.approx(expected, rel=1e-5)
    assert sorted(expected) == [0, 10, 20, 30]
