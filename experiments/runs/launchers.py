"""Where jobs run: processes of this machine, or Ray on a cluster whose machines share the folders'
file system."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from experiments.runs import jobs
from experiments.runs.environment import child_environment
from experiments.runs.fork_server import ForkServer
from mbrl.agent import resolve_device
from mbrl.callbacks import Interrupted
from mbrl.errors import ConfigError, install_command

Name = Literal["local", "ray"]


@dataclass(frozen=True)
class Exit:
    """How a job's process ended: `died` if it was killed, else with its exit `status`."""

    status: int
    died: bool
    text: str = ""  # the end of its log


class Launcher(Protocol):
    """Where jobs run."""

    workers: int

    def start(self, folder: Path) -> Any: ...
    def poll(self, handle: Any) -> Exit | None: ...
    def stop(self, handles: Sequence[Any]) -> None:
        """Let the jobs save and exit, and wait for them."""
        ...

    def close(self) -> None: ...


def launcher(name: Name, workers: int, address: str | None = None) -> Launcher:
    """`local`, or `ray` on a running cluster's `address` (None: one on this machine)."""
    return Ray(workers, address) if name == "ray" else Local(workers)


def require_device(device: str, launcher: Name = "local") -> None:
    """Raise `ConfigError` where jobs of that launcher could not have `device`."""
    if launcher == "local":
        resolve_device(device)
    elif device != "cpu":
        raise ConfigError(
            f"device is {device!r}, and the launcher `ray` gives a job one processor alone; use "
            "--launcher local, or --device cpu"
        )


class Local:
    """One process of this machine for each job, on Linux forked from one that has imported the
    library."""

    def __init__(self, workers: int) -> None:
        self.workers = _positive(workers)
        self._server: ForkServer | None = None

    def start(self, folder: Path) -> "Handle":
        if sys.platform == "linux":
            self._server = self._server or ForkServer()
            child = self._server.start(folder)
            if child is not None:
                return folder, child
        command = [sys.executable, "-P", "-m", "experiments", "resume", str(folder), "--quiet"]
        # A session of its own, so that Ctrl-C reaches this process alone, which then stops all.
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | child_environment(),
            )
        return folder, process

    def poll(self, handle: "Handle") -> Exit | None:
        folder, process = handle
        if isinstance(process, int):
            assert self._server is not None
            status = self._server.poll(process)
        else:
            status = process.poll()
        if status is None:
            return None
        text = (folder / "log.txt").read_text(errors="replace")[-2000:]
        return Exit(status, status < 0, text)

    def stop(self, handles: Sequence["Handle"]) -> None:
        for _, process in handles:
            number = process if isinstance(process, int) else process.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
        while any(self.poll(handle) is None for handle in handles):
            time.sleep(0.05)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


Handle = tuple[Path, "int | subprocess.Popen[bytes]"]


class Ray:
    """One Ray task of one CPU for each job. A lost worker counts as killed, so that the pool
    continues its job from the checkpoint."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        self.workers = _positive(workers)
        try:
            import ray
        except ImportError:
            raise ConfigError(
                f"the launcher `ray` needs Ray; install it with `{install_command('ray')}`, or use "
                "--launcher local"
            ) from None
        self.ray = ray
        options = cluster(workers, address)
        try:
            ray.init(
                **options,
                runtime_env={"env_vars": child_environment()},
                logging_level="ERROR",
                log_to_driver=False,
                include_dashboard=False if address is None else None,
            )
        except ConnectionError as error:
            raise ConfigError(
                f"no Ray cluster answers at {address!r} ({error}); start one with `ray start "
                "--head`, or leave the address out for a local one"
            ) from None
        # One task a process: a thread count or a lock never passes from job to job.
        self._work = ray.remote(num_cpus=1, max_retries=0, max_calls=1)(_work)

    def start(self, folder: Path) -> Any:
        return self._work.remote(str(folder.resolve()))

    def poll(self, handle: Any) -> Exit | None:
        ready, _ = self.ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            status, text = self.ray.get(handle)
        except self.ray.exceptions.RayError as error:
            return Exit(1, True, str(error)[-2000:])
        return Exit(status, False, text)

    def stop(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self.ray.cancel(handle)  # KeyboardInterrupt in the task, which saves first
        if handles:
            self.ray.wait(list(handles), num_returns=len(handles), timeout=120)

    def close(self) -> None:
        self.ray.shutdown()


def cluster(workers: int, address: str | None = None) -> dict[str, Any]:
    """What `ray.init` is told: the cluster at `address`, or (None) one of this machine's own that
    nobody else can reach."""
    if address is not None:
        return {"address": address}
    return {"num_cpus": workers, "_node_ip_address": "127.0.0.1"}


def _positive(workers: int) -> int:
    if workers < 1:
        raise ConfigError(f"workers is {workers}, it must be at least 1")
    return workers


def _work(folder: str) -> tuple[int, str]:
    """Runs in the worker: exit status and error text."""
    try:
        jobs.resume(Path(folder), quiet=True)
    except Interrupted:
        return 130, "stopped"
    except Exception:
        return 1, traceback.format_exc()[-2000:]
    return 0, ""
