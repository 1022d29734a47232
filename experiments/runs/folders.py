"""Job folders: a description in config.json, an outcome in result.json, one process at a time."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mbrl.errors import CheckpointError
from mbrl.files import replacing

DIVERGED = "diverged.json"  # why and when a job's training diverged, of its last session
STARTED = ("lock", "log.txt")  # of a job, written again at every start


def write_json(path: Path, value: Any) -> None:
    """Replace `path` in one step, so that a reader never meets half a file."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, default=str) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Raises `CheckpointError` for a file that is not one JSON object."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{path} is not readable JSON ({problem}); write it again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold one JSON object; write it again")
    return content


def description(folder: Path) -> dict[str, Any]:
    """The content of a job's config.json; empty where there is none."""
    file = folder / "config.json"
    return read_json(file) if file.is_file() else {}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process. Raises `CheckpointError` while another one works in it, and
    where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(
            f"the folder {folder} cannot be made ({problem.strerror}); give another one with --out"
        ) from None
    lock = FileLock(folder / "lock", timeout=0)  # the system frees it when the process ends
    try:
        lock.acquire()
    except Timeout:
        raise CheckpointError(
            f"another process is training in {folder}; wait for it, or stop it first"
        ) from None
    try:
        yield
    finally:
        lock.release()


def busy(folder: Path) -> bool:
    """Whether a process works in the folder."""
    if not (folder / "lock").exists():
        return False
    try:
        with FileLock(folder / "lock", timeout=0):
            return False
    except Timeout:
        return True


def clean(folder: Path) -> None:
    """Remove what a process that was killed while it saved has left; only under the lock."""
    for partial in folder.rglob("*.partial"):
        partial.unlink(missing_ok=True)


def spent(folder: Path) -> float:
    """Seconds of the earlier sessions in the folder that did not finish: what they noted with
    `note_spent`, else from the start to the last file that was written, as far as the machine's
    clock allows it. Also notes the start of the present session."""
    notes = folder / "sessions.json"
    seconds, now = 0.0, time.time()
    if notes.exists():
        before = read_json(notes)
        if "spent" in before:  # measured, whatever the machine's clock did
            write_json(notes, {"seconds": before["spent"], "began": now})
            return float(before["spent"])
        files = [p for p in folder.rglob("*") if p.is_file() and p.name not in STARTED]
        written = [p.stat().st_mtime for p in files]
        seconds = before["seconds"] + max(0.0, min(max(written), now) - before["began"])
    write_json(notes, {"seconds": seconds, "began": now})
    return seconds


def note_spent(folder: Path, seconds: float) -> None:
    """Note the `seconds` of all sessions so far, by a clock that nobody sets."""
    notes = folder / "sessions.json"
    write_json(notes, read_json(notes) | {"spent": seconds})
