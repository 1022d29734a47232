"""The verb `report`: a page about a run."""

from dataclasses import dataclass

import tyro

from experiments.cli import _positional as positional
from experiments.reports import language_report, run_report
from experiments.runs import jobs
from mbrl.errors import CheckpointError


@dataclass(frozen=True)
class Report:
    """Write report.html about a run into its folder: scores, losses, reach and values, settings."""

    folders: positional.Folders  # run folders

    def main(self) -> int:
        if not self.folders:
            raise CheckpointError("name at least one run folder, such as runs/ravl/pendulum/seed-0")
        for job in [jobs.job_in(folder) for folder in self.folders]:
            report = language_report if job.kind == "language" else run_report
            print(f"wrote {report.write(job.folder)}")
        return 0


def main(arguments: list[str]) -> int:
    return tyro.cli(Report, args=arguments, prog="python -m experiments report").main()
