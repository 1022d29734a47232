"""The verb `bench`: speed beside the machine's matrix-product rate and that of other libraries."""

from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from experiments.bench.curves import AXES, draw
from experiments.bench.measure import Bench, measure
from experiments.bench.workloads import WORKLOADS
from experiments.reports.grid import grid
from experiments.runs.folders import write_json
from mbrl.terminal import terminal

WIDTH = 170  # of the table where the output is no terminal


def main(arguments: list[str]) -> int:
    command = tyro.cli(Bench, args=arguments, prog="python -m experiments bench")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    console = terminal()
    if not console.is_terminal:
        console = terminal(width=WIDTH)
    try:
        record = measure(command, console)
    finally:
        torch.set_num_threads(threads)
    if "curves" in record:
        show_curves(record, console)
        if command.figure is not None:
            draw(record["curves"], command.figure)
    else:
        show(record, console)
    show_origin(record, console)
    if command.out is not None:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(command.out, record)
    return 0


def show(record: dict[str, Any], console: Console) -> None:
    """How many times as fast, and with what share of the memory, comes first."""
    table = grid(
        "workload",
        "ours is",
        "of the memory",
        "who",
        "rate",
        "peak MB",
        "GFLOP/s before, after",
        "rate / GFLOP/s",
        "of products",
        "aim",
    )
    for name, measured in record["workloads"].items():
        workload = WORKLOADS[name]
        ends = [max(measured[key].values()) for key in ("ceiling_before", "ceiling_after")]
        aim = "" if workload.aim is None else f"{workload.aim:g}"
        rate = f"{_digits(measured['rate'])} {workload.unit}"
        products = f"{ends[0]:.0f}, {ends[1]:.0f}"
        whole, peak = measured["of_products"], measured["peak_mb"]
        part = "" if whole is None else f"{whole:.0%}"
        share = _digits(measured["share"])
        table.add_row(name, "", "", "longreach", rate, _megabytes(peak), products, share, part, aim)
        if "medium" in measured:
            times = f"{measured['medium']['times_faster']:.2f} times as fast"
            rate = f"{_digits(measured['medium']['rate'])} {workload.unit}"
            table.add_row("", times, "", "longreach, medium precision", rate)
        if workload.against in record["workloads"]:
            base = record["workloads"][workload.against]["share"]
            times = f"{measured['share'] / base:.2f} times as fast"
            table.add_row("", times, "", workload.against, "", "", "", _digits(base))
        for peer, other in measured["peers"].items():
            times = f"{other['times_faster']:.2f} times as fast"
            less = "" if peak is None else f"{peak / other['peak_mb']:.2f}"
            rate, size = f"{_digits(other['rate'])} {workload.unit}", _megabytes(other["peak_mb"])
            who = f"{peer} {other['version']}"
            table.add_row("", times, less, who, rate, size, "", _digits(other["share"]))
        for peer, known in workload.recorded.items():
            if peer not in measured["peers"]:
                times = f"{measured['share'] / known:.2f} times as fast"
                table.add_row("", times, "", f"{peer} (recorded)", "", "", "", _digits(known))
        for peer, reason in measured["not_run"].items():
            table.add_row("", "", "", peer, f"not run: {reason}")
        table.add_section()
    console.print(table)
    for name, measured in record["workloads"].items():
        if measured["profile"]:
            console.print(_profile(name, measured["profile"]))


def show_curves(record: dict[str, Any], console: Console) -> None:
    for axis, measured in record["curves"].items():
        table = grid(
            AXES[axis].unit, *(f"{size:,}" for size in measured["sizes"]), title=AXES[axis].label
        )
        for name, costs in measured["curves"].items():
            table.add_row(name, *map(_digits, costs))
        console.print(table)


def show_origin(record: dict[str, Any], console: Console) -> None:
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items() if v)
    console.print(f"{record['date']}; {record['machine']}; {versions}", soft_wrap=True)
    if record["settings"]["quick"]:
        console.print("quick: sizes and windows too small for these figures to mean anything")


def _profile(name: str, shares: dict[str, float]) -> Table:
    table = grid("operation", "share of the time", title=name)
    for operation, share in shares.items():
        table.add_row(operation, f"{share:.1%}")
    return table


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
