"""Tables from their file to their pages: cells are run once and can be repeated exactly."""

import csv
import dataclasses
import io
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from algorithms.evaluation import halted
from experiments.runs import jobs, launchers
from experiments.tables import plan, records, render, summary, table, table_figures
from mbrl.errors import ConfigError, DivergenceError
from tests.experiments.tables.small_table import SMALL, Here, finish


def test_cells_are_done_once_and_a_deleted_one_alone_again(small, tmp_path: Path) -> None:
    finish(small, tmp_path)
    records_at, cells = tmp_path / "records", table.all_cells(small)
    files = sorted((tmp_path / "records").rglob("*.json"))
    assert len(files) == 6 and all(f.stat().st_size < 8_000 for f in files)
    for record in (json.loads(f.read_text()) for f in files):
        assert np.mean(record["last_returns"]) == pytest.approx(record["means"][-1], rel=1e-5)
        assert len(set(record["means"])) > 1  # so that it could not be another's
    before = {f: f.stat().st_mtime_ns for f in files}
    finish(small, tmp_path)
    assert {f: f.stat().st_mtime_ns for f in files} == before
    lost, known = files[0], json.loads(files[0].read_text())
    lost.unlink()
    shutil.rmtree(tmp_path / "runs")
    finish(small, tmp_path)
    assert records.agree(known, json.loads(lost.read_text()))
    assert {f for f in files if f.stat().st_mtime_ns != before[f]} == {lost}
    assert table.check(small, records_at, cells, 1, Here(), Console(quiet=True)) == 0
    # Older than a setting, and rounded: still the same numbers.
    record = json.loads(lost.read_text())
    del record["key"]["config"]["batch_size"]
    record["last_returns"] = [float(f"{r:.4g}") for r in record["last_returns"]]
    lost.write_text(json.dumps(record))
    assert table.check(small, records_at, cells, 1, Here(), Console(quiet=True)) == 0
    low, high = record["reference_returns"]
    two = [f for f in files if f.parent == lost.parent]
    for changed, more in zip(two, (1.0, 2.0), strict=True):
        record = json.loads(changed.read_text())
        record["means"][-1] += more * (high - low) / 100.0
        record["processor"] = "Another One"
        changed.write_text(json.dumps(record))
    for other in set(files) - set(two):
        other.unlink()
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    assert table.check(small, records_at, cells, 2, Here(), console) == 1
    assert printed.getvalue().count("DIFFERENT (recorded on Another One, repeated on") == 2
    # 1.5 less on average, with Student's 12.7 for two cells that differ by 1 around it
    assert re.search(r"recorded: -1\.5\d \[-7\.\d+, 4\.\d+\] over 2 cells", printed.getvalue())
    assert "differ by 1.6 (root mean square); two seeds of them" in printed.getvalue()


def test_data_that_changed_are_marked_and_done_again_when_strict(small, tmp_path: Path) -> None:
    finish(small, tmp_path)
    file = sorted((tmp_path / "records").rglob("*.json"))[0]
    record = json.loads(file.read_text())
    right = record["fingerprint"]
    file.write_text(json.dumps(record | {"fingerprint": "other"}))
    fingerprints, _ = table.fingerprints(table.all_cells(small))
    result = summary.collect(small, tmp_path / "records", fingerprints, {})
    assert "another checksum" in render.markdown(result)
    finish(small, tmp_path)
    assert json.loads(file.read_text())["fingerprint"] == "other"
    finish(small, tmp_path, strict=True)
    assert json.loads(file.read_text())["fingerprint"] == right


def test_runs_of_a_column_are_scored_by_sampled_actions_where_it_says_so(tmp_path: Path) -> None:
    file, column = tmp_path / "t.toml", 'label = "bc wide"'
    file.write_text(SMALL.replace(column, column + ", eval_stochastic = true"))
    finish(plan.load(str(file)), tmp_path)
    runs = [json.loads(f.read_text())["run"] for f in (tmp_path / "runs").rglob("config.json")]
    sampled = sorted(run["eval_stochastic"] for run in runs)
    assert sampled == [False] * 4 + [True] * 2


def test_part_of_a_table_can_be_chosen(small) -> None:
    chosen = table.choose(small, 1, ["bc wide"])
    assert [(c.column.label, c.seed, c.row.label) for c in chosen] == [
        ("bc wide", 0, "pendulum/expert")
    ]
    assert len(table.choose(small, None, [])) == 6
    with pytest.raises(ConfigError, match="did you mean 'bc wide'"):
        table.choose(small, None, ["bc wid"])


def test_rows_can_be_chosen_by_label_and_by_pattern(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(
        'study = "fqe_ranking"\nmetrics = ["regret"]\nseeds = [0]\n'
        '[[blocks]]\ntitle = "One"\nsettings = { algorithms = ["bc", "td3_bc"] }\nrows = [\n'
        '    { label = "expert [1]", data = "pendulum/expert" },\n'
        '    { label = "random", data = "pendulum/random" },\n]\n'
    )

    def of(*rows: str) -> list[str]:
        return [c.row.label for c in table.choose(plan.load(str(file)), None, (), (), rows)]

    assert of() == of("*") == ["expert [1]", "random"]
    assert of("expert [1]") == of("exp*") == ["expert [1]"]
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        of("randon")


def test_a_table_of_a_study(tmp_path: Path, monkeypatch) -> None:
    """Two tiny trainings through the whole study: ranks, regret, records and the figure."""
    text = (
        'study = "fqe_ranking"\nmetrics = ["rank_correlation", "regret"]\nseeds = [0]\n'
        '[[rows]]\nlabel = "expert"\ndata = "pendulum/expert"\nalgorithms = ["bc", "td3_bc"]\n'
        "steps = 20\nepisodes = 2\nupdates = 20\n"
    )
    (tmp_path / "ranks.toml").write_text(text)
    ranks = plan.load(str(tmp_path / "ranks.toml"))
    finish(ranks, tmp_path)
    (file,) = (tmp_path / "records").rglob("*.json")
    record = json.loads(file.read_text())
    curves = record["curves"]
    assert len(curves["score"]) == len(curves["fqe_value"]) == 10
    wanted = stats.spearmanr(curves["fqe_value"], curves["score"]).statistic
    assert record["values"]["rank_correlation"] == pytest.approx(wanted, abs=1e-3)
    chosen = int(np.argmax(curves["fqe_value"]))
    regret = max(curves["score"]) - curves["score"][chosen]
    assert record["values"]["regret"] == pytest.approx(regret, abs=0.01)
    result = summary.collect(ranks, tmp_path / "records", {}, {})
    assert "| expert | " in render.markdown(result)
    (figure,) = table_figures.draw(result, tmp_path)
    assert len(list(csv.reader(figure.with_suffix(".csv").open()))) == 11


DIVERGING = """
seeds = [0, 1]
steps = 100
datasets = ["pendulum/expert"]
algorithms = ["bc"]

[[columns]]
label = "wild"
algorithm = "td3_bc"
config = { learning_rate = 1e9, hidden = [8] }
"""


class Failing(Here):
    """Jobs that may fail."""

    def start(self, folder: Path) -> str:
        try:
            jobs.resume(folder, quiet=True)
        except DivergenceError as problem:
            return str(problem)
        return ""

    def poll(self, handle: str) -> launchers.Exit:
        return launchers.Exit(int(bool(handle)), False, handle)


def test_a_run_that_diverges_is_recorded_as_such(tmp_path: Path) -> None:
    """It is not begun again, has no score, and is left out of its column's means."""
    (tmp_path / "wild.toml").write_text(DIVERGING)
    wild, home = plan.load(str(tmp_path / "wild.toml")), tmp_path / "records"
    cells = table.all_cells(wild)
    for _ in range(2):
        assert table.finish(wild, home, tmp_path / "runs", Failing(), cells) == 0
    first, second = sorted((home / "wild").rglob("*.json"))
    record = json.loads(first.read_text())
    assert "critic/loss is" in record["diverged"] and math.isnan(records.last_score(record))
    assert (
        record["seconds"] > 0
        and record["fingerprint"] == table.fingerprints(cells)[0]["pendulum/expert"]
    )
    page = render.markdown(summary.collect(wild, home, {}, {}))
    assert "| diverged |" in page and "wild on pendulum/expert, seeds 0, 1: training" in page

    known = json.loads(next((home / "bc").rglob("1.json")).read_text())
    second.write_text(json.dumps(known | {"key": json.loads(second.read_text())["key"]}))
    result = summary.collect(wild, home, {}, {})
    score = records.last_score(known)
    assert f"| {score:.1f} (1; 1 diverged) |" in render.markdown(result)
    assert "| mean, last | " in (page := render.markdown(result)) and f" | {score:.1f} |\n" in page
    assert table_figures.draw(result, tmp_path)

    console = Console(quiet=True)
    assert table.check(wild, home, [c for c in cells if c.seed == 0], 2, Failing(), console) == 0


def test_a_metric_that_is_not_measured_is_told_by_the_first_cell(tmp_path: Path) -> None:
    text = 'study = "solver_orders"\nmetrics = ["ordr"]\nseeds = [0, 1]\nrows = [{ label = "one" }]'
    (tmp_path / "orders.toml").write_text(text)
    orders, home = plan.load(str(tmp_path / "orders.toml")), tmp_path / "records"
    with pytest.raises(ConfigError, match="metric of the study 'ordr': did you mean 'order'"):
        finish(orders, tmp_path)
    assert len(list(home.rglob("*.json"))) == 1  # whose numbers are kept
    (tmp_path / "orders.toml").write_text(text.replace("ordr", "order"))
    orders = plan.load(str(tmp_path / "orders.toml"))
    finish(orders, tmp_path)
    table.show(orders, home, Console(quiet=True))  # a label without a comma has a figure, too
    assert "| one | " in (home / "table.md").read_text() and list(home.glob("*.png"))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("d4rl-like/hopper-medium", "collect d4rl-like --tiers hopper-medium"),
        ("pendulum/medium", "collect pendulum --tiers medium"),
        ("d4rl/hopper-medium-v2", "data fetch d4rl/hopper-medium-v2"),
        ("adroit/door-human", "data fetch adroit/door-human"),
    ],
)
def test_a_missing_dataset_names_the_command_that_gets_it(name: str, command: str) -> None:
    assert table.getting(name) == f"python -m experiments {command}"


FLAT = """
algorithms = ["bc"]
datasets = ["pendulum/medium-replay"]
seeds = [0, 1]
steps = 60
holdout = 0.1
until_flat = { every = 15, patience = 1 }

[[blocks]]
title = "To the end"
datasets = ["pendulum/medium-replay"]
steps = 30
holdout = 0.0
until_flat = {}
"""


def test_cells_that_end_by_the_offline_criterion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"members": 2, "elites": 2, "hidden": (16,), "max_epochs": 5, "reward_updates": 20}
    monkeypatch.setattr(halted, "MODEL", dataclasses.replace(halted.MODEL, **small))
    (tmp_path / "flat.toml").write_text(FLAT)
    chosen = plan.load(str(tmp_path / "flat.toml"))
    finish(chosen, tmp_path)
    home, cells = tmp_path / "records", table.all_cells(chosen)
    known = [json.loads((home / cell.path).read_text()) for cell in cells]
    assert all((home / cell.path).stat().st_size < 8_000 for cell in cells)
    for record in known[:2]:
        ended = record["until_flat"]
        assert ended["why"] in ("flat", "updates") and record["processor_seconds"] > 0
        assert record["steps"][-1] == ended["checks"][-1][0] <= 60
    assert all("until_flat" not in record | record["key"] for record in known[2:])
    assert table.check(chosen, home, cells[:1], 1, Here(), Console(quiet=True)) == 0
    results = summary.collect(chosen, home, *table.fingerprints(cells))
    shown = [entry for block in results.blocks for entry in block.entries.values()]
    assert shown and not any(entry.changed for entry in shown)  # the part learned from is known
    assert table_figures.draw(results, tmp_path)  # also where seeds end at different updates
