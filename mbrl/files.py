"""Files that are replaced whole."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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
