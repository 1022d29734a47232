"""The estimated cost of missing cells."""

import json
from pathlib import Path

from experiments.tables import cost, plan


def test_the_cost_is_told_from_recorded_cells(tmp_path: Path) -> None:
    """Two recorded cells of BC took 2 and 4 s for 1,000 updates: 5,000 take 15 s."""
    for seed, seconds in ((0, 2.0), (1, 4.0)):
        key = {"algorithm": "bc", "steps": 1000, "seed": seed}
        (tmp_path / f"{seed}.json").write_text(json.dumps({"key": key, "seconds": seconds}))
    cells = [
        plan.Cell(
            plan.Row("r"), plan.Column(name), 0, {"algorithm": name, "steps": 5000}, Path("x")
        )
        for name in ("bc", "bc", "iql")
    ]
    text = cost.sentence(cells, tmp_path, 2)
    assert "3 cells to do" in text and "about 15 s each" in text and "1 are of a kind" in text
    # those of an unknown kind are taken to cost as much as the others: 3 x 15 s / 2, 1,000 times
    assert "about 15 s each and 6.2 h in all" in cost.sentence(1000 * cells, tmp_path, 2)
    assert cost.sentence(cells[2:], tmp_path, 2).startswith("1 cells to do; 1 are")
