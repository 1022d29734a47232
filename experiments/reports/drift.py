"""A comparison of new data with those of a run, as a person reads it."""

from rich.console import Console

from experiments.reports.grid import grid
from mbrl.data.drift import Drift


def print_drift(drift: Drift, console: Console) -> None:
    """Tables of columns, labels and actions, and the sentence."""
    left = f" ({drift.rows_left_out:,} left out)" if drift.rows_left_out else ""
    console.print(f"{drift.rows_now:,} new rows{left} against {drift.rows_before:,} of the run")
    table = grid("column", "statistic", "outside range", "mean before", "mean now", "drifted")
    for column in drift.columns:
        means = ("-" if m is None else f"{m:.4g}" for m in (column.mean_before, column.mean_now))
        table.add_row(
            column.name, f"{column.statistic:.3f}", f"{column.outside:.1%}", *means,
            "; ".join(column.reasons) or "-",
        )  # fmt: skip
    console.print(table)
    for name, labels in drift.new_labels.items():
        shown = ", ".join(f"{label!r} in {share:.1%}" for label, share in labels.items())
        console.print(f"{name}: labels that the run did not know: {shown}")
    for name, gone in drift.gone_labels.items():
        console.print(f"{name}: no longer there: {', '.join(map(repr, gone))}")
    if drift.action_shares:
        shares = (f"{n} {a:.1%} to {b:.1%}" for n, (a, b) in drift.action_shares.items())
        console.print(f"actions: {', '.join(shares)}")
    console.print(drift.sentence, style="bold")
