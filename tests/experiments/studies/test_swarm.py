"""The study of policies that share answers: a small cell that goes on after a stop, the figure."""

from pathlib import Path

import pytest

from experiments.studies import swarm

SMALL = {
    "task": "addition",
    "config": {"prompts": 2, "group": 2, "minibatches": 1, "levels": [1]},
    "until": [1e-9, 1e-9],
    "steps": 3,
    "problems": 2,
    "samples": 1,
}


@pytest.mark.long
def test_a_cell_goes_on_where_it_was(
    tmp_path: Path, quick_starts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "WIDTHS", (8, 16))
    monkeypatch.setattr(swarm, "EVERY", 2)
    settings = swarm.DEFAULTS | SMALL | {"external": 1}
    first = swarm.measure(settings, 0, tmp_path)
    assert first.values["gain_0"] + first.values["gain_1"] == pytest.approx(
        2 * first.values["gain"], abs=1e-3
    )
    assert first.values["cumulative"] == pytest.approx(sum(first.curves["reward"]), abs=1e-3)
    assert 0 <= first.values["heard"] <= 1
    assert {path.name for path in tmp_path.glob("*.pt")} == {"2-0.pt", "2-1.pt"}
    again = swarm.measure(settings, 0, tmp_path)  # from the second round on
    assert again == first


def test_rows_and_figure(tmp_path: Path) -> None:
    assert [row["external"] for row in swarm.shares()] == [0, 2, 4, 6]
    records = [{"curves": {"reward": [0.1 * k + x for k in range(40)]}} for x in (0.0, 0.5)]
    (file,) = swarm.draw({"8 own, 0 of others": records}, tmp_path, "-1")
    assert file.exists() and file.name == "swarm-1.png"
