"""Intervals on the pages, and scores of the guide, are those that their tables print."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "results").glob("*.md")]
# Printed by a command that the page names: `table classic --check 54`, and `--check 30`.
ELSEWHERE = {"speed": {"2.2 [-1.9, 6.2]", "0.2 [-1.7, 2.0]"}}
Triple = tuple[float, float, float]  # an estimate, and the ends of its interval


def page_of(table: str) -> str:
    file = ROOT / "experiments" / "records" / table / "table.md"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def number(text: str) -> float:
    return float(text.replace(",", ""))


@cache
def printed(table: str) -> tuple[Triple, ...]:
    """The intervals on the page of a table."""
    triples = (tuple(map(number, m.groups())) for m in INTERVAL.finditer(page_of(table)))
    return tuple((a, b, c) for a, b, c in triples)


def rounds_to(found: re.Match[str], known: Triple) -> bool:
    """Whether an interval rounds to the one that a page has: as it stands or turned round ("below"
    for a negative difference), plain or a hundred times as large (per cent)."""
    wanted = [(number(t), 0.51 * 10.0 ** -len(t.partition(".")[2])) for t in found.groups()]
    estimate, low, high = known
    return any(
        all(abs(factor * k - w) <= near for k, (w, near) in zip(turned, wanted, strict=True))
        for turned in ((estimate, low, high), (-estimate, -high, -low))
        for factor in (1, 100)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_intervals_are_printed_by_the_tables_of_their_page(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = text.replace("\n", " ")
    tables = sorted(set(re.findall(r"records/([a-z0-9-]+)/table", text)))
    known = [triple for table in tables for triple in printed(table)]
    unknown = {
        found.group(0)
        for found in INTERVAL.finditer(text)
        if not any(rounds_to(found, triple) for triple in known)
    }
    assert unknown == ELSEWHERE.get(page.stem, set()), f"no table of {page.name} prints them"


def test_scores_of_the_guide_are_those_of_the_tables() -> None:
    text = (ROOT / "docs" / "which_algorithm.md").read_text(encoding="utf-8")
    cells = re.findall(r"\| `([a-z-]+)`, ([^|]*:[^|]*) \|", text)
    assert len(cells) >= 5
    for table, cell in cells:
        known = {f"{number(n):.1f}" for n in re.findall(NUMBER, page_of(table))}
        missing = set(re.findall(r"-?\d+\.\d", cell)) - known
        assert not missing, f"{table} does not print {missing}: {cell}"
