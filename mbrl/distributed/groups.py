"""Groups of workers that one controller drives by plain method calls. "HybridFlow: A Flexible and
Efficient RLHF Framework", arXiv 2409.19256: a method says how its arguments are
dispatched to the workers and how their results are collected.

Differences from the authors' code (verl): `metric` is dispatched without padding, as padded rows
would count in a metric; no meshes; futures are not fetched until `result`."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from mbrl.distributed import rows
from mbrl.distributed.cluster import connected, placed
from mbrl.errors import ConfigError, unknown_name

Mode = Literal["one_to_all", "all_to_all", "split", "metric", "rank_zero"]
MODES: dict[str, str] = {
    "one_to_all": "all workers get the same; a list of their results",
    "all_to_all": "arguments are lists, worker i gets element i; a list of their results",
    "split": "arguments are batches, each worker gets a share of the rows; one batch of results",
    "metric": "the same shares, without padding; a list of the workers' results",
    "rank_zero": "the first worker alone; its result",
}
F = TypeVar("F", bound=Callable[..., Any])


def dispatched(mode: Mode) -> Callable[[F], F]:
    """Marks a worker's method with one of `MODES`. Keyword arguments go to all workers as they are,
    whatever the mode."""
    if mode not in MODES:
        raise unknown_name("dispatch mode", mode, MODES)

    def mark(method: F) -> F:
        method.dispatch_mode = mode  # type: ignore[attr-defined]
        return method

    return mark


class WorkerError(RuntimeError):
    """What went wrong in the worker of `rank`."""

    def __init__(self, rank: int, method: str, text: str) -> None:
        super().__init__(rank, method, text)
        self.rank, self.method, self.text = rank, method, text

    def __str__(self) -> str:
        return f"worker {self.rank} failed in {self.method}:\n{self.text}"


class Host:
    """Where a worker lives: runs its methods, and counts the `seconds` that they took."""

    def __init__(self, kind: type, settings: Sequence[Any], rank: int, size: int) -> None:
        self.rank, self.seconds = rank, 0.0
        try:
            self.worker = kind(*settings, rank=rank, size=size)
        except Exception as error:
            self.worker, self.failed = None, WorkerError(rank, "__init__", traceback.format_exc())
            self.failed.__cause__ = error

    def call(self, method: str, keywords: dict[str, Any], *arguments: Any) -> Any:
        """The worker's `method`. Raises `WorkerError`."""
        if self.worker is None:
            raise self.failed
        began = time.perf_counter()
        try:
            return getattr(self.worker, method)(*arguments, **keywords)
        except Exception:
            raise WorkerError(self.rank, method, traceback.format_exc()) from None
        finally:
            self.seconds += time.perf_counter() - began

    def busy(self) -> float:
        return self.seconds


class Backend(Protocol):
    """Makes workers and calls them. What `call` and `apply` give are parts: results that may not
    be there yet."""

    def hosts(
        self, kind: type, settings: Sequence[Any], size: int, tag: str | None
    ) -> list[Any]: ...
    def call(self, host: Any, method: str, keywords: dict[str, Any], *arguments: Any) -> Any: ...
    def busy(self, hosts: Sequence[Any]) -> list[float]: ...
    def apply(self, function: Callable[..., Any], outputs: int, *arguments: Any) -> list[Any]: ...
    def value(self, part: Any, rank: int, method: str) -> Any: ...
    def close(self, hosts: Sequence[Any]) -> None: ...


@dataclass
class Done:
    """A result in this process, or the `error` in its place."""

    value: Any = None
    error: Exception | None = None


class InlineBackend:
    """This process: a call is over when it returns."""

    def hosts(self, kind: type, settings: Sequence[Any], size: int, tag: str | None) -> list[Host]:
        return [Host(kind, settings, rank, size) for rank in range(size)]

    def call(self, host: Host, method: str, keywords: dict[str, Any], *arguments: Any) -> Done:
        return _run(lambda *values: host.call(method, keywords, *values), arguments)

    def busy(self, hosts: Sequence[Host]) -> list[float]:
        return [host.busy() for host in hosts]

    def apply(self, function: Callable[..., Any], outputs: int, *arguments: Any) -> list[Done]:
        done = _run(function, arguments)
        if done.error is not None:
            return [done] * outputs
        return [done] if outputs == 1 else [Done(value) for value in done.value]

    def value(self, part: Done, rank: int, method: str) -> Any:
        if part.error is not None:
            raise part.error
        return part.value

    def close(self, hosts: Sequence[Host]) -> None:
        """There is nothing to end."""


def _run(function: Callable[..., Any], arguments: Sequence[Any]) -> Done:
    """The function of arguments of which some are results; the first error among them is its."""
    values = []
    for argument in arguments:
        if isinstance(argument, Done) and argument.error is not None:
            return argument
        values.append(argument.value if isinstance(argument, Done) else argument)
    try:
        return Done(function(*values))
    except Exception as error:
        return Done(error=error)


class RayBackend:
    """An actor a worker. Results stay where they were made until they are fetched. `cpus` of this
    machine, where no cluster is connected yet."""

    def __init__(self, cpus: int = 2, tags: dict[str, float] | None = None) -> None:
        self.ray = connected(cpus, "workers on Ray", tags)

    def hosts(self, kind: type, settings: Sequence[Any], size: int, tag: str | None) -> list[Any]:
        actor = self.ray.remote(num_cpus=1, **placed(self.ray, tag))(Host)
        return [actor.remote(kind, settings, rank, size) for rank in range(size)]

    def call(self, host: Any, method: str, keywords: dict[str, Any], *arguments: Any) -> Any:
        return host.call.remote(method, keywords, *arguments)

    def busy(self, hosts: Sequence[Any]) -> list[float]:
        seconds: list[float] = self.ray.get([host.busy.remote() for host in hosts])
        return seconds

    def apply(self, function: Callable[..., Any], outputs: int, *arguments: Any) -> list[Any]:
        task = self.ray.remote(num_cpus=0, num_returns=outputs)(function)
        parts = task.remote(*arguments)
        return [parts] if outputs == 1 else list(parts)

    def value(self, part: Any, rank: int, method: str) -> Any:
        try:
            return self.ray.get(part)
        except self.ray.exceptions.RayTaskError as error:
            # The error of the first worker, also where it came by way of others.
            cause: Any = error
            while isinstance(cause, self.ray.exceptions.RayTaskError):
                cause = cause.cause
            raise cause from None
        except self.ray.exceptions.RayError as error:
            raise WorkerError(rank, method, f"its process is gone: {error}") from None

    def close(self, hosts: Sequence[Any]) -> None:
        for host in hosts:
            self.ray.kill(host)


BACKENDS: dict[str, Callable[[], Backend]] = {"inline": InlineBackend, "ray": RayBackend}


@dataclass
class Future:
    """The results of a method of a group: parts, a worker each, which may not be there yet. It may
    be an argument of another method, also of another group on the same backend; then nothing is
    fetched by the controller. `rows` is the number of rows of a `split` result."""

    backend: Backend
    mode: Mode
    method: str
    parts: list[Any]
    rows: int = 0

    def result(self) -> Any:
        """What `MODES` says, fetched. Raises `WorkerError` with the rank of a worker that failed,
        and its traceback."""
        values = [self.backend.value(p, rank, self.method) for rank, p in enumerate(self.parts)]
        return _collected(self.mode, self.rows, *values)

    def whole(self) -> Any:
        """The result as one part that is not fetched."""
        if self.mode == "rank_zero":
            return self.parts[0]
        return self.backend.apply(_collected, 1, self.mode, self.rows, *self.parts)[0]


def _collected(mode: str, count: int, *values: Any) -> Any:
    if mode == "split":
        return rows.unpadded(values, count)
    return values[0] if mode == "rank_zero" else list(values)


class WorkerGroup:
    """`size` workers, `kind(*settings, rank=, size=)` each, on a backend by name or as it is.
    With a `tag` each is on a node that has it (see `placed`; without meaning for `inline`).

    `call(method, ...)` does what the method's mode says and returns a `Future`. Raises
    `ConfigError` for a method without a mode, or arguments that do not fit its mode."""

    def __init__(
        self,
        kind: type,
        settings: Sequence[Any] = (),
        *,
        size: int,
        backend: str | Backend = "inline",
        tag: str | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size is {size}, a group has at least 1 worker")
        if isinstance(backend, str):
            if backend not in BACKENDS:
                raise unknown_name("backend of a worker group", backend, BACKENDS)
            backend = BACKENDS[backend]()
        self.kind, self.size, self.backend = kind, size, backend
        self.hosts = backend.hosts(kind, settings, size, tag)

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Future:
        mode = getattr(getattr(self.kind, method, None), "dispatch_mode", None)
        if mode is None:
            known = [n for n in dir(self.kind) if hasattr(getattr(self.kind, n), "dispatch_mode")]
            raise unknown_name(f"method of {self.kind.__name__}", method, known)
        count = 0
        if mode in ("split", "metric"):
            count = self._rows(method, arguments)
            each = [self._shares(value, mode, count) for value in arguments]
        elif mode == "all_to_all":
            each = [self._elements(method, value) for value in arguments]
        else:
            each = [[_whole(value)] * self.size for value in arguments]
        hosts = self.hosts[:1] if mode == "rank_zero" else self.hosts
        parts = [
            self.backend.call(host, method, keywords, *(values[rank] for values in each))
            for rank, host in enumerate(hosts)
        ]
        return Future(self.backend, mode, method, parts, count)

    def _rows(self, method: str, arguments: Sequence[Any]) -> int:
        """The number of rows that the arguments have."""
        counts = set()
        for value in arguments:
            if isinstance(value, Future) and value.mode != "split":
                raise ConfigError(
                    f"{method} splits rows, and the result of {value.method} is no batch but that "
                    f"of a {value.mode} method; fetch it with result()"
                )
            counts.add(value.rows if isinstance(value, Future) else rows.count(value))
        if len(counts) != 1 or counts == {0}:
            raise ConfigError(
                f"{method} splits rows: its arguments have {sorted(counts)}, and must all have the "
                "same number, at least 1"
            )
        return counts.pop()

    def _shares(self, value: Any, mode: str, count: int) -> list[Any]:
        """A share of the rows for each worker."""
        padded = mode == "split"
        shares = (rows.padded_shares if padded else rows.even_shares)(count, self.size)
        if not isinstance(value, Future):
            return rows.split(value, shares)
        if len(value.parts) == self.size and (padded or count % self.size == 0):
            return value.parts
        return self.backend.apply(_resplit, self.size, shares, count, *value.parts)

    def _elements(self, method: str, value: Any) -> list[Any]:
        """An element for each worker."""
        each = value
        if isinstance(value, Future):
            each = value.parts if value.mode in ("one_to_all", "all_to_all", "metric") else []
        if not isinstance(each, Sequence) or len(each) != self.size:
            raise ConfigError(
                f"{method} takes lists with an element for each of {self.size} workers, or such "
                "results"
            )
        return list(each)

    def busy(self) -> list[float]:
        """Seconds that each worker's methods took so far."""
        return self.backend.busy(self.hosts)

    def close(self) -> None:
        self.backend.close(self.hosts)


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, Future) else value


def _resplit(shares: Sequence[Sequence[int]], count: int, *parts: Any) -> Any:
    """Rows in other shares than they were in."""
    again = rows.split(rows.unpadded(parts, count), shares)
    return again if len(again) > 1 else again[0]
