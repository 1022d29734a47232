"""The picture of the README is that of the records, and its text says what it shows."""

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

from experiments.reports import front_picture

ROOT = Path(__file__).parents[3]


def test_the_committed_picture_is_that_of_the_records() -> None:
    assert front_picture.FILE.read_text() == front_picture.picture(), (
        "run `python -m experiments.reports.front_picture`"
    )


def test_the_text_of_the_readme_says_what_the_picture_shows() -> None:
    alt = front_picture.description(front_picture.counts())
    assert f"![{alt}](docs/front.svg)" in (ROOT / "README.md").read_text()


def test_counts_are_those_of_the_table() -> None:
    found = front_picture.counts()
    with open(ROOT / "experiments/records/verdicts/table.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mean"]]

    def total(column: str) -> float:
        return sum(float(row["mean"]) for row in rows if row["column"] == column)

    said = found.table["said better"]
    assert found.policies == total("policies")
    assert sum(said.values()) == total("better")
    assert said["worse"] == total("wrong_better")
    assert said["too close to say"] == total("open_better")
    assert sum(found.table["cannot tell"].values()) == total("cannot_tell")


def test_bars_are_as_long_as_their_counts() -> None:
    name = "{http://www.w3.org/2000/svg}rect"
    bars = [r for r in ET.fromstring(front_picture.picture()).iter(name) if r.get("height") == "40"]
    table = front_picture.counts().table
    wanted = [n for row in table.values() for n in row.values() if n]
    widths = [float(bar.get("width", 0)) for bar in bars]
    scale = front_picture.BAR / max(sum(row.values()) for row in table.values())
    assert [round(w / scale) for w in widths] == wanted
