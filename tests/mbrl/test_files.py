"""Files that are replaced whole."""

import errno
import os
import stat
from pathlib import Path

import pytest

from mbrl.files import replacing, write_text


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "notes.txt"
    with replacing(path) as file:
        file.write(b"first")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"seco", "nd"])  # type: ignore[list-item]
    assert path.read_bytes() == b"first" and list(path.parent.iterdir()) == [path]
    with replacing(path) as file:
        file.write(b"second")
    assert path.read_bytes() == b"second" and list(path.parent.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask  # as any file of this user


def test_text_that_does_not_fit_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.md"
    write_text(path, "mean ± deviation\n")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "")
    assert path.read_bytes() == "mean ± deviation\n".encode() and [*tmp_path.iterdir()] == [path]
