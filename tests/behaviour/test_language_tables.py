"""The tables of language models: cells begin with a shared warm start, and conclusions and figures
say what the records hold."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.tasks import TASKS
from experiments import studies
from experiments.reports import papers
from experiments.runs import folders, jobs, launchers, pool, study
from experiments.studies import (
    language_recipes,
    language_schedulers,
    language_tasks,
    language_training,
    staleness,
)
from experiments.tables import plan, table
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES
from mbrl.records import MetricsFile
from tests.experiments.tables.test_language_conclusions import records

SMALL: dict[str, Any] = {
    "task": "guessing",
    "model": {"transformer": {"width": 16, "layers": 1, "heads": 2, "hidden": 16}},
    "config": {"prompts": 2, "group": 2},
    "steps": 2,
    "problems": 3,
    "samples": 1,
}


TABLES = (
    "language-tasks", "language-recipes", "language-large", "staleness", "language-schedulers",
)  # fmt: skip


def settings(study: str, **changes: Any) -> dict[str, Any]:
    return studies.settings_of(study, SMALL | changes)


def test_cells_share_a_warm_start_that_is_done_first(quick_starts: None, tmp_path: Path) -> None:
    home, cells = tmp_path / "home", [tmp_path / "grpo", tmp_path / "rloo"]
    for folder in cells:
        study.create("language_recipes", settings("language_recipes"), 0, folder, home)
    other = tmp_path / "other"
    study.create("language_recipes", settings("language_recipes"), 1, other, home)
    starts = [jobs.job_in(folder).needs() for folder in (*cells, other)]
    assert starts[0] == starts[1] != starts[2] and len(list((home / "starts").iterdir())) == 2
    (start,) = starts[0]
    assert start.is_relative_to(home)
    jobs.resume(start, quiet=True)
    jobs.resume(cells[0], quiet=True)
    assert not (cells[0] / "starts").exists()
    begun = folders.read_json(cells[0] / "run" / "config.json")["language"]["start"]
    assert begun == str(start)


def test_what_a_cell_measures_is_what_its_run_wrote(quick_starts: None, tmp_path: Path) -> None:
    chosen = settings("language_recipes", steps=3, looks=1)
    results = language_training.measure(chosen, 0, tmp_path)
    rows = MetricsFile(tmp_path / "run" / "metrics.csv").rows()
    assert len(rows) == 3
    signal = [float(row["rollout/mixed_groups"]) for row in rows]
    assert results.values["signal"] == pytest.approx(sum(signal) / 3)
    assert results.values["samples"] == 3 * 2 * 2 and results.values["steps"] == 3
    result = folders.read_json(tmp_path / "run" / "result.json")
    solved = [s["accuracy"] for s in result["levels"] if s["level"] in TASKS["guessing"].trained]
    others = [s["accuracy"] for s in result["levels"] if s["level"] not in (8, 16, 64)]
    assert len(solved) == 3 and len(others) == 2
    assert results.values["score_other"] == pytest.approx(100 * sum(others) / 2, abs=1e-3)
    gain = results.values["score"] - results.values["before"]
    assert results.values["gain"] == pytest.approx(gain, abs=1e-3)
    assert results.curves["step"] == [0.0, 3.0]
    again = language_training.measure(chosen, 0, tmp_path)  # of the finished run
    assert again.values == results.values


def test_a_run_that_diverges_has_no_accuracy(
    quick_starts: None, tmp_path: Path, monkeypatch
) -> None:
    chosen = settings("language_recipes", steps=3)
    jobs.resume(language_training.warm_start(chosen, 0, tmp_path), quiet=True)
    monkeypatch.setattr("mbrl.callbacks.LIMIT", 1e-9)  # of any metric
    result = language_training.measure(chosen, 0, tmp_path)
    assert result.values["steps"] < 3 and np.isfinite(result.values["before"])
    assert all(np.isnan(result.values[name]) for name in ("score", "gain", "score_other"))
    again = language_training.measure(chosen, 0, tmp_path)
    assert str(again.values) == str(result.values)


def test_demonstrations_go_on_where_the_warm_start_stopped(
    quick_starts: None, tmp_path: Path
) -> None:
    chosen = settings("language_tasks", learner="imitation", steps=2, config={}, looks=0)
    result = language_tasks.measure(chosen, 0, tmp_path)
    (start,) = (tmp_path / "starts").iterdir()
    before, after = (checkpoint.load(f / "checkpoint.pt") for f in (start, tmp_path / "run"))
    assert after["state"]["updates"] == before["state"]["updates"] + 2
    assert after["state"]["drawn"] == before["state"]["drawn"] + 2 * 64
    assert after["seed"] == before["seed"]  # so that the problems are those that come next
    assert result.values["samples"] == 128 and result.values["tokens"] > 128


def test_a_run_ends_with_its_tokens(quick_starts: None, tmp_path: Path) -> None:
    chosen = settings("language_schedulers", tokens=400, config=SMALL["config"] | {"pool": 8})
    chosen["steps"] = 1000
    result = language_schedulers.measure(chosen, 0, tmp_path)
    sampled = [
        float(row["tokens/sampled"]) for row in MetricsFile(tmp_path / "run/metrics.csv").rows()
    ]
    assert sampled[-1] >= 400 > sampled[-2] and result.values["sampled"] == sampled[-1]
    known = checkpoint.load(tmp_path / "run" / "checkpoint.pt")
    assert result.values["tokens"] == known["state"]["tokens"]["trained"] > 0
    before = known["step"]
    (tmp_path / "run" / "result.json").unlink()
    language_schedulers.measure(chosen, 0, tmp_path)  # stopped before its result: does not go on
    assert checkpoint.load(tmp_path / "run" / "checkpoint.pt")["step"] == before


@pytest.mark.parametrize(
    "row",
    [
        *language_recipes.on_own_tasks(),
        *(r for r in language_recipes.on_common_tasks() if r["recipe"] in language_recipes.EXTRA),
        *language_schedulers.all_schedulers(),
        *language_schedulers.with_penalties(),
    ],
    ids=lambda row: str(row["label"]),
)
def test_rows_with_something_of_their_own_can_begin(row: dict[str, Any], tmp_path: Path) -> None:
    given = SMALL | {k: v for k, v in row.items() if k != "label"}
    if "expert" in given:
        given["config"] = given.get("config", {}) | {"expert": "made by the cell"}
    chosen = studies.settings_of("language_recipes", given | {"expert": 0})
    language_training._config(chosen, tmp_path, tmp_path)


def test_rows_of_schedulers_ask_for_no_more_than_a_round_has() -> None:
    for row in (*language_schedulers.all_schedulers(), *language_schedulers.with_penalties()):
        given = {"task": row["task"], "model": SMALL["model"], "recipe": "grpo"} | row["config"]
        LanguagePolicyGradient(config=configs.from_dict(LanguageConfig, given))


def test_remix_goes_through_both_of_its_stages() -> None:
    rows = [r for r in language_recipes.on_common_tasks() if r["recipe"] == "remix"]
    assert len(rows) == 2
    assert all(0 < r["config"]["mixed_rounds"] < 0.7 * r["steps"] for r in rows)


def test_every_recipe_that_text_tasks_take_has_a_row() -> None:
    """By what the trainer refuses, which this test asks by itself."""

    def taken(recipe: str, task: str, **given: Any) -> bool:
        try:
            LanguageConfig(task=task, recipe=recipe, **given)
        except ConfigError:
            return False
        return True

    able = {n for n in RECIPES for task in TASKS if taken(n, task)} | {"calibrl", "reinforce_ada"}
    common, own = language_recipes.on_common_tasks(), language_recipes.on_own_tasks()
    assert {row["recipe"] for row in (*common, *own)} == able
    both = {task: {r["recipe"] for r in common if r["task"] == task} for task in ("brackets",)}
    assert all(taken(n, "brackets") for n in both["brackets"] - {"calibrl", "reinforce_ada"})
    for row in (*common, *own):
        reconstructed = RECIPES[row["recipe"]].mark == "reconstructed"
        assert row["label"].endswith("(reconstructed)") == reconstructed


def test_longer_runs_are_those_of_short_ones_but_for_their_rounds() -> None:
    own = {row["label"]: row for row in language_recipes.on_own_tasks()}
    longer = language_recipes.on_own_tasks_for_longer()
    assert {row["task"] for row in longer} == set(language_recipes.SHORT)
    for row in longer:
        short = own[row["label"].replace(" at ten times", "")]
        assert row == short | {"label": row["label"], "steps": 400}
    assert len(longer) == sum(row["task"] in language_recipes.SHORT for row in own.values())


def test_every_scheduler_that_acts_in_training_has_a_row() -> None:
    rows = [*language_schedulers.all_schedulers(), *language_schedulers.with_penalties()]
    named = {row["label"].split(", ")[1].removesuffix(" (reconstructed)") for row in rows}
    elsewhere = {"pets_allocation", "pets_allocation_online", "v0"}
    assert named == set(papers.all_schedulers()) - elsewhere
    assert all(row["config"]["pool"] == 100 for row in rows)


def test_ages_are_whole_rounds() -> None:
    rows = staleness.ages()
    assert len(rows) == 28
    for row in rows:
        LanguageConfig(recipe=row["recipe"], **row["config"])


@pytest.mark.parametrize("name", TABLES)
def test_tables_state_a_budget_and_one_model(name: str) -> None:
    known = plan.load(name)
    cells = table.all_cells(known)
    assert all(cell.row.seconds for cell in cells)
    assert {cell.seed for cell in cells} == {0, 1, 2}
    assert len({str(cell.key["settings"]["model"]) for cell in cells}) == 1


def test_rows_of_another_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown list of rows of language_recipes 'every'"):
        studies.rows_of("language_recipes", "every")


@pytest.mark.long
def test_figures_hold_the_records(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    values = [{n: float(draw.uniform()) for n in (*staleness.SHOWN, "signal")} for _ in range(3)]
    rows = {row["label"]: records({}, values) for row in staleness.ages()}
    (file,) = staleness.draw(rows, tmp_path, "")
    lines = list(csv.DictReader(file.with_suffix(".csv").open()))
    assert len(lines) == 3 * 28 and file.stat().st_size > 10_000
    mean = sum(v["score"] for v in values) / 3
    assert float(lines[0]["mean"]) == pytest.approx(mean, rel=1e-4)
    rows = {row["label"]: records({}, values) for row in language_schedulers.all_schedulers()}
    assert language_schedulers.draw(rows, tmp_path, "-2")[0].name == "schedulers-2.png"
    rows = {row["label"]: records({}, values) for row in language_recipes.on_common_tasks()}
    names = [f.name for f in language_recipes.draw(rows, tmp_path, "")]
    assert names == ["scores-all-tasks.png", "scores-brackets.png", "scores-grid_world.png"]
    # One run of one row diverged, and all of another's.
    lost = [v | {"score": np.nan} for v in values]
    kept = ("grpo", "ppo", "rloo", "dapo")
    rows = {label: runs for label, runs in rows.items() if label.split(", ")[1] in kept}
    rows["brackets, grpo"] = records({}, [*values[:2], lost[2]])
    rows["grid_world, ppo"] = records({}, lost)
    language_recipes.draw(rows, tmp_path, "-3")
    drawn = {
        file.name: {line["name"]: line for line in csv.DictReader(file.open())}
        for file in tmp_path.glob("scores-*-3.csv")
    }
    at = float(drawn["scores-brackets-3.csv"]["grpo"]["estimate"])
    assert at == pytest.approx(sum(v["score"] for v in values[:2]) / 2, rel=1e-4)
    assert "ppo" not in drawn["scores-grid_world-3.csv"] | drawn["scores-all-tasks-3.csv"]
    assert "grpo" in drawn["scores-all-tasks-3.csv"]
    rows = {"grid_world, uniform": records({}, values), "grid_world, mpts": records({}, lost)}
    language_schedulers.draw(rows, tmp_path, "-3")
    written = (tmp_path / "schedulers-3.csv").read_text()
    assert "uniform" in written and "mpts" not in written


def test_a_small_table_is_run_and_written(
    quick_starts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        """
title = "Small"
study = "language_tasks"
metrics = ["before", "gain"]
seeds = [0]
cell_seconds = 60
conclusions = ["warm_starts", "rewards"]
[settings]
problems = 3
samples = 1
looks = 1
model = { transformer = { width = 16, layers = 1, heads = 2, hidden = 16 } }
[[rows]]
label = "guessing, GRPO"
task = "guessing"
steps = 2
config = { prompts = 2, group = 2 }
[[rows]]
label = "guessing, demonstrations"
task = "guessing"
steps = 2
learner = "imitation"
"""
    )
    known, home = plan.load(str(file)), tmp_path / "records"
    monkeypatch.setattr(pool, "PAUSE", 0.01)
    folder = tmp_path / "runs"
    described = table.describe_all(known, table.all_cells(known), {}, folder)
    for job in jobs.in_order(described):
        jobs.resume(job, quiet=True)
    table.finish(known, home, folder, launchers.Local(1), table.all_cells(known))
    table.show(known, home, Console(quiet=True))
    assert "chain" not in (home / "table.md").read_text()
    assert "guessing: a cell of GRPO took" in (home / "table.md").read_text()
    assert {f.name for f in home.glob("*.png")} == {"trained.png", "other.png", "gains.png"}
