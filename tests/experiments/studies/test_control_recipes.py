"""The table of recipes in control: it has all that a run can have, and says which differ."""

import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pytest

from algorithms import PolicyGradientConfig
from experiments import studies
from experiments.studies import control_recipes
from experiments.tables import conclusions, plan
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES


def accepted(name: str) -> bool:
    try:
        PolicyGradientConfig(recipe=name)
    except ConfigError:
        return False
    return "signals.value" not in RECIPES[name].needs or name == "ppo"


def test_the_table_has_every_recipe_that_needs_no_learned_part() -> None:
    rows = tomllib.loads((plan.TABLES / "control-recipes.toml").read_text())["blocks"]
    wanted = {name for name in RECIPES if accepted(name)}
    assert {row["recipe"] for row in rows[0]["rows"]} == wanted
    for_discrete = {"sum_prob_squared", "signals.entropy_history"}
    discrete = {n for n in wanted if for_discrete & set(RECIPES[n].needs)}
    assert {row["recipe"] for row in rows[1]["rows"]} == wanted - discrete


def test_a_cell_trains_and_draws(tmp_path: Path) -> None:
    small = {"steps": 40, "episodes": 3, "config": {"envs": 4, "hidden": [8]}}
    settings = studies.settings_of("control_recipes", small | {"recipe": "rloo"})
    result = control_recipes.measure(settings, 0, tmp_path)
    assert result.values["best"] >= result.values["score"]
    assert len(result.curves["step"]) == len(result.curves["score"]) == 10
    again = control_recipes.measure(settings, 0, tmp_path)  # finds its finished run
    assert again.values == result.values
    records = [{"values": result.values}, {"values": {"score": 1.0}}]
    files = control_recipes.draw({"cart-pole, rloo": records}, tmp_path, "")
    assert [f.name for f in files] == ["scores.png"] and files[0].stat().st_size > 1000
    assert "rloo" in (tmp_path / "scores.csv").read_text()
    both = {"cart-pole, ppo": records, "pendulum, ppo": records}
    control_recipes.draw(both, tmp_path, "-2")
    written = (tmp_path / "scores-2.csv").read_text()
    assert "cart-pole, ppo" in written and "pendulum, ppo" in written


def test_stable_baselines3_learns_at_the_same_settings(tmp_path: Path) -> None:
    chosen = {"algorithm": "stable_baselines3", "task": "CartPole-v1", "steps": 1000}
    settings = studies.settings_of("control_recipes", chosen | {"episodes": 20})
    result = control_recipes.measure(settings, 0, tmp_path)
    assert 30 < result.values["return"] <= 500 and result.curves == {}  # a random policy: 22
    assert result.values["score"] == tasks.make("CartPole-v1").spec.score(result.values["return"])


def test_a_run_that_diverges_has_no_score(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("mbrl.callbacks.LIMIT", 1e-9)  # of any metric
    small = {"steps": 40, "episodes": 3, "config": {"envs": 4, "hidden": [8]}}
    settings = studies.settings_of("control_recipes", small | {"recipe": "rloo"})
    result = control_recipes.measure(settings, 0, tmp_path)
    assert np.isnan([result.values["score"], result.values["return"]]).all()
    assert len(result.curves["score"]) < 10  # it ended on the way
    rows = {"a, rloo": [{"values": result.values}], "a, ppo": [{"values": {"score": 1.0}}]}
    control_recipes.draw(rows, tmp_path, "")
    written = (tmp_path / "scores.csv").read_text()
    assert "ppo" in written and "rloo" not in written
    assert control_recipes.draw({"a, rloo": rows["a, rloo"]}, tmp_path, "-2") == []


def test_rows_above_and_below_the_references_are_named() -> None:
    draw = np.random.default_rng(0)
    around = {"grpo": 50, "ppo": 90, "good": 90, "same": 50, "bad": 10}
    rows = [plan.Row(f"task, {name}") for name in around]
    values = {
        f"task, {name}": [{"values": {"score": at + x}} for x in draw.normal(0, 1, 5)]
        for name, at in around.items()
    }
    rows.append(plan.Row("task, lost"))
    values["task, lost"] = [{"values": {"score": x}} for x in (np.nan, 50.0, np.nan)]

    @dataclasses.dataclass
    class Entry:
        records: list

    class Block:
        block = plan.Block("Task", tuple(rows), (plan.Column("score"),), (0,), "control_recipes")

        def entry(self, row: plan.Row, column: plan.Column) -> Entry:
            return Entry(values[row.label])

    class Found:
        blocks = [Block()]  # noqa: RUF012
        plan = None

    lines = conclusions.beaten(Found())  # type: ignore[arg-type]
    assert lines.pop(0) == "task, lost: 2 of 3 runs diverged."
    assert [line.split(" by ")[0] for line in lines] == [
        "task, above grpo", "task, below grpo", "task, above ppo", "task, below ppo",
    ]  # fmt: skip
    stand = [line.split("correction: ")[1] for line in lines]
    assert set(stand[0].rstrip(".").split(", ")) == {"good", "ppo"}
    assert stand[1] == "bad." and stand[2] == "none."
    assert set(stand[3].rstrip(".").split(", ")) == {"bad", "grpo", "same"}
    assert "1 of 4 (0.1 by chance alone): bad -" in lines[1]


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_the_tasks_have_references_for_scores(task: str) -> None:
    from mbrl.tasks import make

    assert make(task).spec.reference_returns is not None


def test_a_later_formula_of_a_recipe_has_cells_of_its_own() -> None:
    assert plan.objective_version({"recipe": "grpo"}) == plan.objective_version({}) == {}
    assert plan.objective_version({"recipe": "mc_grpo"}) == {"objective_version": 2}
    for settings in ({}, {"config": {}}, {"config": {"scheduler": "uniform"}}):
        assert plan.scheduler_version(settings) == {}
    assert plan.scheduler_version({"config": {"scheduler": "drive"}}) == {"scheduler_version": 2}
