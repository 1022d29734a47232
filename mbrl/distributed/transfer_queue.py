"""A table that the stages of a training round pass samples through. "AsyncFlow: An Asynchronous
Streaming RL Framework for Efficient LLM Post-Training", arXiv 2507.01663 (TransferQueue): rows are
samples, columns are fields; a stage gets rows as soon as the fields that it reads are there,
whatever other stages have got.

Differences from the authors' code: one place for status and values; rows that are too old by the
version bound are dropped when the version moves on; the paper defers new weights within it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mbrl.distributed.cluster import connected
from mbrl.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Stage:
    """A consumer: the fields that it `reads`, and whether it wants whole `groups`."""

    reads: tuple[str, ...]
    groups: bool = False


class Taken(NamedTuple):
    """`rows` by number in ascending order, the policy's version that each began under, and the
    values of the fields that the stage reads, in that order."""

    rows: list[int]
    versions: list[int]
    values: dict[str, list[Any]]


@dataclass
class Row:
    """A sample: the policy's `version` when it began, its fields, and who has consumed it."""

    version: int
    values: dict[str, Any] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)


class TransferQueue:
    """Rows with the columns `fields`, for `stages` by name, in groups of `group` rows that are
    opened together. With a `staleness` no stage gets a row that began more than so many versions
    ago. A row that all stages have got is deleted. Raises `ConfigError` for stages that read
    unknown fields, or a group below 1."""

    def __init__(
        self,
        fields: Sequence[str],
        stages: Mapping[str, Stage],
        *,
        group: int = 1,
        staleness: int | None = None,
    ) -> None:
        if group < 1 or not stages or (staleness is not None and staleness < 0):
            raise ConfigError(
                f"group is {group} (at least 1), staleness {staleness} (None, or 0 or more), and "
                f"there are {len(stages)} stages (at least 1)"
            )
        for name in (name for stage in stages.values() for name in stage.reads):
            if name not in fields:
                raise unknown_name("field", name, fields)
        self.fields, self.stages = tuple(fields), dict(stages)
        self.group, self.staleness = group, staleness
        self.version = self.opened = self.dropped = 0
        self.table: dict[int, Row] = {}  # in ascending order

    def open(self, groups: int = 1) -> list[int]:
        """The numbers of new, empty rows, which begin under the current version."""
        numbers = list(range(self.opened, self.opened + groups * self.group))
        self.opened += len(numbers)
        self.table |= {number: Row(self.version) for number in numbers}
        return numbers

    def put(self, rows: Sequence[int], **values: Sequence[Any]) -> None:
        """Fill fields of `rows`, one value a row. Rows that were dropped meanwhile are passed over.
        Raises `ConfigError` for a field that is unknown or filled already, a row that was never
        opened or comes twice, or another number of values."""
        twice = [number for number, count in Counter(rows).items() if count > 1]
        if twice:
            raise ConfigError(f"row {twice[0]} comes twice; a row has one value of a field")
        for name, column in values.items():
            if name not in self.fields:
                raise unknown_name("field", name, self.fields)
            if len(column) != len(rows):
                raise ConfigError(f"{name} has {len(column)} values for {len(rows)} rows")
        for number in rows:
            if not 0 <= number < self.opened:
                raise ConfigError(f"row {number} was never opened; open() gives their numbers")
            filled = [n for n in values if n in self.table.get(number, Row(0)).values]
            if filled:
                raise ConfigError(f"{filled[0]} of row {number} is there already")
        for at, number in enumerate(rows):
            if number in self.table:
                self.table[number].values |= {name: values[name][at] for name in values}

    def ready(self, stage: str) -> list[int]:
        """The rows that `stage` could get now."""
        if stage not in self.stages:
            raise unknown_name("stage", stage, self.stages)
        reads = self.stages[stage].reads
        rows = [
            number
            for number, row in self.table.items()
            if stage not in row.consumed and all(name in row.values for name in reads)
        ]
        if not self.stages[stage].groups:
            return rows
        sizes: dict[int, int] = {}
        for number in rows:
            sizes[number // self.group] = sizes.get(number // self.group, 0) + 1
        return [number for number in rows if sizes[number // self.group] == self.group]

    def take(self, stage: str, count: int, *, fewer: bool = False) -> Taken | None:
        """The first `count` rows that `stage` can get, which it will not get again; None while
        there are not so many. With `fewer` those that are there, if any. Raises `ConfigError` for
        a count that is not of whole groups, where the stage wants them."""
        rows = self.ready(stage)
        if count < 1 or (self.stages[stage].groups and count % self.group):
            raise ConfigError(
                f"count is {count}, it must be at least 1, and for a stage of whole groups a "
                f"multiple of {self.group}"
            )
        if not rows or (len(rows) < count and not fewer):
            return None
        rows = rows[:count]
        reads = self.stages[stage].reads
        taken = Taken(
            rows,
            [self.table[number].version for number in rows],
            {name: [self.table[number].values[name] for number in rows] for name in reads},
        )
        for number in rows:
            row = self.table[number]
            row.consumed.add(stage)
            if len(row.consumed) == len(self.stages):
                del self.table[number]
        return taken

    def advance(self) -> list[int]:
        """The policy has its next version; the rows that are too old now and were dropped, whole
        groups."""
        self.version += 1
        if self.staleness is None:
            return []
        oldest = self.version - self.staleness
        old = [number for number, row in self.table.items() if row.version < oldest]
        for number in old:
            del self.table[number]
        self.dropped += len(old)
        return old


class RayTransferQueue:
    """The same in an actor of Ray, for any process that this object is sent to. Values stay where
    they were made; the actor has references to them, and who takes rows fetches their values. They
    are lost with the process that put them."""

    def __init__(
        self,
        fields: Sequence[str],
        stages: Mapping[str, Stage],
        *,
        group: int = 1,
        staleness: int | None = None,
        cpus: int = 2,
    ) -> None:
        ray = connected(cpus, "queues on Ray")
        TransferQueue(fields, stages, group=group, staleness=staleness)  # raises here, not there
        actor = ray.remote(num_cpus=0)(TransferQueue)
        self.actor = actor.remote(fields, stages, group=group, staleness=staleness)

    def open(self, groups: int = 1) -> list[int]:
        rows: list[int] = self._call("open", groups)
        return rows

    def put(self, rows: Sequence[int], **values: Sequence[Any]) -> None:
        import ray

        stored = {name: [ray.put(value) for value in column] for name, column in values.items()}
        self._call("put", rows, **stored)

    def ready(self, stage: str) -> list[int]:
        rows: list[int] = self._call("ready", stage)
        return rows

    def take(self, stage: str, count: int, *, fewer: bool = False) -> Taken | None:
        import ray

        taken = self._call("take", stage, count, fewer=fewer)
        if taken is None:
            return None
        return Taken(
            taken.rows, taken.versions, {n: ray.get(column) for n, column in taken.values.items()}
        )

    def advance(self) -> list[int]:
        rows: list[int] = self._call("advance")
        return rows

    def close(self) -> None:
        import ray

        ray.kill(self.actor)

    def _call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Raises what the method raised."""
        import ray

        try:
            return ray.get(getattr(self.actor, method).remote(*arguments, **keywords))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
