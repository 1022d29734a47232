"""Checkpoints: one file of plain tensors and numbers, replaced atomically, never unpickled as
code."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from mbrl.errors import CheckpointError

FORMAT = 1


def save(path: str | Path, content: dict[str, Any]) -> None:
    """Write `content` to a temporary file beside `path`, sync it and rename it over `path`; a
    crash at any moment leaves either the old file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(path: str | Path) -> dict[str, Any]:
    """Read what `save` wrote. Raises `CheckpointError` for anything else."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}; give the path of a checkpoint.pt file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler meets damaged bytes with almost any exception
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(
            f"{path} is not a readable checkpoint ({type(error).__name__}: {reason}); it may be "
            "cut off or come from another program"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(
            f"{path} has checkpoint format {found!r}, this version reads {FORMAT}"
        )
    return content
