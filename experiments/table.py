"""The verb `table`: run the cells of a table that are missing, reuse those that are recorded, and
print it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console

from algorithms import ALGORITHMS
from experiments import pool, records
from experiments import run as runs
from experiments.settings import RunSettings, preset_config
from mbrl import config as configs
from mbrl.errors import unknown_name

TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Table:
    """Run and print a table; it may be stopped and started again at any time."""

    name: tyro.conf.Positional[str]  # a file in experiments/tables
    workers: int = 2  # runs side by side, one thread each
    run: bool = True  # --no-run: print what is recorded
    folder: Path = Path("runs/tables")  # where the run folders go

    def main(self) -> int:
        file = TABLES / f"{self.name}.toml"
        if not file.exists():
            raise unknown_name("table", self.name, [f.stem for f in TABLES.glob("*.toml")])
        plan = tomllib.loads(file.read_text())
        cells = {
            (data, algorithm, seed): cell_key(plan, data, algorithm, seed)
            for seed in plan["seeds"]
            for data in plan["datasets"]
            for algorithm in plan["algorithms"]
        }
        if self.run:
            self._run(cells)
        text = markdown(self.name, plan, cells)
        (records.RECORDS / self.name / "table.md").write_text(text)
        Console().print(text, markup=False, highlight=False, soft_wrap=True)
        return 0

    def _run(self, cells: dict[tuple[str, str, int], dict]) -> None:
        folders: dict[Path, tuple[Path, dict]] = {}
        for (data, algorithm, seed), wanted in cells.items():
            file = records.path(self.name, algorithm, data, seed)
            if records.read(file, wanted) is not None:
                continue
            folder = self.folder / self.name / algorithm / data.replace("/", "-") / f"seed-{seed}"
            if not (folder / "config.json").exists():
                settings = RunSettings(
                    algorithm, data, steps=wanted["steps"], seed=seed, tensorboard=False
                )
                runs.create(settings, preset_config(algorithm, data), folder)
            folders[folder] = (file, wanted)

        def record(folder: Path) -> None:
            records.write(*folders[folder], folder)

        failed = pool.run_all(list(folders), self.workers, self.name, record)
        for folder, text in failed.items():
            Console(stderr=True).print(f"{folder} failed:\n{text}", markup=False)


def cell_key(plan: dict[str, Any], data: str, algorithm: str, seed: int) -> dict:
    cls, _ = ALGORITHMS[algorithm]
    config = configs.to_dict(preset_config(algorithm, data))
    return records.key(algorithm, cls.version, config, data, seed, plan["steps"])


def markdown(name: str, plan: dict[str, Any], cells: dict[tuple[str, str, int], dict]) -> str:
    """Mean ± standard deviation over seeds of the last score, and the range of the seeds' best."""
    lines = [
        f"{plan['title']}: normalised score of the last evaluation (100 fixed starts), mean ± "
        f"standard deviation over seeds {', '.join(map(str, plan['seeds']))}; {plan['steps']} "
        "updates a run, one thread. Cells with fewer finished seeds say so.",
        "",
        "| dataset | " + " | ".join(plan["algorithms"]) + " |",
        "|---|" + "---|" * len(plan["algorithms"]),
    ]
    columns: dict[str, list[float]] = {a: [] for a in plan["algorithms"]}
    for data in plan["datasets"]:
        row = []
        for algorithm in plan["algorithms"]:
            found = [
                records.read(
                    records.path(name, algorithm, data, seed), cells[data, algorithm, seed]
                )
                for seed in plan["seeds"]
            ]
            last = np.array([records.scores(r)[-1] for r in found if r is not None])
            if len(last) == len(found):
                columns[algorithm].append(float(last.mean()))
            row.append(_cell(last, len(found)))
        lines.append(f"| {data} | " + " | ".join(row) + " |")
    full = {a: len(v) == len(plan["datasets"]) for a, v in columns.items()}
    means = [f"{np.mean(v):.1f}" if full[a] else "" for a, v in columns.items()]
    lines.append("| **mean** | " + " | ".join(means) + " |")
    return "\n".join(lines) + "\n"


def _cell(last: np.ndarray, wanted: int) -> str:
    if len(last) == 0:
        return "not run"
    spread = f" ± {last.std(ddof=1):.1f}" if len(last) > 1 else ""
    text = f"{last.mean():.1f}{spread}"
    return text if len(last) == wanted else f"{text} ({len(last)} of {wanted})"


def table_main(arguments: list[str]) -> int:
    return tyro.cli(Table, args=arguments, prog="python -m experiments table").main()
