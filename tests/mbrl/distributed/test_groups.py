"""Worker groups: what is split comes back as it was, futures pass unfetched, errors name ranks."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mbrl.distributed import rows
from mbrl.distributed.groups import InlineBackend, RayBackend, WorkerError, WorkerGroup, dispatched
from mbrl.errors import ConfigError


class Worker:
    def __init__(self, offset: float = 0.0, *, rank: int, size: int) -> None:
        self.offset, self.rank, self.size, self.shares = offset, rank, size, []

    @dispatched("split")
    def shifted(self, x: Any) -> Any:
        self.shares.append(rows.count(x))
        return x + self.offset if not isinstance(x, list) else [v + self.offset for v in x]

    @dispatched("split")
    def both(self, batch: dict[str, Any], y: Any, *, scale: float) -> dict[str, Any]:
        return {"sum": (batch["x"] + y) * scale}

    @dispatched("metric")
    def total(self, x: Any) -> float:
        return float(sum(x))

    @dispatched("one_to_all")
    def add(self, value: Any) -> float:
        self.offset += float(np.asarray(value).sum())
        return self.offset

    @dispatched("all_to_all")
    def named(self, name: str) -> str:
        return f"{self.rank} of {self.size}: {name}"

    @dispatched("rank_zero")
    def first(self, value: Any) -> Any:
        return self.rank, value

    @dispatched("split")
    def breaks(self, x: Any) -> Any:
        if self.rank == 1:
            raise ValueError("no such thing")
        return x

    @dispatched("split")
    def drops(self, x: Any) -> Any:
        return x[1:]

    def unmarked(self) -> None: ...


@given(count=st.integers(1, 40), size=st.integers(1, 9), other=st.integers(1, 9))
def test_split_and_collect_are_the_identity(count: int, size: int, other: int) -> None:
    """For any number of rows and of workers, by way of a second group too."""
    one, two = WorkerGroup(Worker, size=size), WorkerGroup(Worker, size=other)
    x = torch.arange(float(count))
    future = one.call("shifted", x)
    assert torch.equal(future.result(), x)
    assert torch.equal(two.call("shifted", future).result(), x)
    assert two.call("total", future).result() == [
        float(part.sum()) for part in np.array_split(np.arange(count), other)
    ]
    # Padding: all workers have equally many rows, and no more than are needed.
    assert {tuple(host.worker.shares) for host in one.hosts} == {(-(-count // size),)}


def test_batches_may_be_arrays_lists_and_mappings() -> None:
    group = WorkerGroup(Worker, (2.0,), size=3)
    assert group.call("shifted", [1.0, 2.0]).result() == [3.0, 4.0]
    assert np.array_equal(group.call("shifted", np.arange(4)).result(), np.arange(4) + 2.0)
    x = torch.arange(5.0)
    done = group.call("both", {"x": x}, x, scale=2.0).result()
    assert done.keys() == {"sum"} and torch.equal(done["sum"], 4 * x)


def test_the_other_modes() -> None:
    group = WorkerGroup(Worker, size=2)
    assert group.call("add", 3).result() == [3.0, 3.0]
    names = group.call("named", ["a", "b"])
    assert names.result() == ["0 of 2: a", "1 of 2: b"]
    assert group.call("first", names).result() == (0, names.result())
    assert group.call("named", names).result()[1] == "1 of 2: 1 of 2: b"
    assert group.call("first", 7).result() == (0, 7)
    assert group.call("add", group.call("shifted", np.ones(3))).result() == [15.0, 15.0]
    assert all(seconds > 0 for seconds in group.busy())


def test_what_does_not_fit_is_refused() -> None:
    group = WorkerGroup(Worker, size=2)
    with pytest.raises(ConfigError, match="at least 1 worker"):
        WorkerGroup(Worker, size=0)
    with pytest.raises(ConfigError, match="unknown backend of a worker group 'rya'"):
        WorkerGroup(Worker, size=1, backend="rya")
    with pytest.raises(ConfigError, match="unknown method of Worker 'unmarked'"):
        group.call("unmarked")
    with pytest.raises(ConfigError, match="unknown dispatch mode 'all'"):
        dispatched("all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"its arguments have \[2, 3\]"):
        group.call("both", {"x": [1, 2]}, [1, 2, 3], scale=1.0)
    with pytest.raises(ConfigError, match=r"its arguments have \[0\]"):
        group.call("shifted", torch.zeros(0))
    with pytest.raises(ConfigError, match="different numbers of rows"):
        group.call("shifted", {"x": [1], "y": [1, 2]})
    with pytest.raises(ConfigError, match="has no rows"):
        group.call("shifted", 3)
    with pytest.raises(ConfigError, match="an element for each of 2 workers"):
        group.call("named", ["a"])
    with pytest.raises(ConfigError, match="fetch it with result"):
        group.call("shifted", group.call("add", 1))
    with pytest.raises(ConfigError, match="one a row, in order"):
        group.call("drops", torch.zeros(4)).result()


def test_an_error_names_its_worker_also_by_way_of_others() -> None:
    group = WorkerGroup(Worker, size=3)
    broken = group.call("breaks", torch.zeros(6))
    with pytest.raises(WorkerError, match=r"worker 1 failed in breaks(.|\n)*no such thing"):
        broken.result()
    with pytest.raises(WorkerError, match="worker 1 failed in breaks"):
        group.call("shifted", broken).result()
    with pytest.raises(WorkerError, match="worker 1 failed in breaks"):
        WorkerGroup(Worker, size=2).call("first", broken).result()
    with pytest.raises(WorkerError, match="worker 0 failed in __init__"):
        WorkerGroup(Worker, (1, 2, 3), size=1).call("add", 1).result()


class Sleeper:
    """A worker that fails or ends its process on demand."""

    def __init__(self, *, rank: int, size: int) -> None:
        self.rank = rank

    @dispatched("one_to_all")
    def dies(self) -> None:
        if self.rank == 1:
            import os

            os._exit(1)


@pytest.mark.long
def test_ray_gives_the_same_and_fetches_nothing_between() -> None:
    ray = pytest.importorskip("ray")
    backend = RayBackend(4)
    groups = {
        name: (
            WorkerGroup(Worker, (1.0,), size=2, backend=b),
            WorkerGroup(Worker, size=1, backend=b),
        )
        for name, b in (("ray", backend), ("inline", InlineBackend()))
    }
    try:
        results = {}
        for name, (two, one) in groups.items():
            x = torch.arange(5, dtype=torch.float64)
            fetched: list[Any] = []
            plain = ray.get
            ray.get = lambda part, plain=plain, fetched=fetched: fetched.append(part) or plain(part)
            try:
                first = two.call("shifted", x)
                second = one.call("shifted", first)
                third = two.call("shifted", second)
                assert fetched == []
            finally:
                ray.get = plain
            metric = two.call("total", third).result()
            named = two.call("named", ["a", "b"]).result()
            results[name] = (
                third.result().tolist(),
                metric,
                named,
                one.call("add", third).result(),
            )
            with pytest.raises(WorkerError, match=r"worker 1 failed in breaks(.|\n)*no such thing"):
                one.call("shifted", two.call("breaks", x)).result()
        assert results["ray"] == results["inline"]
    finally:
        for group in groups["ray"]:
            group.close()
    mortal = WorkerGroup(Sleeper, size=2, backend=backend)
    with pytest.raises(WorkerError, match="worker 1 failed in dies:\nits process is gone"):
        mortal.call("dies").result()
    mortal.close()
    with pytest.raises(ConfigError, match="no node of the Ray cluster has the tag 'learn'"):
        WorkerGroup(Worker, size=1, backend=backend, tag="learn")
    ray.shutdown()
    tagged = WorkerGroup(Worker, size=1, backend=RayBackend(1, {"learn": 1}), tag="learn")
    assert tagged.call("add", 1).result() == [1.0]
    ray.shutdown()
