"""Processes that are forked from the tests' own, which has imported the library, so that it need
not be imported again for each of them: a server of jobs, and a command."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from experiments.__main__ import main
from experiments.runs import fork_server
from experiments.runs.environment import child_environment


class ForkedServer(fork_server.ForkServer):
    """`ForkServer` but for its start, which tests/experiments/runs/test_fork_server.py tests."""

    def __init__(self) -> None:
        (asked, ask), (told, tell) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ask)
            os.close(told)
            _serve(asked, tell)
        os.close(asked)
        os.close(tell)
        self.process = SimpleNamespace(  # type: ignore[assignment]
            stdin=os.fdopen(ask, "w"),
            stdout=os.fdopen(told),
            wait=lambda: os.waitpid(child, 0),
        )


def _serve(asked: int, tell: int) -> None:
    """What a new process would be: its own session, signals and streams; never returns."""
    try:
        os.setsid()
        _streams(asked, tell, os.open(os.devnull, os.O_WRONLY))
        os.environ |= child_environment()
        fork_server.serve()
    finally:
        os._exit(0)


class Ended(NamedTuple):
    status: int
    error: str


def command(arguments: list[str], before: Callable[[], None]) -> Ended:
    """`python -m experiments` with these arguments, in a process that calls `before` first: how it
    ends and what it writes to its standard error."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(told)
            nothing = os.open(os.devnull, os.O_RDWR)
            _streams(nothing, nothing, tell)
            before()
            status = main(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(tell)
    with os.fdopen(told) as said:
        error = said.read()
    return Ended(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), error)


def _streams(*sources: int) -> None:
    """Input, output and errors of this process, which are those of pytest no longer, and what
    signals do where nobody handles them."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, source in enumerate(sources):
        os.dup2(source, stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
