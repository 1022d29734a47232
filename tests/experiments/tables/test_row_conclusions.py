"""What a table compares, by hand-made records whose answer is plain."""

import dataclasses
import re

import pytest

from experiments.tables import plan, row_conclusions
from experiments.tables.compared import Compared, comparisons
from experiments.tables.summary import Summary
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
