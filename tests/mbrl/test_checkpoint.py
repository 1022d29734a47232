"""Checkpoints: atomic, plain, and clear about damage."""

import pickle
import random
from pathlib import Path

import pytest
import torch

from mbrl import checkpoint
from mbrl.errors import CheckpointError

CONTENT = {"weights": torch.arange(100.0), "step": 3, "names": ["a"], "nested": {"x": None}}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "checkpoint.pt"
    checkpoint.save(path, CONTENT)
    got = checkpoint.load(path)
    assert torch.equal(got["weights"], CONTENT["weights"]) and got["step"] == 3
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint.pt"]


def test_a_failed_save_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, CONTENT)
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(path, {"bad": lambda: None})
    assert checkpoint.load(path)["step"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    """Without the advice to make room for it."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"Give another place, and resume, or"):
        checkpoint.save(tmp_path / "file" / "c.pt", {})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, CONTENT)
    whole, draw = path.read_bytes(), random.Random(0)
    for size in [0, 1, 4, *(draw.randrange(len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    for junk in (b"broken", b"PK\x03\x04", bytes(draw.randrange(256) for _ in range(500))):
        path.write_bytes(junk)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        checkpoint.load(tmp_path / "none.pt")
    torch.save({"format": 99}, path)
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.load(path)


class Evil:
    def __reduce__(self):
        return (open, (str(Path.home() / "never"), "w"))


def test_code_is_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": 1, "x": Evil()}, path)
    with pytest.raises(CheckpointError):
        checkpoint.load(path)
    path.write_bytes(pickle.dumps({"format": 1, "x": Evil()}))
    with pytest.raises(CheckpointError):
        checkpoint.load(path)
    assert not (Path.home() / "never").exists()
