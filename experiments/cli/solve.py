"""The verb `solve`: from a dataset to a chosen, valued policy, for someone who does not know
algorithms."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from algorithms.evaluation.valuation import ValuationConfig
from experiments.cli import _positional as positional
from experiments.cli.data import line, summary
from experiments.cli.value import number, print_valuation
from experiments.reports import run_report
from experiments.reports.grid import grid
from experiments.runs import solve as solving
from experiments.runs.export import FOLDER, export_run
from experiments.runs.selection import agent_at
from experiments.runs.solve import SolveSettings
from experiments.runs.valuation import value_run
from mbrl import data
from mbrl.agent import resolve_device
from mbrl.config import Settings
from mbrl.data.suspicions import suspicions
from mbrl.errors import CheckpointError, ConfigError, MissingPackage
from mbrl.terminal import terminal


@dataclass(frozen=True)
class Solve(Settings):
    """Check a dataset, train a small portfolio of algorithms on part of its episodes, choose the
    policy that is surest to beat the logged one on the rest, value it, and write a report, an ONNX
    file and a policy card."""

    data: positional.Data  # a dataset or a file
    settings: Annotated[SolveSettings, tyro.conf.arg(name="")] = field(
        default_factory=SolveSettings
    )
    out: Path | None = None  # folder; None: runs/solve/DATA
    value: ValuationConfig = field(default_factory=ValuationConfig)

    def main(self) -> int:
        console, settings = terminal(), self.settings
        resolve_device(settings.device)
        options = {} if settings.task is None else {"spec": settings.task}
        findings = data.check(self.data, **options)
        if any(f.severity == "error" for f in findings):
            for finding in findings:
                console.print(line(finding))
            return 1
        dataset = data.load(self.data, **options)
        for finding in [*findings, *suspicions(dataset)]:
            if finding.severity == "warning":
                console.print(line(finding))
        summary(dataset, console)
        train, held = solving.split(settings, dataset)
        out = self.out or default_folder(self.data)
        chosen = solving.portfolio(settings, dataset)
        steps = solving.plan_steps(settings, self.data, train, chosen, out)
        console.print(
            f"training {', '.join(f'{name} ({steps[name]:,} updates)' for name in chosen)} on "
            f"{len(train.transitions.episodes())} episodes; "
            f"{len(held.transitions.episodes())} are held out"
        )
        places, failed = solving.train_portfolio(settings, self.data, chosen, steps, out, train)
        for label, problem in failed.items():
            text = f"{label} failed and is left out: {problem}"
            console.print(text, soft_wrap=True)
        agents = {label: agent_at(folder, "last") for label, folder in places.items()}
        choice = solving.choose(agents, train, held, self.value)
        name = choice.name
        console.print(candidates(choice))
        solving.write_choice(out, choice, steps, failed)
        content = value_run(places[name], self.value)
        print_valuation(content, console)
        lines = [f"chosen: {name}; run folder {places[name]}"]
        try:
            lines.append(f"report: {run_report.write(places[name])}")
        except MissingPackage as problem:
            lines.append(f"no report: {problem}")
        try:
            export_run(places[name])
            lines.append(f"policy (ONNX) and its card: {places[name] / FOLDER}")
        except (ConfigError, CheckpointError) as problem:
            lines.append(f"no export: {problem}")
        for text in lines:
            console.print(text, soft_wrap=True)
        return 0


def default_folder(name: str) -> Path:
    """The folder of a dataset or file in runs/solve: another one for files of one name in several
    folders."""
    path = Path(name)
    known = path.with_suffix("") if path.is_file() else path
    return Path("runs/solve") / known.as_posix().replace("/", "-").lstrip(".-")


def candidates(choice: solving.Choice) -> Table:
    """The portfolio, the surest first, with what decided."""
    halted = bool(choice.halted)
    decided = f"more than {choice.base} where the log reaches"
    titles = ["policy", *([decided, "stays there"] if halted else [])]
    table = grid(*titles, "more than the logged one", "outside the log", "believed")
    for name in solving.order(choice):
        fitted = choice.valuations[name].estimates[0]
        own = []
        if halted:
            own = [number(*choice.lead(name)), f"{choice.halted[name].inside:.0%}"]
        table.add_row(
            f"{name} (chosen)" if name == choice.name else name,
            *own,
            number(fitted.difference, fitted.difference_low, fitted.difference_high),
            f"{choice.valuations[name].support.outside:.1%}",
            "yes" if fitted.believed else f"no: {fitted.note}",
        )
    return table


def main(arguments: list[str]) -> int:
    return tyro.cli(Solve, args=arguments, prog="python -m experiments solve").main()
