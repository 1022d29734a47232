"""The verb `resume`: continue a job that was stopped."""

from dataclasses import dataclass

import tyro

from experiments.cli import _positional as positional
from experiments.cli.run import show
from experiments.runs import jobs
from experiments.runs.training import TrainingRun


@dataclass(frozen=True)
class Resume:
    """Continue a run, the fit of a world model or a cell of a table from its checkpoint. It ends
    exactly where the uninterrupted one would."""

    folder: positional.Folder  # the run's folder
    quiet: bool = False  # no progress bar and no summary


def main(arguments: list[str]) -> int:
    command = tyro.cli(Resume, args=arguments, prog="python -m experiments resume")
    job = jobs.job_in(command.folder)
    result = job.resume(quiet=command.quiet)
    if isinstance(job, TrainingRun) and not command.quiet:
        show(result, command.folder, online=job.settings.online)
    return 0
