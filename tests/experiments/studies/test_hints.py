"""The study of hints: a small cell with its mechanism number, the rows, the figure."""

import math
from pathlib import Path

from algorithms.language.settings import LanguageConfig
from experiments.studies import hints
from mbrl.policy_gradient import RECIPES

SMALL = {
    "model": {"transformer": {"width": 16, "layers": 1, "heads": 2, "hidden": 16}},
    "until": 1e-9,  # the first look ends the warm start
    "tokens": 200,
    "problems": 2,
    "samples": 1,
}


def test_a_cell_says_what_the_mechanism_did(tmp_path: Path, quick_starts: None) -> None:
    for name in ("policy_rollout", "grpo"):
        config = {"prompts": 2, "group": 2, "levels": [2]}
        settings = hints.DEFAULTS | SMALL | {"task": "chain", "recipe": name, "config": config}
        settings["shown"] = {"hinted": 0.5, "levels": [2], "rows": 2}
        values = hints.measure(settings, 0, tmp_path / name).values
        assert values["sampled"] >= 200 and values["before"] >= 0
        assert math.isnan(values["acts"]) == (name == "grpo")


def test_rows_are_of_recipes_that_the_tasks_take() -> None:
    for task, rows in hints.ROWS.items():
        for row in rows():
            expert = {"expert": "made by the cell"} if "expert" in row else {}
            levels = tuple(row["config"]["levels"])
            LanguageConfig(task=task, recipe=row["recipe"], levels=levels, **expert)
            assert ("(reconstructed)" in row["label"]) == (
                RECIPES[row["recipe"]].mark == "reconstructed"
            )
            assert row["shown"] == {"hinted": 0.5, "levels": row["config"]["levels"]}
        assert rows()[0]["recipe"] == "grpo"


def test_the_figure_has_a_panel_for_each_task(tmp_path: Path) -> None:
    records = [{"values": {"gain": x}} for x in (1.0, 2.0, 4.0)]
    rows = {"chain, grpo": records, "chain, scope": records, "calculator, grpo": records}
    (file,) = hints.draw(rows, tmp_path, "-1")
    assert file.exists() and file.name == "gains-1.png"
    assert hints.draw({"chain, grpo": records[:1]}, tmp_path, "") == []
