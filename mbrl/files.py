"""Files that are replaced whole."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mbrl.errors import ConfigError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` to write to, which takes the place of `path` once the block is through
    and the disk has it; a crash at any moment, or an error in the block, leaves `path` as it was.
    Its folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if os.name == "nt":  # which has no folders to open
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or the new name itself may be lost
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` by `text` in UTF-8; a full disk leaves what was there."""
    with replacing(path) as file:
        file.write(text.encode())


def require_writable(path: Path) -> None:
    """Raise `ConfigError` where a file cannot be made in the folder of `path`, before work is done
    for it; makes the folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        raise ConfigError(
            f"{path} cannot be written ({problem.strerror}); give another file with --out"
        ) from None
