"""The verb `value`: may this policy act? Its value from logged episodes alone."""

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from algorithms.evaluation.valuation import ValuationConfig
from experiments.cli import _positional as positional
from experiments.reports.grid import grid
from experiments.runs.valuation import value_run
from mbrl.config import Count, Settings
from mbrl.progress import Progress
from mbrl.terminal import terminal
from mbrl.training import Metrics


@dataclass(frozen=True)
class Value(Settings):
    """Value a run's policy from logged episodes: several estimates of its discounted return, each
    beside that of the logged policy with an interval, how much of it the data support, and a
    verdict. Writes valuation.json into the run's folder; `report` shows it."""

    run: positional.Folder  # run folder
    data: str | None = None  # other logged episodes to value it on; None: those the run held out
    step: str = "last"  # which policy: last, chosen (offline), or the number of a kept one
    settings: Annotated[ValuationConfig, tyro.conf.arg(name="")] = field(
        default_factory=ValuationConfig
    )
    threads: Count = 1  # CPU threads
    json: bool = False  # print the content of valuation.json instead of a table

    def main(self) -> int:
        torch.set_num_threads(self.threads)
        bar = Progress(self.settings.steps)

        def show(method: str, metrics: Metrics) -> None:
            step = next((int(v) for k, v in metrics.items() if k.endswith("/update")), 0)
            bar.count(method, step, self.settings.steps)

        result = value_run(
            self.run, self.settings, step=self.step, name=self.data,
            on_progress=None if self.json else show,
        )  # fmt: skip
        bar.close()
        if self.json:
            print(json.dumps(result))
        else:
            print_valuation(result, terminal())
        return 0


def print_valuation(content: dict[str, Any], console: Console) -> None:
    """The content of valuation.json as a person reads it."""
    logged = content["logged"]
    console.print(
        f"{content['episodes']} episodes, {content['rows']:,} rows: {content['where']}",
    )
    console.print(
        f"logged: discounted return {logged[0]:.4g} [{logged[1]:.4g}, {logged[2]:.4g}] as "
        f"recorded (gamma {content['gamma']:g})"
    )
    percent = f"{100 * content['confidence']:g}%"
    table = grid("estimate", f"value [{percent}]", "more than logged", "lower bound", "believed")
    for e in content["estimates"]:
        table.add_row(
            e["method"],
            number(e["value"], e["low"], e["high"]),
            number(e["difference"], e["difference_low"], e["difference_high"]),
            "-" if not math.isfinite(e["difference_low"]) else f"{e['difference_low']:+.4g}",
            "yes" if e["believed"] else f"no: {e['note']}",
        )
    console.print(table)
    near = content["support"]
    console.print(
        f"support: {near['outside']:.1%} of the policy's actions are unlike any logged ones at "
        f"like observations ({near['logged_outside']:.1%} of the logged actions are)"
    )
    if content["critic"] is not None:
        low, high = content["limits"]
        console.print(
            f"the policy's own critic: {content['critic']:.4g} at the starts; rewards allow "
            f"{low:.4g} to {high:.4g}"
        )
    console.print(content["verdict"]["sentence"], style="bold")


def number(value: float, low: float, high: float) -> str:
    """A value with its interval; a dash where there is none."""
    return f"{value:.4g} [{low:.4g}, {high:.4g}]" if math.isfinite(value) else "-"


def main(arguments: list[str]) -> int:
    return tyro.cli(Value, args=arguments, prog="python -m experiments value").main()
