"""The verb `gpu`: whole updates as CUDA graphs, published sizes and long runs on a GPU."""

from typing import Any

import tyro
from rich.console import Console

from experiments.bench.gpu import GPU, measure_gpu
from experiments.reports.grid import grid
from mbrl.terminal import terminal


def main(arguments: list[str]) -> int:
    command = tyro.cli(GPU, args=arguments, prog="python -m experiments gpu")
    console = terminal()
    show(measure_gpu(command, console), console)
    console.print(f"written to {command.out / 'gpu.json'}", soft_wrap=True)
    return 0


def show(record: dict[str, Any], console: Console) -> None:
    for part in ("graphs", "presets", "runs"):
        rows = record.get(part, {})
        if not rows:
            continue
        names = list(next(iter(rows.values())))
        table = grid(part, *(name.replace("_", " ") for name in names))
        for name, values in rows.items():
            table.add_row(name, *("" if values[n] is None else f"{values[n]:,.4g}" for n in names))
        console.print(table)
    console.print(f"{record['date']}; {record['device']}; torch {record['versions']['torch']}")
