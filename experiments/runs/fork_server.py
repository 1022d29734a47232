"""A process that has imported the library and forks one child for each job, so that no job pays for
the imports and all share their memory. Linux only; elsewhere a job is a process of its own.

Run as a script it reads lines on its input and answers each with one: `start FOLDER` with the
child's process id, `poll ID` with its exit status (minus a signal's number), or `-` while it runs.
"""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from experiments.runs.environment import child_environment

PRELOADED = ("experiments.cli.resume", "experiments.runs.training", "experiments.runs.study")


class ForkServer:
    """The parent's side."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "experiments.runs.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C reaches the parent alone
            text=True,
            env=os.environ | child_environment(),
        )

    def start(self, folder: Path) -> int | None:
        """The process id of a child that works in `folder`; None where the server is gone."""
        answer = self._ask(f"start {folder.resolve()}")
        return int(answer) if answer else None

    def poll(self, child: int) -> int | None:
        """The exit status of a child, None while it runs; that of a killed process where the
        server is gone and the child too."""
        answer = self._ask(f"poll {child}")
        if answer:
            return None if answer == "-" else int(answer)
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return -signal.SIGKILL
        return None

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(line, file=self.process.stdin, flush=True)
            return self.process.stdout.readline().strip()
        except OSError:
            return ""

    def close(self) -> None:
        """Let the server end; children go on."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue
        self.process.wait()


def serve() -> None:
    """The server's side: until the parent is gone."""
    for name in PRELOADED:
        importlib.import_module(name)
    from mbrl.native.build import library

    if library() is None:  # then PyTorch's own optimisers step, and import this for a second
        importlib.import_module("torch._dynamo")
    ended: dict[int, int] = {}
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "start":
            child = os.fork()
            if child == 0:
                work(Path(value))
            print(child, flush=True)
            continue
        child = int(value)
        if child not in ended:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended[child] = os.waitstatus_to_exitcode(status)
        print(ended.get(child, "-"), flush=True)


def work(folder: Path) -> None:
    """The child: `python -m experiments resume FOLDER --quiet`, its output in the folder's log."""
    status = 1
    try:
        os.setsid()
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, source in enumerate((nothing, log, log)):
            os.dup2(source, stream)
        sys.stdin = open(os.devnull)  # noqa: SIM115  the pipe is the server's
        from experiments.__main__ import main

        status = main(["resume", str(folder), "--quiet"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
