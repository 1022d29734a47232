"""Differences of rows, by hand-made records whose answer is plain."""

import dataclasses
import re
import tomllib

import pytest

from experiments.tables import plan, row_conclusions
from tests.experiments.tables.test_bandit_conclusions import record, summary


def test_differences_are_paired_by_seed() -> None:
    """60 and 80, so 70, and Student's t(1) 12.706 times the error of 10; the seed that the other
    lacks counts not, and a pair with one seed is left out."""
    rows = {
        "simple, minibatch 256": [record(1, score=90.0), record(0, score=80.0), record(2, score=0)],
        "shaped, minibatch 256": [record(0, score=20.0), record(1, score=10.0)],
        "simple, minibatch 1024": [record(0, score=1.0)],
        "shaped, minibatch 1024": [record(0, score=1.0), record(1, score=1.0)],
    }
    known = summary(rows, "score")
    named = dataclasses.replace(known, plan=dataclasses.replace(known.plan, name="simple-reward"))
    (line,) = row_conclusions.differences(named)
    assert line.startswith("simple, minibatch 256 less shaped, minibatch 256, 2 seeds: score ")
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d", line)]
    assert numbers == pytest.approx([70.0, 70 - 127.06, 70 + 127.06], rel=0.03)


@pytest.mark.parametrize("name", row_conclusions.COMPARED)
def test_every_compared_row_and_number_is_in_the_table(name: str) -> None:
    numbers, pairs = row_conclusions.COMPARED[name]
    table = plan.load(name)
    labels = {row.label for block in table.blocks for row in block.rows}
    assert {label for pair in pairs for label in pair} <= labels
    metrics = tomllib.loads((plan.TABLES / f"{name}.toml").read_text())["metrics"]
    assert set(numbers) <= set(metrics) and "differences" in table.conclusions


def test_a_row_alone_is_compared_with_its_number_before() -> None:
    """Gains of 10 and 20."""
    label = "rewards, one step, ascending"
    rows = {label: [record(s, solved=60.0 + 10 * s, solved_before=50.0) for s in (0, 1)]}
    known = summary(rows, "solved")
    plain = dataclasses.replace(known.plan, name="masked-diffusion")
    (line,) = row_conclusions.differences(dataclasses.replace(known, plan=plain))
    assert line.startswith(f"{label}, gained by training, 2 seeds: solved 15.0 [")


def test_numbers_of_a_row_are_paired_by_seed() -> None:
    """Learning progress 20 and 40 above uniform tasks, so 30; one seed alone says nothing."""
    names = plan.load("curricula").blocks[0].columns
    plain = dict.fromkeys((c.label for c in names), 50.0)
    rows = {
        "students of a corner": [
            record(seed, **plain | {"alp-gmm": 70.0 + 20 * seed}) for seed in (0, 1)
        ],
        "students of any cell": [record(0, **plain)],
    }
    known = summary(rows, "random")
    named = dataclasses.replace(known, plan=dataclasses.replace(known.plan, name="curricula"))
    (line,) = row_conclusions.within(named)
    assert line.startswith("students of a corner, 2 seeds: alp-gmm less random 30.0 [")
    assert "pool less alp-gmm -30.0 [" in line and "random expert less random 0.0 [" in line
