"""Jobs on Ray: the same folders, on a cluster whose machines share the folders' file system."""

import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.runs import jobs
from experiments.runs.pool import Ended
from mbrl.callbacks import Interrupted
from mbrl.errors import ConfigError


class Ray:
    """One Ray task of one CPU for each job; a worker that is lost counts as a death, and the pool
    continues its job from the checkpoint."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        if workers < 1:
            raise ConfigError(f"workers is {workers}, it must be at least 1")
        try:
            import ray
        except ImportError:
            raise ConfigError(
                "the launcher `ray` needs Ray; install it with `pip install 'longreach[ray]'`, or "
                "use --launcher local"
            ) from None
        self.workers, self.ray = workers, ray
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": _path()}
        options: dict[str, Any] = {"num_cpus": workers} if address is None else {"address": address}
        try:
            ray.init(
                **options,
                runtime_env={"env_vars": environment},
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

    def poll(self, handle: Any) -> Ended | None:
        ready, _ = self.ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            status, text = self.ray.get(handle)
        except self.ray.exceptions.RayError as error:
            return Ended(1, True, str(error)[-2000:])
        return Ended(status, False, text)

    def stop(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self.ray.cancel(handle)  # KeyboardInterrupt in the task, which saves first
        if handles:
            self.ray.wait(list(handles), num_returns=len(handles), timeout=120)

    def close(self) -> None:
        self.ray.shutdown()


def _path() -> str:
    """Where this library is, for workers that start elsewhere."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def _work(folder: str) -> tuple[int, str]:
    """Runs in the worker: exit status and error text."""
    try:
        jobs.resume(Path(folder), quiet=True)
    except Interrupted:
        return 130, "stopped"
    except Exception:
        return 1, traceback.format_exc()[-2000:]
    return 0, ""
