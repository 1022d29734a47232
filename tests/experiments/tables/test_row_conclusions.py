"""What a table compares, by hand-made records whose answer is plain."""

import dataclasses
import re
from typing import Any

import pytest
from scipy import stats

from experiments.tables import plan, row_conclusions
from experiments.tables.compared import Compared, column_pairs, comparisons
from experiments.tables.plan import Block, Column, Plan, Row
from experiments.tables.summary import BlockSummary, Entry, Summary
from mbrl.errors import ConfigError
from tests.experiments.tables.test_bandit_conclusions import record, summary


def comparing(known: Summary, *compared: Compared) -> list[str]:
    asked = dataclasses.replace(known.plan, compared=compared)
    return row_conclusions.differences(dataclasses.replace(known, plan=asked))


def numbers_of(line: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.\d+", line)]


def test_differences_are_paired_by_seed() -> None:
    """60 and 80, so 70, and Student's t(1) 12.706 times the error of 10; the seed that the other
    lacks counts not, and a pair with one seed is left out."""
    rows = {
        "a": [record(1, score=90.0), record(0, score=80.0), record(2, score=0)],
        "b": [record(0, score=20.0), record(1, score=10.0)],
        "c": [record(0, score=1.0)],
    }
    known = summary(rows, "score")
    (line,) = comparing(known, Compared(("a", "c", "unknown"), "b", ("score",), digits=2))
    assert line.startswith("a less b, 2 seeds: score 70.00 [")
    assert numbers_of(line) == pytest.approx([70.0, 70 - 127.06, 70 + 127.06], rel=0.03)


def test_a_row_alone_has_its_means_and_differences_of_its_own_numbers() -> None:
    """Gains of 10 and 20, and means of 60 and 70; one seed says nothing."""
    rows = {
        "a": [record(s, solved=60.0 + 10 * s, before=50.0) for s in (0, 1)],
        "b": [record(0, solved=1.0, before=1.0)],
    }
    known = summary(rows, "solved")
    asked = Compared(("a", "b"), None, (("solved", "before"), "solved"))
    (line,) = comparing(known, asked)
    assert line.startswith("a, 2 seeds: solved less before 15.0 [") and ", solved 65.0 [" in line


def test_the_mean_over_rows_that_match_is_compared() -> None:
    """By seed (10 + 20) / 2 and (30 + 20) / 2, so 20 with Student's 12.706 times 5; the pair that
    has one seed is left out of the mean."""
    rows = {
        "hot, a": [record(0, score=11.0), record(1, score=31.0)],
        "hot, b": [record(0, score=22.0), record(1, score=22.0)],
        "hot, c": [record(0, score=99.0)],
        "cold, a": [record(s, score=1.0) for s in (0, 1)],
        "cold, b": [record(s, score=2.0) for s in (0, 1)],
        "cold, c": [record(s, score=0.0) for s in (0, 1)],
    }
    values = {"rows": ["hot, *"], "than": "cold, *", "numbers": ["score"], "pooled": True}
    (asked,) = comparisons(values, list(rows), ["score"])
    (line,) = comparing(summary(rows, "score"), asked)
    assert line.startswith("Mean of 2 rows, hot, * less cold, *, 2 seeds: score 20.0 [")
    assert numbers_of(line) == pytest.approx([20.0, 20 - 63.5, 20 + 63.5], rel=0.03)


def test_a_point_of_a_curve_is_compared() -> None:
    """The third of eleven points."""
    curve = [float(x) for x in range(11)]
    rows = {
        name: [
            record(s, score=0.0) | {"curves": {"return": [by * x for x in curve]}} for s in (0, 1)
        ]
        for name, by in {"a": 3.0, "b": 1.0}.items()
    }
    (line,) = comparing(summary(rows, "score"), Compared(("a",), "b", ("return@0.2", "return@1")))
    assert numbers_of(line.replace("@0.2", "").replace("@1", "")) == [4.0] * 3 + [20.0] * 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('rows = ["swing-upp"]', "did you mean 'swing-up'"),
        ('rows = ["swing-up"]\nthan = "other"', "unknown row that is compared 'other'"),
        ('rows = ["swing-up"]\nnumbers = ["gap_sarr"]', "did you mean 'gap_sar'"),
        ('rows = ["swing-up"]\nnumbers = ["gap_sar@2"]', "unknown number that is compared"),
        ('rows = ["swing-up"]\nnumbers = [["gap_sar", "floor", "floor"]]', "or pairs of names"),
        (
            'rows = ["swing-up"]\nthan = "swing-up"\nnumbers = [["gap_sar", "floor"]]',
            "pairs are of one row",
        ),
        ('row = ["swing-up"]', "did you mean 'rows'"),
        ('than = "swing-up"', "lacks 'rows'"),
        ('rows = ["swing-up"]\npooled = true', "'swing-up' is one row; put \\*"),
        ('rows = ["*-upp"]', r"no row matches '\*-upp'; rows are "),
        ('rows = ["*ing*"]\nthan = "*-up"', "no star, or as many as '\\*ing\\*' has: 2"),
    ],
)
def test_comparisons_that_cannot_be_made_are_refused(text: str, words: str, tmp_path) -> None:
    whole = (plan.TABLES / "scale-wise.toml").read_text()
    file = tmp_path / "scale-wise.toml"
    file.write_text(whole[: whole.index("[[compared]]")] + f"[[compared]]\n{text}\n")
    with pytest.raises(ConfigError, match=words):
        plan.load(str(file))


def test_stars_of_a_row_are_put_into_the_other() -> None:
    labels = ["hot, a", "hot, b", "cold, a", "cold, c", "base"]

    def pairs(row: str, than: str | None) -> list[tuple[str, str | None]]:
        asked = {"rows": [row], "numbers": ["score"]} | ({} if than is None else {"than": than})
        made = list(comparisons(asked, labels, ["score"]))
        assert all(c.numbers == ("score",) and c.digits == 1 for c in made)
        return [(row, c.than) for c in made for row in c.rows]

    assert pairs("hot, *", "cold, *") == [("hot, a", "cold, a")]  # there is no "cold, b"
    assert pairs("*, a", "*, c") == [("cold, a", "cold, c")]
    assert pairs("*, *", "base") == [(label, "base") for label in labels[:4]]
    assert pairs("co*", None) == [("cold, a", None), ("cold, c", None)]
    assert pairs("hot, a", "base") == [("hot, a", "base")]


def of_runs(scores: dict[tuple[str, str], list[float]], unit: str = "score") -> Summary:
    """Two blocks of runs by (dataset, column), the second with the column `other` alone."""
    runs = {"score": {"reference_returns": [0.0, 1.0]}, "return": {"reference_returns": None}}
    rows = tuple(Row(data, data) for data in dict.fromkeys(data for data, _ in scores))
    blocks = []
    for labels in (("ours", "third"), ("other",)):
        columns = tuple(Column(label, "bc") for label in labels)
        entries = {
            (row.label, label): Entry(
                seeds=list(range(len(scores.get((row.data, label), [])))),
                last=scores.get((row.data, label), []),
                records=[{"steps": [1], "means": [1.0], "key": {}} | runs[unit]],
            )
            for row in rows
            for label in labels
        }
        blocks.append(BlockSummary(Block("", rows, columns, (0, 1, 2)), entries))
    pairs = (("ours", "other"), ("third", "other"))
    plan_of_both = Plan("t", "T", tuple(b.block for b in blocks), compared_columns=pairs)
    return Summary(plan_of_both, tuple(blocks))


def test_columns_are_compared_over_the_datasets_that_both_have() -> None:
    """On `a` 22 and 12 with variances of 2, so 10 with scipy's Welch interval; on `b` 0 with one of
    2 and none; `c` has one seed of ours and counts not. `third` has one seed everywhere."""
    scores = {
        ("a", "ours"): [21.0, 23.0], ("a", "other"): [11.0, 13.0], ("a", "third"): [0.0],
        ("b", "ours"): [4.0, 6.0], ("b", "other"): [5.0, 5.0, 5.0],
        ("c", "ours"): [99.0], ("c", "other"): [1.0, 2.0],
    }  # fmt: skip
    (line,) = row_conclusions.column_differences(of_runs(scores))
    welch = stats.ttest_ind(scores["a", "ours"], scores["a", "other"], equal_var=False)
    low, high = welch.confidence_interval(0.95)
    assert line.startswith("ours less other, at least 2 and 2 seeds: 5.0 [")
    assert " in the mean over 2 datasets; above on a 10.0 [" in line and "below" not in line
    assert numbers_of(line)[-3:] == pytest.approx([10.0, low, high], abs=0.05)


def test_runs_that_have_no_score_are_not_compared() -> None:
    scores = {("a", "ours"): [1.0, 2.0], ("a", "other"): [1.0, 2.0]}
    assert row_conclusions.column_differences(of_runs(scores, "return")) == []
    scores["a", "ours"] = [1.0, float("nan")]
    assert row_conclusions.column_differences(of_runs(scores)) == []


def test_runs_that_diverged_are_counted() -> None:
    scores = {("a", "ours"): [1.0, 2.0, float("nan")], ("a", "other"): [1.0, 2.0]}
    known = of_runs(scores)
    known.blocks[1].entries["a", "other"].diverged[2] = "critic loss"
    (line,) = row_conclusions.column_differences(known)
    assert line.endswith("; without 2 runs that have no score.")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"columns": ["bc"], "than": "icl"}, "iql"),
        ({"columns": ["bc", "iql"], "than": "iql"}, "leave it out"),
        ({"columns": ["bc"]}, "than"),
        ({"columns": [], "than": "iql"}, "columns"),
    ],
)
def test_columns_that_are_not_there_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(column_pairs(asked, ["bc", "iql"]))
