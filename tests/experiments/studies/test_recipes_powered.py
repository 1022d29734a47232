"""The study of recipes with rates of their own: its rows and figure."""

import re
from pathlib import Path

from algorithms.language.settings import LanguageConfig
from experiments.settings import merge
from experiments.studies import recipes_powered
from experiments.tables import records
from mbrl import config as configs
from mbrl.policy_gradient import RECIPES


def test_every_recipe_has_every_rate() -> None:
    rows = recipes_powered.rates()
    assert len(rows) == 29 == len({row["label"] for row in rows})
    assert rows[-1]["config"]["learning_rate"] == recipes_powered.DROPPED[1]
    for row in rows[:-1]:
        config = configs.from_dict(LanguageConfig, merge({"recipe": row["recipe"]}, row["config"]))
        assert config.minibatches == 8 and config.learning_rate in recipes_powered.RATES


def test_recipes_are_compared_at_the_best_of_their_rates() -> None:
    rows = recipes_powered.comparison()
    assert [row["recipe"] for row in rows] == list(recipes_powered.CHOSEN)
    for row in rows:
        assert row["config"] == {
            "prompts": 16, "minibatches": 8, "learning_rate": recipes_powered.CHOSEN_RATE
        }  # fmt: skip
    assert recipes_powered.CHOSEN_RATE in recipes_powered.RATES[1:-1]  # tried on both sides


def test_the_figure(tmp_path: Path) -> None:
    records = [{"values": {"gain": x}} for x in (1.0, 2.0)]
    (file,) = recipes_powered.draw({"grpo, 1e-04": records, "dapo, 1e-04": records}, tmp_path, "")
    assert file.exists() and file.name == "gains.png"
    assert recipes_powered.draw({"grpo, 1e-04": records}, tmp_path, "") == []


def test_the_grid_world_has_gigpo_too() -> None:
    rows = recipes_powered.grid_rates()
    assert len(rows) == 24 + 7 == len({row["label"] for row in rows})
    for row in rows:
        given = merge({"recipe": row["recipe"], "task": row["task"]}, row["config"])
        config = configs.from_dict(LanguageConfig, given)
        assert config.task == "grid_world" and config.minibatches == 8 and row["steps"] == 200
    assert "gigpo" in {row["recipe"] for row in rows}


def test_each_is_compared_in_the_grid_world_at_the_best_of_its_recorded_rates() -> None:
    table = (records.RECORDS / "recipes-powered" / "table.md").read_text()
    found = re.findall(r"^\| (\w+) in the grid world, (\S+) \| ([\d.]+) ", table, re.MULTILINE)
    scores = {(name, float(rate)): float(score) for name, rate, score in found}
    rows = recipes_powered.grid_comparison()
    assert [row["recipe"] for row in rows] == list(recipes_powered.GRID_CHOSEN)
    for row in rows:
        rates = {rate: score for (name, rate), score in scores.items() if name == row["recipe"]}
        best = max(rates, key=lambda rate: rates[rate])
        assert row["config"]["learning_rate"] == best and row["steps"] == 200
        assert min(rates) < best < max(rates)  # tried on both sides


def test_further_recipes_run_on_brackets_for_400_rounds() -> None:
    rows = recipes_powered.further_rates()
    assert len(rows) == 3 * 9 == len({row["label"] for row in rows})
    for row in rows:
        given = merge({"recipe": row["recipe"], "task": "brackets"}, row["config"])
        assert configs.from_dict(LanguageConfig, given).minibatches == 8 and row["steps"] == 400
    names = {row["recipe"] for row in rows}
    assert names & set(recipes_powered.GRID_CHOSEN) == {recipes_powered.GRPO}
    assert not any(RECIPES[name].mark == "reconstructed" for name in names)
