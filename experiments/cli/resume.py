"""The verb `resume`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.cli.run import show
from experiments.runs import jobs


@dataclass(frozen=True)
class Resume:
    """Continue a run from its checkpoint; it ends exactly where the uninterrupted run would. Also a
    world model's fit or a study that a table began."""

    folder: tyro.conf.Positional[Path]  # the run's folder
    quiet: bool = False  # no progress bar and no summary


def main(arguments: list[str]) -> int:
    command = tyro.cli(Resume, args=arguments, prog="python -m experiments resume")

    job = jobs.job_in(command.folder)
    result = job.resume(quiet=command.quiet)
    if job.kind == "run" and not command.quiet:
        show(result, command.folder)
    return 0
