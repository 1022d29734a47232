"""Expressions over a log's columns: what is missing is neither true nor false."""

import unicodedata

import numpy as np
import pytest

from mbrl.data.logs.expression import evaluate
from mbrl.errors import DataError

NAN = np.nan
TABLE = {
    "died": np.array([NAN, NAN, 0.0, 1.0]),
    "flag": np.array([0, 1, 1, 0]),
    "dose": np.array([0.5, 1.0, 2.0, NAN]),
    "ward": np.array(["ICU", None, "ED", "ICU"], dtype=object),
}
FIRST, LAST = np.array([1, 0, 1, 0], bool), np.array([0, 1, 0, 1], bool)


def values(text: str) -> list[float]:
    return evaluate("terminated", text, TABLE, FIRST, LAST).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("last and died == 1", [0, 0, 0, 1]),
        ("died != 0", [0, 0, 0, 1]),  # a missing number is neither equal nor unequal
        ("last and fill(died, 0)", [0, 0, 0, 1]),
        ("last and (flag or died)", [0, 1, 0, 1]),  # decided by the other side
        ("not last and flag", [0, 0, 1, 0]),
        ("not (flag and last)", [1, 0, 1, 1]),
        ("flag or last", [0, 1, 1, 1]),
        ("where(not flag, 2, 3)", [2, 3, 3, 2]),
        ("0.5 < dose <= 2", [0, 1, 1, 0]),
        ("next(flag) == 1", [1, 0, 0, 0]),
        ("-10 * (last and died == 1)", [0, 0, 0, -10]),
        ("last and ward == 'ICU'", [0, 0, 0, 1]),
        ("ward != 'ICU'", [0, 0, 1, 0]),  # nor is missing text
        ("not (ward == 'ICU')", [0, 1, 1, 0]),
        ("min(dose, flag, 0.75) == 0.75", [0, 1, 1, 0]),
        ("max(flag, 0, dose - 1) == 1", [0, 1, 1, 0]),
        ("dose < 10**19", [1, 1, 1, 0]),
        ("dose * 10**-1 == 0.2", [0, 0, 1, 0]),
        ("flag + 2**64 > 2**63", [1, 1, 1, 1]),
        ("(flag == 1) + (dose > 0.5)", [0, 2, 2, 0]),  # a sum of truths, not an "or"
        ("-(flag == 1) - last", [0, -2, -1, -1]),
        ("last + last", [0, 2, 0, 2]),
        ("exp(flag == 1) == exp(1)", [0, 1, 1, 0]),
        ("last and (flag == 1) + (dose > 0.5) >= 2", [0, 1, 0, 0]),
    ],
)
def test_truth_with_missing_values(text: str, expected: list[float]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("last and died", r"1 row has no value .* fill\(column, 0\)"),
        ("not died", "2 rows have no value"),
        ("-10 * (last and died)", "1 row has no value"),
        ("where(died, -100, 0)", "2 rows have no value"),
        ("last and not (died and flag)", "1 row has no value"),
        ("last and dose", "0.5 stands where true or false is asked for"),
    ],
)
def test_what_is_missing_is_no_condition(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        values(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flag == 'true'", "the text 'true'; .* write 1 without quotes"),
        ("flag == '1'", "the text '1'; write a number, without quotes"),
        ("min(dose)", "min takes 2 or more values and has 1"),
        ("log(dose, 2)", "log takes 1 values and has 2"),
        ("abs(dose, flag)", "abs takes 1 values and has 2"),
        ("clip(dose, 0)", "clip takes 3 values and has 2"),
        ("clip(dose, 0, 1, flag)", "clip takes 3 values and has 4"),
        ("fill(dose)", "fill takes 2 values and has 1"),
    ],
)
def test_functions_take_as_many_values_as_they_use(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        values(text)


def test_text_is_compared_with_text() -> None:
    """'2.0' and '2' are one label, as in observations; a number is none."""
    table = {"outcome": np.array(["1", "2", "2.0", "unknown"], dtype=object)}
    notes: list[str] = []

    def known(text: str) -> list[float]:
        return evaluate("terminated", text, table, FIRST, LAST, notes).tolist()

    assert known("outcome == '2'") == [0, 1, 1, 0] == known("'2.0' == outcome")
    assert known("outcome != '2'") == [1, 0, 0, 1] and notes == []
    for text in ("outcome == 2", "2 != outcome", "last and outcome == 2.0"):
        with pytest.raises(DataError, match=r"text is compared with a number.* in quotes"):
            known(text)
    table["nothing"] = np.array([None] * 4, dtype=object)
    assert known("last and nothing == 'died'") == [0, 0, 0, 0] == known("nothing != 'died'")
    assert known("outcome == 'Unknown'") == [0, 0, 0, 0]
    assert notes == ["terminated: no cell has the text 'Unknown'; there are 1, 2, unknown"]


@pytest.mark.parametrize("name", ["\u00b5g", "sante\u0301", "\ufb01o"])
def test_names_that_python_reads_in_another_form(name: str) -> None:
    """A micro sign, an accent of its own, a ligature."""
    table = {name: np.array([1.0, 2.0, 3.0, 4.0])}
    assert evaluate("reward", f"-{name}", table, FIRST, LAST).tolist() == [-1, -2, -3, -4]
    table[unicodedata.normalize("NFKC", name)] = np.zeros(4)
    assert evaluate("reward", f"-`{name}`", table, FIRST, LAST).tolist() == [-1, -2, -3, -4]
    with pytest.raises(DataError, match="put backquotes around the name"):
        evaluate("reward", f"-{name}", table, FIRST, LAST)
