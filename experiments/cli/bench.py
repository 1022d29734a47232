"""The verb `bench`: speed beside the machine's matrix-product rate and that of other libraries."""

import json
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from experiments.bench.measure import Bench, measure
from experiments.bench.workloads import WORKLOADS
from experiments.reports.grid import grid

WIDTH = 170  # of the table where the output is no terminal


def main(arguments: list[str]) -> int:
    command = tyro.cli(Bench, args=arguments, prog="python -m experiments bench")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        record = measure(command, console)
    finally:
        torch.set_num_threads(threads)
    show(record, console)
    if command.out is not None:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        command.out.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def show(record: dict[str, Any], console: Console) -> None:
    table = grid(
        "workload",
        "who",
        "rate",
        "GFLOP/s before, after",
        "rate / GFLOP/s",
        "of products",
        "aim",
        "ours is",
    )
    for name, measured in record["workloads"].items():
        workload = WORKLOADS[name]
        ends = [max(measured[key].values()) for key in ("ceiling_before", "ceiling_after")]
        aim = "" if workload.aim is None else f"{workload.aim:g}"
        rate = f"{_digits(measured['rate'])} {workload.unit}"
        products = f"{ends[0]:.0f}, {ends[1]:.0f}"
        whole = measured["of_products"]
        part = "" if whole is None else f"{whole:.0%}"
        table.add_row(name, "longreach", rate, products, _digits(measured["share"]), part, aim, "")
        if workload.against in record["workloads"]:
            base = record["workloads"][workload.against]["share"]
            times = f"{measured['share'] / base:.2f} times as fast"
            table.add_row("", workload.against, "", "", _digits(base), "", "", times)
        for peer, other in measured["peers"].items():
            who = f"{peer} {other['version']}"
            times = f"{other['times_faster']:.2f} times as fast"
            rate = f"{_digits(other['rate'])} {workload.unit}"
            table.add_row("", who, rate, "", _digits(other["share"]), "", "", times)
        for peer, share in workload.recorded.items():
            if peer not in measured["peers"]:
                times = f"{measured['share'] / share:.2f} times as fast"
                table.add_row("", f"{peer} (recorded)", "", "", _digits(share), "", "", times)
        for peer, reason in measured["not_run"].items():
            table.add_row("", peer, f"not run: {reason}", "", "", "", "", "")
        table.add_section()
    console.print(table)
    for name, measured in record["workloads"].items():
        if measured["profile"]:
            console.print(_profile(name, measured["profile"]))
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items() if v)
    console.print(f"{record['date']}; {record['machine']}; {versions}", soft_wrap=True)
    if record["settings"]["quick"]:
        console.print("quick: sizes and windows too small for these figures to mean anything")


def _profile(name: str, shares: dict[str, float]) -> Table:
    table = grid("operation", "share of the time", title=name)
    for operation, share in shares.items():
        table.add_row(operation, f"{share:.1%}")
    return table


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
