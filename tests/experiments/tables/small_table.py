"""A small table, its records, and a launcher in this process."""

import json
from pathlib import Path

from experiments.runs import jobs, launchers
from experiments.tables import plan, table

SMALL = """
title = "Small"
algorithms = ["bc"]
columns = [{ label = "bc wide", algorithm = "bc", config = { hidden = [16] } }]
datasets = ["pendulum/expert"]
seeds = [0, 1]
steps = 20
fqe_steps = 10

[[blocks]]
title = "Twice"
datasets = ["pendulum/expert"]
algorithms = ["bc"]
steps = 40
"""


class Here:
    """Jobs one after the other in this process."""

    workers = 1

    def start(self, folder: Path) -> None:
        jobs.resume(folder, quiet=True)

    def poll(self, handle: None) -> launchers.Exit:
        return launchers.Exit(0, False)

    def stop(self, handles: object) -> None: ...
    def close(self) -> None: ...


def finish(what: plan.Plan, tmp_path: Path, **options: bool) -> None:
    home, folder = tmp_path / "records", tmp_path / "runs"
    table.finish(what, home, folder, Here(), table.all_cells(what), **options)


def written_records(small: plan.Plan, home: Path) -> None:
    """Records with known returns: reference returns 0 and 50, so scores are twice the returns."""
    for block in small.blocks:
        for cell in small.cells(block):
            record = {
                "key": cell.key,
                "fingerprint": "x",
                "reference_returns": [0.0, 50.0],
                "seconds": 3.0,
                "steps": [10, 15, 20],
                "means": [30.0 + cell.seed, 25.0 + cell.seed, 10.0 + cell.seed],
                "selection": {"chosen": 15, "values": [1.0, 0.5], "steps": [15, 20]},
            }
            file = home / cell.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(record))
