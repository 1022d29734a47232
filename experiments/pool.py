"""Many runs side by side on this machine: one single-threaded process each, restarted from its
checkpoint when it is started again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mbrl.callbacks import Interrupted
from mbrl.records import MetricsFile


def finished(folder: Path) -> bool:
    """Whether the run in `folder` has reached its last step."""
    result, config = folder / "result.json", folder / "config.json"
    if not result.exists() or not config.exists():
        return False
    steps = json.loads(config.read_text())["run"]["steps"]
    return bool(json.loads(result.read_text())["step"] >= steps)


def run_all(
    folders: Sequence[Path],
    workers: int,
    title: str = "runs",
    on_finished: Callable[[Path], None] = lambda folder: None,
) -> dict[Path, str]:
    """Finish the runs in `folders` (made by `run.create`), at most `workers` at a time.

    Returns the error text of each run that failed; the others are not disturbed. Ctrl-C stops all
    of them at their next step with everything saved, and raises `Interrupted`. `on_finished` is
    told of each run as it ends, and at once of those that had ended before.
    """
    waiting = [f for f in folders if not finished(f)]
    for folder in folders:
        if folder not in waiting:
            on_finished(folder)
    running: dict[Path, subprocess.Popen[bytes]] = {}
    failed: dict[Path, str] = {}
    totals = {f: json.loads((f / "config.json").read_text())["run"]["steps"] for f in folders}
    ended = {f: totals[f] for f in folders if f not in waiting}
    columns = ("{task.description}", BarColumn(), "{task.fields[done]}/{task.fields[count]} runs")
    shown = [TextColumn(c) if isinstance(c, str) else c for c in columns]
    with Progress(*shown, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=sum(totals.values()), done=len(ended), count=len(folders))
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    folder = waiting.pop(0)
                    running[folder] = _start(folder)
                for folder, process in list(running.items()):
                    if process.poll() is not None:
                        del running[folder]
                        ended[folder] = totals[folder]
                        if process.returncode == 0:
                            on_finished(folder)
                        else:
                            failed[folder] = (folder / "log.txt").read_text()[-2000:]
                done = sum(ended.values()) + sum(map(_steps_done, running))
                bar.update(task, completed=done, done=len(ended))
                time.sleep(0.5)
        except KeyboardInterrupt:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
            raise Interrupted("stopped; every run is saved: the same command continues") from None
        finally:
            signal.signal(signal.SIGTERM, before)
    return failed


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "experiments", "resume", str(folder), "--quiet"]
    # A session of its own, so that Ctrl-C reaches this process alone, which then stops the runs.
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def _steps_done(folder: Path) -> int:
    """The step of the newest row of the run's metrics."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        return int(MetricsFile(folder / "metrics.csv").rows()[-1]["step"])
    return 0
