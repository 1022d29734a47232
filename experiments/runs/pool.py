"""Many jobs side by side, one thread each, retried from their checkpoints when a process dies."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.runs import jobs
from experiments.runs.launchers import Exit, Launcher, Local
from mbrl.callbacks import Interrupted

PAUSE = 0.2  # seconds between two looks
PATIENCE = 5  # deaths in a row without a newer checkpoint before a job counts as failed


@dataclass
class _Attempts:
    """Deaths of a job since its checkpoint last moved."""

    checkpoint: float = -1.0
    deaths: int = 0

    def another(self, folder: Path) -> bool:
        """Count one more death; whether it is worth another attempt."""
        files = [folder / "checkpoint.pt", folder / "model.pt"]
        newest = max((f.stat().st_mtime for f in files if f.exists()), default=-1.0)
        self.deaths = 1 if newest > self.checkpoint else self.deaths + 1
        self.checkpoint = newest
        return self.deaths < PATIENCE


@dataclass
class _Board:
    """What waits, runs and has ended."""

    waiting: list[Path]
    running: dict[Path, Any] = field(default_factory=dict)
    ended: set[Path] = field(default_factory=set)
    failed: dict[Path, str] = field(default_factory=dict)
    attempts: dict[Path, _Attempts] = field(default_factory=dict)

    def next_ready(self) -> Path | None:
        """The first waiting job that has what it begins with; where that failed it fails too."""
        for folder in list(self.waiting):
            lacking = [f for f in jobs.job_in(folder).needs() if not self.has(f)]
            if not lacking:
                self.waiting.remove(folder)
                return folder
            for first in lacking:
                if first in self.failed:
                    self.failed[folder] = f"what it begins with failed: {first}"
                elif first not in self.waiting and first not in self.running:
                    self.failed[folder] = (
                        f"it begins with {first}, which is neither done nor waiting"
                    )
            if folder in self.failed:
                self.waiting.remove(folder)
        return None

    def has(self, folder: Path) -> bool:
        return folder in self.ended or jobs.finished(folder)

    def settle(self, folder: Path, end: Exit) -> bool:
        """Book the end of a job; True if it is finished."""
        del self.running[folder]
        if end.status == 0 and not end.died:
            self.ended.add(folder)
            return True
        if end.died and self.attempts.setdefault(folder, _Attempts()).another(folder):
            self.waiting.insert(0, folder)
        else:
            self.failed[folder] = end.text or f"it was killed {PATIENCE} times in a row"
        return False


def run_all(
    folders: Sequence[Path],
    where: Launcher | int,
    title: str = "runs",
    on_finished: Callable[[Path], None] = lambda folder: None,
) -> dict[Path, str]:
    """Finish the jobs in `folders`, at most `where.workers` at a time (a number means that many
    local processes), each after those that it needs.

    Returns the error text of each job that failed; the others are not disturbed. A job whose
    process is killed is continued from its checkpoint. Ctrl-C stops all of them at their next step
    with everything saved, and raises `Interrupted`. `on_finished` is told of each job as it ends,
    and at once of those that had ended before.
    """
    launcher = Local(where) if isinstance(where, int) else where
    before = [f for f in folders if jobs.finished(f)]
    for known in before:
        on_finished(known)
    board = _Board([f for f in folders if f not in set(before)], ended=set(before))
    sizes = {f: jobs.job_in(f).size() for f in folders}
    columns = ("{task.description}", BarColumn(), "{task.fields[done]}/{task.fields[count]} runs")
    shown = [TextColumn(c) if isinstance(c, str) else c for c in columns]
    with Progress(*shown, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=sum(sizes.values()), done=len(before), count=len(folders))
        handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        try:
            while board.waiting or board.running:
                while len(board.running) < launcher.workers:
                    ready = board.next_ready()
                    if ready is None:
                        break
                    board.running[ready] = launcher.start(ready)
                for folder, handle in list(board.running.items()):
                    end = launcher.poll(handle)
                    if end is not None and board.settle(folder, end):
                        on_finished(folder)
                over = board.ended | set(board.failed)
                part = sum(sizes[f] for f in over) + sum(
                    jobs.job_in(f).progress() for f in board.running
                )
                bar.update(task, completed=part, done=len(over))
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            launcher.stop(list(board.running.values()))
            raise Interrupted("stopped; every run is saved: the same command continues") from None
        finally:
            signal.signal(signal.SIGTERM, handler)
    return board.failed
