"""What a GPU would refuse: algorithms on a device of their own, in tasks on the processor."""

import os
import shutil
import subprocess
import sys

import pytest

from algorithms import ALGORITHMS
from tests.small import OFFLINE


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(("kind", "names"), [("offline", OFFLINE), ("online", [*ALGORITHMS])])
def test_every_algorithm_keeps_to_its_device(kind: str, names: list[str]) -> None:
    command = [sys.executable, "-m", "tests.accelerator", kind, *names]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"LONGREACH_NATIVE": "0"},
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, ""), found.stdout + found.stderr[-2000:]
