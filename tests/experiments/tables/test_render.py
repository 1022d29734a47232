"""The printed forms of a table: numbers, comparisons, missing cells."""

import csv
import io
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.tables import plan, render, summary, table
from tests.experiments.tables.small_table import SMALL, written_records


def test_numbers_of_the_page_are_those_of_the_records(small, tmp_path: Path) -> None:
    written_records(small, tmp_path)
    result = summary.collect(small, tmp_path, {"pendulum/expert": "x"}, {})
    entry = result.blocks[0].entries["pendulum/expert", "bc"]
    assert entry.last == [20.0, 22.0] and entry.best == [60.0, 62.0]
    assert entry.selected == [50.0, 52.0]
    # Student's t with one degree of freedom: 21 +- 12.706 * 1.
    assert entry.interval.low == pytest.approx(21 - 12.706, abs=0.2)
    page = render.markdown(result)
    assert "| pendulum/expert | 21.0 ± 1.4 | 21.0 ± 1.4 |" in page
    assert "**Twice**" in page and "| pendulum/expert@40 | 21.0 ± 1.4 |" in page
    assert "| mean, best | 61.0 |" in page and "| mean, chosen offline | 51.0 |" in page
    rows = list(csv.DictReader(io.StringIO(render.comma_separated(result))))
    assert len(rows) == 3 and rows[0]["mean"] == "21" and rows[0]["seeds"] == "0 1"
    assert rows[2]["steps"] == "40" and float(rows[0]["sd"]) == pytest.approx(np.sqrt(2), 1e-5)
    assert "\\toprule" in render.latex(result) and "21.0 $\\pm$ 1.4" in render.latex(result)


def test_columns_are_compared_with_the_reference(tmp_path: Path) -> None:
    """Against scipy's Welch test, for one dataset."""
    text = SMALL.split("[[blocks]]")[0].replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    (tmp_path / "two.toml").write_text(text + 'reference = "bc"\n')
    two = plan.load(str(tmp_path / "two.toml"))
    written_records(two, tmp_path)
    for file in (tmp_path / "bc-wide").rglob("*.json"):
        record = json.loads(file.read_text())
        record["means"][-1] += 1.0 + record["key"]["seed"] ** 2
        file.write_text(json.dumps(record))
    result = summary.collect(two, tmp_path, {}, {})
    block = result.blocks[0]
    a, b = (block.entries["pendulum/expert", n].last for n in ("bc wide", "bc"))
    output = render.comparisons(block, result)["bc wide"]
    wanted = stats.ttest_ind(a, b, equal_var=False)
    assert output["p (Holm)"] == f"{wanted.pvalue:.3f}"
    low, high = wanted.confidence_interval(0.95)
    mean = np.mean(a) - np.mean(b)
    assert output["mean less that of bc [95 %]"] == f"{mean:.1f} [{low:.1f}, {high:.1f}]"
    assert "| p (Holm) |  | " in render.markdown(result)


def test_unfinished_and_absent_cells_say_so(tmp_path: Path) -> None:
    text = SMALL.replace(
        'datasets = ["pendulum/expert"]', 'datasets = ["d4rl/hopper-medium-v2"]', 1
    )
    (tmp_path / "far.toml").write_text(text)
    far = plan.load(str(tmp_path / "far.toml"))
    fingerprints, missing = table.fingerprints(table.all_cells(far))
    assert set(fingerprints) == {"pendulum/expert"}
    page = render.markdown(summary.collect(far, tmp_path, fingerprints, missing))
    assert "| d4rl/hopper-medium-v2 | no data | no data |" in page
    assert "data fetch" in page and "| pendulum/expert@40 | not run |" in page


def test_the_caption_names_the_episodes_of_the_last_evaluation(tmp_path: Path) -> None:
    for line, starts in (
        ("", "100 fixed starts"),
        ("final_episodes = 1000\n", "1,000 fixed starts"),
    ):
        (tmp_path / "small.toml").write_text(
            SMALL.replace("steps = 20\n", f"steps = 20\n{line}", 1)
        )
        loaded = plan.load(str(tmp_path / "small.toml"))
        assert starts in render.markdown(summary.collect(loaded, tmp_path, {}, {}))


def test_seeds_without_a_number_are_left_out_of_every_form(small, tmp_path: Path) -> None:
    text = SMALL.split("[[blocks]]")[0].replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    (tmp_path / "three.toml").write_text(text)
    three = plan.load(str(tmp_path / "three.toml"))
    written_records(three, tmp_path)
    for name, seeds in (("bc", "1"), ("bc-wide", "012")):
        for seed in seeds:
            file = next((tmp_path / name).rglob(f"{seed}.json"))
            record = json.loads(file.read_text())
            record["means"][-1] = float("nan")
            file.write_text(json.dumps(record))
    result = summary.collect(three, tmp_path, {"pendulum/expert": "x"}, {})
    first, second = csv.DictReader(io.StringIO(render.comma_separated(result)))
    assert (first["mean"], float(first["sd"])) == ("22", pytest.approx(2 * 2**0.5, 1e-5))
    assert float(first["low"]) < 22 < float(first["high"])
    assert second["mean"] == second["sd"] == second["low"] == ""
    assert "22.0 ± 2.8 (2 of 3) | none" in render.markdown(result)


def test_equal_numbers_have_no_deviation() -> None:
    """Whose mean is rounded, so that each seems to lie off it."""
    equal, apart = np.array([0.09467] * 3), np.array([1.0, 2.0, 4.0])
    assert equal.std(ddof=1) > 0 and render.deviation(equal) == 0.0
    assert render.deviation(apart) == pytest.approx(statistics.stdev(apart))


def _with_returns(small: plan.Plan, home: Path, labels: set[str]) -> summary.Summary:
    """The small table where the data of the rows `labels` have no reference returns."""
    written_records(small, home)
    for file in home.rglob("*.json"):
        record = json.loads(file.read_text())
        if "selection" in record and file.parent.name in labels:
            record["reference_returns"] = None
            file.write_text(json.dumps(record))
    return summary.collect(small, home, {}, {})


def test_returns_enter_no_mean_over_datasets(tmp_path: Path) -> None:
    text = SMALL.split("[[blocks]]")[0].replace(
        'datasets = ["pendulum/expert"]', 'datasets = ["pendulum/expert", "pendulum/medium"]'
    )
    (tmp_path / "two.toml").write_text(text)
    two = plan.load(str(tmp_path / "two.toml"))
    scores = _with_returns(two, tmp_path / "scores", set())
    assert scores.blocks[0].unit == "normalised score" and "| mean, last | 21" in (
        render.markdown(scores)
    )
    assert "have no scores" not in render.markdown(scores)
    for labels in ({"pendulum-medium"}, {"pendulum-medium", "pendulum-expert"}):
        result = _with_returns(two, tmp_path / f"{len(labels)}", labels)
        assert "return" in result.blocks[0].unit
        page = render.markdown(result)
        assert "mean, last" not in page and "their numbers are returns" in page


def test_values_of_other_discounts_are_said_not_to_compare(tmp_path: Path) -> None:
    """Of data without a task, whose numbers are values that fitted Q evaluation gave."""
    for gamma in ("0.99", "0.9"):
        text = SMALL.split("[[blocks]]")[0].replace(
            "config = { hidden = [16] }", f"config = {{ gamma = {gamma} }}"
        )
        (tmp_path / "two.toml").write_text(text)
        two, home = plan.load(str(tmp_path / "two.toml")), tmp_path / gamma
        written_records(two, home)
        for file in home.rglob("*.json"):
            record = json.loads(file.read_text()) | {"steps": [], "means": []}
            file.write_text(json.dumps(record))
        page = render.markdown(summary.collect(two, home, {}, {}))
        assert "their numbers are the values" in page
        assert ("Those of other discounts (0.9, 0.99) do not compare" in page) == (gamma == "0.9")
