"""Job folders: a description in config.json, an outcome in result.json, one process at a time."""

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mbrl.errors import CheckpointError
from mbrl.files import replacing

STARTED = ("lock", "log.txt")  # of a job, written again at every start


def write_json(path: Path, value: Any) -> None:
    """Replace `path` in one step, so that a reader never meets half a file."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, default=str) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def description(folder: Path) -> dict[str, Any]:
    """The content of a job's config.json; empty where there is none."""
    file = folder / "config.json"
    return read_json(file) if file.is_file() else {}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process. Raises `CheckpointError` while another one works in it."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(
                lock, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # the system frees it when the process ends
        except OSError:
            raise CheckpointError(
                f"another process is training in {folder}; wait for it, or stop it first"
            ) from None
        yield


def spent(folder: Path) -> float:
    """Seconds of the earlier sessions in the folder that did not finish, each from its start to the
    last file that it wrote. Also notes the start of the present session."""
    notes = folder / "sessions.json"
    seconds, now = 0.0, time.time()
    if notes.exists():
        before = read_json(notes)
        files = [p for p in folder.rglob("*") if p.is_file() and p.name not in STARTED]
        written = [p.stat().st_mtime for p in files]
        seconds = before["seconds"] + max(0.0, max(written) - before["began"])
    write_json(notes, {"seconds": seconds, "began": now})
    return seconds
