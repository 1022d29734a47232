"""What is at fault, by hand-made records whose answer is plain."""

from typing import Any

import pytest

from experiments.tables import budget_conclusions as conclusions
from experiments.tables import plan
from experiments.tables.budget_conclusions import Dataset
from experiments.tables.summary import Summary, collect


def record(scores: list[float], why: str | None = None) -> dict[str, Any]:
    steps = [1000 * (k + 1) for k in range(len(scores))]
    known = {"reference_returns": [0.0, 100.0], "steps": steps, "means": scores}
    if why is None:
        return known
    return known | {"until_flat": {"why": why, "checks": []}, "processor_seconds": 7.0}


FLAT, RISES = [50.0] * 6, [10.0, 10.0, 10.0, 30.0, 30.0, 55.0]


@pytest.mark.parametrize(
    ("ends", "last", "bound", "wanted"),
    [
        (("flat", "flat"), 91.0, FLAT, "nothing"),
        (("flat", "flat"), 40.0, FLAT, "method"),
        (("flat", "updates"), 40.0, FLAT, "budget"),
        (("time", "time"), 40.0, RISES, "budget"),
        (("flat", "flat"), 41.0, FLAT, "data"),
        (("flat", "flat"), 80.0, FLAT, "data"),
        (("flat", "flat"), 50.0, RISES, "open"),
        (("flat", "flat"), 50.0, None, "open"),
    ],
)
def test_verdicts(ends, last, bound, wanted):
    bounds = {} if bound is None else {"true dynamics": [record(bound)]}
    methods = {"worse": [record([5.0], "flat")], "iql": [record([last], why) for why in ends]}
    known = Dataset(methods, bounds)
    assert known.best() == "iql"
    assert conclusions.verdict(known) == wanted


def test_a_learner_that_never_solves_the_task_bounds_nothing():
    known = Dataset({"bc": [record([38.0], "flat")]}, {"true": [record([24.0] * 6)]})
    assert conclusions.verdict(known) == "data"
    known.able = False
    assert conclusions.verdict(known) == "open"


def test_the_higher_of_two_bounds_counts():
    known = Dataset({"bc": [record([20.0], "flat")]}, {})
    known.bounds = {"narrow": [record([25.0])], "wide": [record([90.0]), record([70.0])]}
    assert known.bound() == "wide" and conclusions.reach(known.bounds["wide"]) == 80.0
    assert conclusions.verdict(known) == "method"


def test_a_bound_is_what_was_reached_not_what_was_left():
    known = Dataset({"bc": [record([20.0], "flat")]}, {"true": [record([90.0, 10.0])]})
    assert conclusions.score(known.bounds["true"]) == 10.0
    assert conclusions.verdict(known) == "method"


def test_a_run_rises_by_its_last_six_evaluations():
    assert conclusions.rising(record(RISES)) and not conclusions.rising(record(FLAT))
    assert not conclusions.rising(record([0.0, 100.0]))  # too few to say


def test_sentences_of_a_table(tmp_path):
    (tmp_path / "t.toml").write_text(
        """
seeds = [0, 1]
steps = 50
holdout = 0.2
until_flat = { every = 10, minutes = 1.5 }
conclusions = ["budgets"]
algorithms = ["bc", "iql"]
datasets = ["pendulum/expert", "pendulum/medium"]

[[blocks]]
title = "True dynamics"
datasets = ["pendulum/expert"]
columns = [{ label = "true", algorithm = "mbpo", config = { imagination = { truth = 1.0 } } }]
steps = 20
holdout = 0.0
until_flat = {}
"""
    )
    table = plan.load(str(tmp_path / "t.toml"))
    first, second = (next(table.cells(block)).key for block in table.blocks)
    assert first["until_flat"] == {"every": 10, "patience": 5, "minutes": 1.5}
    assert first["holdout"] == 0.2 and not {"holdout", "until_flat"} & second.keys()
    summary: Summary = collect(table, tmp_path, {}, {})
    blocks = summary.blocks
    blocks[0].entries["pendulum/expert", "bc"].records += [
        record([1.0, 42.0], "flat"), record([2.0, 44.0], "updates"),
    ]  # fmt: skip
    blocks[1].entries["pendulum/expert@20", "true"].records.append(record([60.0]))
    assert not any(own.able for own in conclusions.by_dataset(summary).values())
    assert conclusions.budgets(summary) == [
        "pendulum/expert: at fault budget; best bc 43.0, true dynamics 60.0 at their "
        "highest and 60.0 at the end. bc 43.0 (2000 updates, flat; 2000 updates, updates; 7 s). "
        "Not run: iql."
    ]
    for own, earned in zip(
        blocks[0].entries["pendulum/expert", "bc"].records, (40, 60), strict=True
    ):
        own["selection"] = {"chosen": 1000, "return_mean": float(earned)}
    kept = "2000 updates, updates; 50.0 at the highest value; 7 s)"
    assert kept in conclusions.budgets(summary)[0]
    blocks[0].entries["pendulum/medium", "bc"].records.append(record([10.0], "flat"))  # not kept
    means = "at the highest value against the end: bc 50.0 against 43.0 (1 datasets)."
    assert conclusions.budgets(summary)[-1] == means
