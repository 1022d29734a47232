"""Many jobs side by side, one thread each, retried from their checkpoints when a process dies."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.runs import folders as folders_
from experiments.runs import jobs
from experiments.runs.launchers import Exit, Launcher, Local
from mbrl.callbacks import Interrupted
from mbrl.terminal import terminal

ELSEWHERE = object()  # in the place of a handle: a process that is not ours has the job
PAUSE = 0.2  # seconds between two polls
PATIENCE = 5  # kills in a row without a new checkpoint after which a job counts as failed


@dataclass
class _Attempts:
    """Number of times a job was killed since its last new checkpoint."""

    checkpoint: float = -1.0
    deaths: int = 0

    def worth_retrying(self, folder: Path) -> bool:
        """Count one more kill; whether to try again."""
        files = [folder / "checkpoint.pt", folder / "model.pt"]
        newest = max((f.stat().st_mtime for f in files if f.exists()), default=-1.0)
        self.deaths = 1 if newest > self.checkpoint else self.deaths + 1
        self.checkpoint = newest
        return self.deaths < PATIENCE


@dataclass
class _Queue:
    """Jobs that wait, run, have finished, and have failed."""

    waiting: list[Path]
    running: dict[Path, Any] = field(default_factory=dict)
    ended: set[Path] = field(default_factory=set)
    failed: dict[Path, str] = field(default_factory=dict)
    attempts: dict[Path, _Attempts] = field(default_factory=dict)

    def next_ready(self) -> Path | None:
        """The first waiting job whose needs are finished. A job fails if one that it needs
        failed."""
        for folder in list(self.waiting):
            lacking = [f for f in jobs.job_in(folder).needs() if not self.is_finished(f)]
            if not lacking:
                self.waiting.remove(folder)
                return folder
            for first in lacking:
                if first in self.failed:
                    self.failed[folder] = f"a job that it needs failed: {first}"
                elif first not in self.waiting and first not in self.running:
                    self.failed[folder] = f"it needs {first}, which is neither finished nor waiting"
            if folder in self.failed:
                self.waiting.remove(folder)
        return None

    def is_finished(self, folder: Path) -> bool:
        return folder in self.ended or jobs.finished(folder)

    def record_left(self, folder: Path) -> bool:
        """Record that another process has left a job; whether the job is finished."""
        del self.running[folder]
        if jobs.finished(folder):
            self.ended.add(folder)
            return True
        self.waiting.insert(0, folder)
        return False

    def record_exit(self, folder: Path, end: Exit) -> bool:
        """Record the exit of a job's process; whether the job is finished."""
        del self.running[folder]
        if end.status == 0 and not end.died:
            self.ended.add(folder)
            return True
        if end.died and self.attempts.setdefault(folder, _Attempts()).worth_retrying(folder):
            self.waiting.insert(0, folder)
        else:
            silent = f"it ended with status {end.status} and printed nothing; is the disk full?"
            killed = f"it was killed {PATIENCE} times in a row"
            self.failed[folder] = end.text or (killed if end.died else silent)
        return False


def _begin(folder: Path, launcher: Launcher, bar: Progress) -> Any:
    """Start the job; or wait for the process that works in it, of a sweep that was killed say."""
    if folders_.busy(folder):
        bar.console.print(f"waiting for another process that works in {folder}")
        return ELSEWHERE
    return launcher.start(folder)


def run_all(
    folders: Sequence[Path],
    where: Launcher | int,
    title: str = "runs",
    on_finished: Callable[[Path], None] = lambda folder: None,
) -> dict[Path, str]:
    """Finish the jobs in `folders`, at most `where.workers` at a time (a number means that many
    local processes), each after those that it needs.

    Returns the error text of each job that failed; the others go on. A job whose
    process is killed is continued from its checkpoint. Ctrl-C stops all of them at their next step
    with everything saved, and raises `Interrupted`. `on_finished` is called with the folder of each
    job that finishes, and at once with those of the jobs that were finished before.
    """
    launcher = Local(where) if isinstance(where, int) else where
    before = [f for f in folders if jobs.finished(f)]
    for known in before:
        on_finished(known)
    queue = _Queue([f for f in folders if f not in set(before)], ended=set(before))
    sizes = {f: jobs.job_in(f).size() for f in folders}
    columns = ("{task.description}", BarColumn(), "{task.fields[done]}/{task.fields[count]} runs")
    shown = [TextColumn(c, markup=False) if isinstance(c, str) else c for c in columns]
    bars = (*shown, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*bars, console=terminal()) as bar:
        task = bar.add_task(title, total=sum(sizes.values()), done=len(before), count=len(folders))
        handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        try:
            while queue.waiting or queue.running:
                while len(queue.running) < launcher.workers:
                    ready = queue.next_ready()
                    if ready is None:
                        break
                    queue.running[ready] = _begin(ready, launcher, bar)
                for folder, handle in list(queue.running.items()):
                    if handle is ELSEWHERE:
                        if not folders_.busy(folder) and queue.record_left(folder):
                            on_finished(folder)
                        continue
                    end = launcher.poll(handle)
                    if end is not None and queue.record_exit(folder, end):
                        on_finished(folder)
                over = queue.ended | set(queue.failed)
                part = sum(sizes[f] for f in over) + sum(
                    jobs.job_in(f).progress() for f in queue.running
                )
                bar.update(task, completed=part, done=len(over))
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            launcher.stop([h for h in queue.running.values() if h is not ELSEWHERE])
            raise Interrupted("stopped; every run is saved: the same command continues") from None
        except Exception:  # of `on_finished`, say: no job goes on unwatched
            launcher.stop([h for h in queue.running.values() if h is not ELSEWHERE])
            raise
        finally:
            signal.signal(signal.SIGTERM, handler)
            if isinstance(where, int):
                launcher.close()
    return queue.failed
