"""Jobs forked from a process that has imported the library."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from experiments.runs import launchers, training
from experiments.runs.fork_server import ForkServer
from experiments.settings import RunSettings, build_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")


def ended(server: ForkServer, child: int) -> int:
    for _ in range(600):
        status = server.poll(child)
        if status is not None:
            return status
        time.sleep(0.05)
    raise AssertionError("the child does not end")


def test_children_report_how_they_end_and_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    """All of one server, whose start costs more than the rest."""
    server, nothing = ForkServer(), tmp_path / "nothing"
    nothing.mkdir()
    first = server.start(nothing)
    assert first is not None
    assert ended(server, first) == 2  # no job there
    assert str(nothing) in (nothing / "log.txt").read_text()
    assert server.poll(first) == 2  # and stays known
    settings = RunSettings("bc", "pendulum/expert", steps=10**9, eval_every=0, tensorboard=False)
    training.create(settings, build_config("bc", {"hidden": [4]}), tmp_path / "run")
    child = server.start(tmp_path / "run")
    assert child is not None and server.poll(child) is None
    os.kill(child, signal.SIGKILL)
    assert ended(server, child) == -signal.SIGKILL
    server.close()
    assert server.process.returncode == 0


def test_a_server_that_is_gone_is_replaced_by_processes(tmp_path: Path) -> None:
    launcher = launchers.Local(1)
    launcher._server = ForkServer()
    launcher._server.process.kill()
    launcher._server.process.wait()
    handle = launcher.start(tmp_path)
    assert not isinstance(handle[1], int)
    while (end := launcher.poll(handle)) is None:
        time.sleep(0.05)
    assert end.status == 2 and not end.died
    launcher.close()
