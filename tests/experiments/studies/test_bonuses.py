"""The study of exploration bonuses: rounds until a level, a small cell, the figure."""

from pathlib import Path

from algorithms.control.bonuses import BonusConfig
from experiments.studies import bonuses


def test_the_first_round_at_a_level() -> None:
    assert bonuses.first_at([1, 2, 3], [0, 60, 40], 50.0) == 2
    assert bonuses.first_at([1, 2, 3], [0, 40, 40], 50.0) == 3


def test_a_cell_and_its_figure(tmp_path: Path) -> None:
    settings = bonuses.DEFAULTS | {
        "size": 3,
        "contexts": 2,
        "rounds": 2,
        "episodes": 5,
        "bonus": {"kind": "product"},
    }
    outcome = bonuses.measure(settings, 0, tmp_path / "cell")
    assert outcome.values["spread"] == 0.0  # all mazes are one
    assert 0 <= outcome.values["success"] <= 100
    apart = bonuses.measure(settings | {"common": 0.0}, 0, tmp_path / "other")
    assert apart.values["spread"] > 0
    record = {"values": outcome.values}
    rows = {f"1.0, {kind}, counts of positions": [record, record] for kind in bonuses.COUNTED}
    (file,) = bonuses.draw(rows, tmp_path, "-2")
    assert file.exists() and file.name == "bonuses-2.png"
    assert bonuses.draw({"1.0, none, counts of positions": []}, tmp_path, "") == []


def test_every_share_has_the_same_rows() -> None:
    blocks = [rows() for name, rows in bonuses.ROWS.items() if name.startswith("common")]
    assert {len(rows) for rows in blocks} == {11}
    names = [[row["label"].partition(", ")[2] for row in rows] for rows in blocks]
    assert all(n == names[0] for n in names)


def test_every_row_has_a_bonus_that_there_is() -> None:
    rows = [row for rows in bonuses.ROWS.values() for row in rows()]
    for row in rows:
        BonusConfig(**row.get("bonus", {}))
    never = bonuses.ROWS["never again"]()
    assert len(never) == 2 * (8 + 4) and {row["show_context"] for row in never} == {False}
    assert len({row["label"] for row in never}) == len(never)
