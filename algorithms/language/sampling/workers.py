"""Who carries conversations on: this process, others on this machine, or Ray's, behind one
interface. Pieces of work go out, and come back when they are done, or are lost with their
worker."""

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np
import torch

from algorithms.language.learner import ModelConfig, build_model
from algorithms.language.models.quantised import Precision, in_precision
from algorithms.language.sampling.conversation import Conversation, GenerationLimits, advance
from algorithms.language.sampling.rewards import Place, with_rewards
from algorithms.language.tasks import text_task
from mbrl.distributed.cluster import connected
from mbrl.errors import ConfigError

Weights = dict[str, np.ndarray]
PATIENCE = 3  # deaths in a row, for each worker, before any work is done


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker needs to know once: the model's settings, the task, how conversations are held,
    how many tokens each goes on in one piece of work (None: to its end), and CPU threads."""

    model: ModelConfig
    task: str
    limits: GenerationLimits
    budget: int | None = None
    threads: int = 1
    device: str = "cpu"
    precision: Precision = "full"
    rewards: Place = "inline"
    reward_retries: int = 0


@dataclass(frozen=True)
class Work:
    """A piece of work: conversations, as `Conversation.plain` gives them, to carry on with the
    policy of `version`."""

    number: int
    version: int
    rows: list[dict[str, Any]]


class Workers(Protocol):
    """`idle` workers may be given work; `arrived` waits until at least one piece is back, and gives
    the pieces that are with their rows, or None for those that are lost."""

    def idle(self) -> int: ...
    def give(self, work: Work, weights: Callable[[], Weights]) -> None: ...
    def arrived(self) -> list[tuple[int, list[dict[str, Any]] | None]]: ...
    def close(self) -> None: ...


class WorkerModel:
    """A worker's own copy of the model."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config, self.version = config, -1
        device = torch.device(config.device)
        self.task = with_rewards(text_task(config.task), config.rewards, config.reward_retries)
        self.model, self.codec = build_model(config.model, torch.Generator().manual_seed(0), device)

    def generate(self, work: Work, weights: Weights | None) -> list[dict[str, Any]]:
        """The rows of `work` after it; new `weights` come first."""
        if weights is not None:
            state = {name: torch.from_numpy(value) for name, value in weights.items()}
            self.model.load_state_dict(state, strict=False)
            self.version = work.version
        assert self.version == work.version
        rows = [Conversation.from_plain(row) for row in work.rows]
        config = self.config
        advance(
            in_precision(self.model, config.precision),
            self.codec,
            self.task,
            rows,
            config.limits,
            version=work.version,
            budget=config.budget,
        )
        return [row.plain() for row in rows]


class Inline:
    """This process: every piece is done when it is given."""

    def __init__(self, config: WorkerConfig, count: int = 1) -> None:
        self.model, self.count = WorkerModel(config), count
        self.done: list[tuple[int, list[dict[str, Any]] | None]] = []

    def idle(self) -> int:
        return self.count - len(self.done)

    def give(self, work: Work, weights: Callable[[], Weights]) -> None:
        new = weights() if self.model.version != work.version else None
        self.done.append((work.number, self.model.generate(work, new)))

    def arrived(self) -> list[tuple[int, list[dict[str, Any]] | None]]:
        return [self.done.pop(0)] if self.done else []

    def close(self) -> None:
        """There is nothing to end."""


class Processes:
    """Worker processes of this machine. One that dies is replaced, and its work lost. Raises
    `RuntimeError` for what went wrong inside one, and where several in a row die before any work
    is done: the next ones would as well."""

    def __init__(self, config: WorkerConfig, count: int) -> None:
        if config.rewards == "ray":
            raise ConfigError(
                "rewards is 'ray', and processes of this machine are not Ray's; take workers of "
                "kind ray, or rewards 'inline'"
            )
        self.config = config
        self.context, self.deaths = multiprocessing.get_context("spawn"), 0
        self.workers = [self._hire() for _ in range(count)]

    def _hire(self) -> "Hired":
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=serve, args=(theirs, self.config), daemon=True)
        process.start()
        theirs.close()
        return Hired(process, ours)

    def idle(self) -> int:
        return sum(w.at is None for w in self.workers)

    def give(self, work: Work, weights: Callable[[], Weights]) -> None:
        free = [w for w in self.workers if w.at is None]
        # The one that has the weights already, if there is one.
        worker = next((w for w in free if w.version == work.version), free[0])
        new = weights() if worker.version != work.version else None
        worker.at, worker.version = work.number, work.version
        with contextlib.suppress(OSError):  # it has died; `arrived` finds out
            worker.pipe.send((work, new))

    def arrived(self) -> list[tuple[int, list[dict[str, Any]] | None]]:
        busy = {w.pipe: w for w in self.workers if w.at is not None}
        pieces: list[tuple[int, list[dict[str, Any]] | None]] = []
        for pipe in wait(list(busy)) if busy else []:
            worker = busy[pipe]  # type: ignore[index]
            number = worker.at
            assert number is not None
            try:
                rows = worker.pipe.recv()
                worker.at, self.deaths = None, 0
            except (EOFError, OSError):
                rows = None
                worker.process.join()
                self.deaths += 1
                if self.deaths > PATIENCE * len(self.workers):
                    raise RuntimeError(
                        f"{self.deaths} workers died one after the other before one had finished "
                        "its work; a script that starts workers does so under "
                        "`if __name__ == '__main__':`, and memory may be short"
                    ) from None
                self.workers[self.workers.index(worker)] = self._hire()
            if isinstance(rows, Failure):
                raise RuntimeError(f"a worker failed:\n{rows.text}")
            pieces.append((number, rows))
        return pieces

    def close(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
            worker.process.join()
            worker.pipe.close()


@dataclass
class Hired:
    """A worker process, our end of the pipe, the number of its work and its policy's version."""

    process: Any
    pipe: Connection
    at: int | None = None
    version: int = -1


@dataclass(frozen=True)
class Failure:
    """What a worker sends in place of its work."""

    text: str


def serve(pipe: Connection, config: WorkerConfig) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which saves first
    torch.set_num_threads(config.threads)
    model = WorkerModel(config)
    with contextlib.suppress(EOFError, OSError):  # the trainer is gone
        while True:
            work, weights = pipe.recv()
            try:
                done: Any = model.generate(work, weights)
            except Exception:  # the trainer is to know; it would happen again
                done = Failure(traceback.format_exc())
            pipe.send(done)


class RayWorkers:
    """Actors of Ray, on the cluster it is connected to or on one on this machine."""

    def __init__(self, config: WorkerConfig, count: int) -> None:
        ray = connected(count, "workers of kind ray")
        self.ray, self.config, self.count = ray, config, count
        self.kind = ray.remote(num_cpus=1)(WorkerModel)
        self.free = [self.kind.remote(config) for _ in range(count)]
        self.versions = {id(actor): -1 for actor in self.free}
        self.out: dict[Any, tuple[int, Any]] = {}

    def idle(self) -> int:
        return len(self.free)

    def give(self, work: Work, weights: Callable[[], Weights]) -> None:
        actor = next((a for a in self.free if self.versions[id(a)] == work.version), self.free[0])
        self.free.remove(actor)
        new = weights() if self.versions[id(actor)] != work.version else None
        self.versions[id(actor)] = work.version
        self.out[actor.generate.remote(work, new)] = (work.number, actor)

    def arrived(self) -> list[tuple[int, list[dict[str, Any]] | None]]:
        if not self.out:
            return []
        ready, _ = self.ray.wait(list(self.out), num_returns=1)
        pieces: list[tuple[int, list[dict[str, Any]] | None]] = []
        for reference in ready:
            number, actor = self.out.pop(reference)
            try:
                pieces.append((number, self.ray.get(reference)))
            except self.ray.exceptions.RayTaskError as error:
                raise RuntimeError(f"a worker failed:\n{error}") from error
            except self.ray.exceptions.RayError:
                pieces.append((number, None))
                actor = self.kind.remote(self.config)
                self.versions[id(actor)] = -1
            self.free.append(actor)
        return pieces

    def close(self) -> None:
        for actor in [*self.free, *(actor for _, actor in self.out.values())]:
            self.ray.kill(actor)


KINDS: dict[str, Callable[[WorkerConfig, int], Workers]] = {
    "inline": Inline,
    "processes": Processes,
    "ray": RayWorkers,
}
