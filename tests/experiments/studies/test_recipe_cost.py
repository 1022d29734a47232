"""What recipes cost: every one runs on a batch that is made for it, and the costly are named."""

from pathlib import Path

from experiments.studies import recipe_cost, settings_of
from mbrl.policy_gradient import RECIPES


def test_all_recipes_are_timed_in_one_run(tmp_path: Path) -> None:
    small = {"sequences": 16, "steps": 12, "group": 4, "turn": 4, "rounds": 1}
    result = recipe_cost.measure(settings_of("recipe_cost", small), 0, tmp_path)
    assert result.curves.keys() == RECIPES.keys()
    assert all(len(times) == 2 and min(times) >= 0 for times in result.curves.values())
    times = [sum(t) / sum(result.curves["grpo"]) for t in result.curves.values()]
    assert abs(max(times) - result.values["largest"]) < 0.2 * result.values["largest"]
    record = {"values": result.values, "curves": result.curves}
    grpo = sum(result.curves["grpo"]) / 1000 / result.values["step_s"]
    assert abs(100 * grpo - result.values["share"]) < 0.2 * result.values["share"]
    files = recipe_cost.draw({"all recipes": [record, record]}, tmp_path, "")
    assert files[0].stat().st_size > 5000
