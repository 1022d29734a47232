"""Sentences under tables of runs, by hand-made records whose answer is plain."""

from experiments.tables import conclusions
from experiments.tables.plan import Block, Column, Plan, Row
from experiments.tables.summary import BlockSummary, Entry, Summary


def test_scores_at_two_precisions_are_compared_seed_by_seed() -> None:
    column = Column("bc", "bc")
    rows = [Row("a", "a"), Row("a@medium", "a", matmul_precision="medium"), Row("b", "b")]
    entries = [
        Entry([0, 1, 2], last=[10.0, 20.0, 30.0], seconds=[4.0, 4.0, 4.0]),
        Entry([1, 2, 0], last=[21.0, 32.0, 13.0], seconds=[2.0, 1.0, 2.0]),
        Entry([0], last=[0.0], seconds=[1.0]),
    ]
    blocks = [
        BlockSummary(Block("", (row,), (column,), (0, 1, 2)), {(row.label, "bc"): entry})
        for row, entry in zip(rows, entries, strict=True)
    ]
    plan = Plan("t", "t", tuple(b.block for b in blocks), conclusions=("precisions",))
    one, every = conclusions.lines(Summary(plan, tuple(blocks)))
    # 3, 1 and 2 more: Student's 4.303 times 1 / sqrt(3) around 2.
    assert one == "bc, a: medium less highest 2.0 [-0.5, 4.5] (3 seeds), 2.00 times as fast."
    assert every == "All 3 pairs: 2.0 [-0.5, 4.5]; a difference of 2.5 would have shown."
