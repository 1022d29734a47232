"""Intervals on the pages are those that their tables print."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "results").glob("*.md")]


@cache
def printed(table: str) -> tuple[float, ...]:
    """All numbers on the page of a table."""
    file = ROOT / "experiments" / "records" / table / "table.md"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return tuple(float(n.replace(",", "")) for n in re.findall(NUMBER, text))


def known(number: str, values: tuple[float, ...]) -> bool:
    """Whether a value rounds to `number`, as it stands or turned round ("below" for a negative
    difference), plain or a hundred times as large (per cent)."""
    digits = len(number.partition(".")[2])
    wanted, near = float(number.replace(",", "")), 0.51 * 10.0**-digits
    return any(
        abs(sign * factor * value - wanted) <= near
        for value in values
        for sign in (1, -1)
        for factor in (1, 100)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_intervals_are_printed_by_the_tables_of_their_page(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = text.replace("\n", " ")
    tables = set(re.findall(r"records/([a-z0-9-]+)/table", text))
    values = tuple(value for table in sorted(tables) for value in printed(table))
    unknown = [
        found.group(0)
        for found in INTERVAL.finditer(text)
        if not all(known(number, values) for number in found.groups())
    ]
    assert not unknown, f"{page.name}: no table of the page prints {unknown}"


def test_scores_of_the_guide_are_those_of_the_tables() -> None:
    text = (ROOT / "docs" / "which_algorithm.md").read_text(encoding="utf-8")
    cells = re.findall(r"\| `([a-z-]+)`, ([^|]*:[^|]*) \|", text)
    assert len(cells) >= 5
    for table, cell in cells:
        for number in re.findall(r"-?\d+\.\d", cell):
            here = any(f"{value:.1f}" == number for value in printed(table))
            assert here, f"{table} does not print {number}: {cell}"
