"""Checkpoints: one file of plain tensors and numbers, replaced atomically, never unpickled as
code."""

import errno
import zipfile
from pathlib import Path
from typing import Any

import torch

from mbrl.errors import CheckpointError
from mbrl.files import replacing

FORMAT = 1


def save(path: str | Path, content: dict[str, Any]) -> None:
    """Replace the file at `path`; a crash at any moment leaves either the old file or the new
    one. Raises `CheckpointError` where the disk does not take it."""
    try:
        with replacing(Path(path)) as file:
            torch.save({"format": FORMAT, **content}, file)
    except (OSError, RuntimeError) as problem:  # torch hides what the disk said
        reason = problem.__context__ if isinstance(problem.__context__, OSError) else problem
        known = isinstance(reason, OSError) and reason.errno not in (errno.ENOSPC, errno.EDQUOT)
        mend = "Give another place" if known else "Make room"
        kept = f"the checkpoint before it stays. {mend}, and resume"
        nothing = f"there was none before it. {mend}, and resume, or give the command again"
        raise CheckpointError(
            f"{path} could not be saved ({str(reason).splitlines()[0]}); "
            + (kept if Path(path).is_file() else nothing)
        ) from problem


def load(path: str | Path) -> dict[str, Any]:
    """Read what `save` wrote. Raises `CheckpointError` for anything else."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}; give the path of a checkpoint.pt file")
    try:
        _require_intact(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler meets damaged bytes with almost any exception
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(
            f"{path} is not a readable checkpoint ({type(error).__name__}: {reason}); it may be "
            "cut off or come from another program"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        version = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(
            f"{path} has checkpoint format {version!r}, this version reads {FORMAT}"
        )
    return content


def _require_intact(path: Path) -> None:
    """Raise unless every part has the checksum that was written with it; torch does not look."""
    with zipfile.ZipFile(path) as parts:
        broken = parts.testzip()
    if broken is not None:
        raise ValueError(f"the checksum of {broken} differs")
