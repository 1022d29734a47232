"""A training system of samplers and a trainer, by the events of an artificial clock, or with a real
one by actors of Ray that sleep. One controller (`Controller`) drives both, so that what is measured
with a few workers can be held against the simulation before that is believed for many.

Conversations come in groups and take a random time with a heavy tail; the trainer learns from
`batch` whole groups at once, each at most `staleness` versions after it began."""

import asyncio
import heapq
import itertools
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mbrl.distributed.cluster import connected
from mbrl.errors import ConfigError


@dataclass(frozen=True)
class System:
    """What RollArt (arXiv 2512.22560) has: late groups given up, redundant conversations, phases
    mapped to machines made for them. The rules are those of
    `algorithms.language.sampling.async_collector` with `drop_late`; staleness 0 is synchronous.

    `workers` samplers; groups of `group` conversations and `redundancy` more; an update on
    `batch` groups takes `update` seconds. A conversation takes a lognormal time of median `median`
    seconds whose logarithm has deviation `spread`, cut into `pieces` after each of which its state
    is safe. A worker dies after an exponential time at work, `death_every` seconds in the mean
    (None: never), and its replacement is there `restart` seconds later.

    With a `slowdown` there are two kinds of workers, as many of each, and every other piece of a
    conversation is made for the other kind: with `affinity` it waits for a worker of its kind,
    else it takes any, and `slowdown` times as long on the wrong one."""

    workers: int
    batch: int = 4
    group: int = 4
    redundancy: int = 0
    staleness: int = 0
    update: float = 0.1
    median: float = 0.1
    spread: float = 1.0
    pieces: int = 1
    death_every: float | None = None
    restart: float = 1.0
    slowdown: float = 1.0
    affinity: bool = False

    def __post_init__(self) -> None:
        counts = (self.workers, self.batch, self.group, self.pieces)
        if min(counts) < 1 or min(self.redundancy, self.staleness) < 0 or self.slowdown < 1:
            raise ConfigError(
                f"workers, batch, group and pieces are {counts} (each at least 1), redundancy "
                f"{self.redundancy} and staleness {self.staleness} (0 or more), slowdown "
                f"{self.slowdown} (1 or more)"
            )
        if self.two_kinds and (self.workers % 2 or self.pieces < 2):
            raise ConfigError(
                f"with a slowdown workers are of two kinds: workers is {self.workers}, it must be "
                f"even, and pieces is {self.pieces}, it must be at least 2"
            )

    @property
    def two_kinds(self) -> bool:
        return self.slowdown > 1 or self.affinity


@dataclass
class Conversation:
    """A conversation: its group's number, its whole `length` in seconds, its piece, and the seconds
    that workers `spent` on its finished pieces."""

    group: int
    length: float
    piece: int = 0
    spent: float = 0.0


@dataclass
class Group:
    """`begun` under that version, with as many conversations `left` to begin; `done` are lengths of
    the first ones to end. Workers `spent` so many seconds on all of them, of which those that are
    done were `useful`."""

    begun: int
    left: int
    done: list[float] = field(default_factory=list)
    spent: float = 0.0
    useful: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """Of a run: updates and conversations learned from per second, the share of the workers' time
    in which they did nothing (`idle`), or something that nobody used (`wasted`: conversations given
    up, whole groups that were too old, pieces lost with a worker), the mean `staleness` of groups
    in versions, the part of `wasted` that deaths did (`lost`), the number of `deaths`, the mean
    length in seconds of the conversations learned from (`taken`) and of all that were begun
    (`every`), and in how many seconds a worker was replaced (`restart`)."""

    wall: float
    updates: float
    rate: float
    idle: float
    wasted: float
    staleness: float
    lost: float
    deaths: int
    taken: float
    every: float
    restart: float


class Controller:
    """The controller: what an idle worker does next, and what is learned from."""

    def __init__(self, system: System, rng: np.random.Generator) -> None:
        self.system, self.rng = system, rng
        self.version = self.begun = self.dropped = 0
        self.open: dict[int, Group] = {}
        self.ready: deque[int] = deque()
        self.again: list[deque[Conversation]] = [deque(), deque()]  # later pieces, by kind
        self.lengths: list[float] = []  # of all conversations that began
        self.taken: list[float] = []
        self.ages: list[int] = []
        self.unbegun: deque[int] = deque()  # open groups with conversations left to begin
        self.unused = 0.0  # seconds of workers on what was given up

    def next(self, kind: int = 0) -> Conversation | None:
        """What a worker of this kind does next; None: there is nothing for it."""
        s = self.system
        kinds = (kind,) if s.affinity else (kind, 1 - kind)
        for one in kinds:
            while self.again[one]:
                talk = self.again[one].popleft()
                if self.wanted(talk):
                    return talk
        if s.affinity and kind == 1:
            return None  # first pieces are of kind 0
        while self.unbegun and not self._begins(self.unbegun[0]):
            self.unbegun.popleft()
        if not self.unbegun:
            if self.begun >= (self.version + s.staleness + 1) * s.batch + self.dropped:
                return None
            self.open[self.begun] = Group(self.version, s.group + s.redundancy)
            self.unbegun.append(self.begun)
            self.begun += 1
        number = self.unbegun[0]
        self.open[number].left -= 1
        length = float(s.median * np.exp(s.spread * self.rng.standard_normal()))
        self.lengths.append(length)
        return Conversation(number, length)

    def _begins(self, number: int) -> bool:
        return number in self.open and self.open[number].left > 0 and not self.complete(number)

    def complete(self, number: int) -> bool:
        return len(self.open[number].done) == self.system.group

    def wanted(self, talk: Conversation) -> bool:
        """Whether anybody waits for this conversation."""
        return talk.group in self.open and not self.complete(talk.group)

    def spend(self, talk: Conversation, seconds: float) -> None:
        """A worker was at it for so long."""
        talk.spent += seconds
        if talk.group in self.open:
            self.open[talk.group].spent += seconds
        else:
            self.unused += seconds

    def over(self, talk: Conversation) -> bool:
        """A piece of it is done; whether its group is complete with it."""
        if not self.wanted(talk):
            return False
        talk.piece += 1
        if talk.piece < self.system.pieces:
            self.again[talk.piece % 2 if self.system.two_kinds else 0].append(talk)
            return False
        self.open[talk.group].done.append(talk.length)
        self.open[talk.group].useful += talk.spent
        if self.complete(talk.group):
            self.ready.append(talk.group)
            return True
        return False

    def lost(self, talk: Conversation) -> None:
        """A piece of it is to be done again."""
        self.again[talk.piece % 2 if self.system.two_kinds else 0].appendleft(talk)

    def may_learn(self) -> bool:
        return len(self.ready) >= self.system.batch

    def take(self) -> None:
        """An update begins."""
        for _ in range(self.system.batch):
            group = self.open.pop(self.ready.popleft())
            self.taken += group.done
            self.ages.append(self.version - group.begun)
            self.unused += group.spent - group.useful

    def learned(self) -> None:
        """An update is over; groups that are too old now are given up."""
        self.version += 1
        late = [
            number
            for number, group in self.open.items()
            if self.version - group.begun > self.system.staleness
        ]
        for number in late:
            self.unused += self.open.pop(number).spent
        self.dropped += len(late)
        self.ready = deque(number for number in self.ready if number in self.open)

    def seconds(self, talk: Conversation, kind: int = 0) -> float:
        """What the next piece takes on a worker of this kind."""
        s = self.system
        wrong = s.two_kinds and talk.piece % 2 != kind
        return talk.length / s.pieces * (s.slowdown if wrong else 1.0)

    def outcome(
        self, wall: float, busy: float, lost: float, deaths: int, restart: float
    ) -> Outcome:
        room = wall * self.system.workers
        waiting = [self.open[number] for number in self.ready]
        wasted = self.unused + lost + sum(g.spent - g.useful for g in waiting)
        return Outcome(
            wall,
            self.version / wall,
            len(self.taken) / wall,
            1 - busy / room,
            wasted / room,
            float(np.mean(self.ages)),
            lost / room,
            deaths,
            float(np.mean(self.taken)),
            float(np.mean(self.lengths)),
            restart,
        )


def simulate(system: System, updates: int, rng: np.random.Generator) -> Outcome:
    """So many updates by the artificial clock."""
    clock = Clock(system, rng)
    while clock.rounds.version < updates:
        clock.advance()
    return clock.outcome()


class Clock:
    """An artificial clock: `now`, and the events to come in order of time."""

    def __init__(self, system: System, rng: np.random.Generator) -> None:
        self.system, self.rng, self.rounds = system, rng, Controller(system, rng)
        self.stamps = itertools.count()
        self.events: list[tuple[float, int, str, int, int]] = []  # when, order, what, worker, work
        self.idle = set(range(system.workers))
        self.at: dict[
            int, tuple[float, Conversation, int]
        ] = {}  # by worker: since when, with what, work
        self.now = self.busy = self.lost = 0.0
        self.deaths, self.learning = 0, False

    def advance(self) -> None:
        """Give idle workers something to do, and go on to the next event."""
        self._begin()
        if not self.learning and self.rounds.may_learn():
            self.rounds.take()
            self.learning = True
            self._later(self.system.update, "learned")
        self.now, _, what, worker, work = heapq.heappop(self.events)
        if what == "learned":
            self.rounds.learned()
            self.learning = False
            self._give_up()
        elif what == "there":
            self.idle.add(worker)
        elif worker in self.at and self.at[worker][2] == work:
            self._ended(what, worker)

    def outcome(self) -> Outcome:
        busy = self.busy + sum(self.now - since for since, _, _ in self.at.values())
        restart = self.system.restart
        return self.rounds.outcome(self.now, busy, self.lost, self.deaths, restart)

    def _begin(self) -> None:
        for worker in sorted(self.idle):
            kind = self._kind(worker)
            talk = self.rounds.next(kind)
            if talk is None:
                if self.system.affinity:
                    continue
                return
            self.idle.discard(worker)
            work, takes = next(self.stamps), self.rounds.seconds(talk, kind)
            self.at[worker] = self.now, talk, work
            every = self.system.death_every
            dies = np.inf if every is None else self.rng.exponential(every)
            self._later(min(takes, dies), "dies" if dies < takes else "done", worker, work)

    def _kind(self, worker: int) -> int:
        return worker % 2 if self.system.two_kinds else 0

    def _later(self, seconds: float, what: str, worker: int = -1, work: int = 0) -> None:
        event = (self.now + seconds, next(self.stamps), what, worker, work)
        heapq.heappush(self.events, event)

    def _ended(self, what: str, worker: int) -> None:
        """A piece of work is done, or its worker has died."""
        talk = self.at[worker][1]
        if what == "dies":
            self.lost += self._free(worker)
            self.rounds.lost(talk)
            self.deaths += 1
            self._later(self.system.restart, "there", worker)
            return
        self.rounds.spend(talk, self._free(worker))
        self.idle.add(worker)
        if self.rounds.over(talk):
            self._give_up()

    def _give_up(self) -> None:
        """Free the workers whose conversations nobody waits for."""
        for other in [w for w, (_, t, _) in self.at.items() if not self.rounds.wanted(t)]:
            self.rounds.spend(self.at[other][1], self._free(other))
            self.idle.add(other)

    def _free(self, worker: int) -> float:
        spent = self.now - self.at.pop(worker)[0]
        self.busy += spent
        return spent


class Sleeper:
    """A worker that sleeps for its work, and can be told to stop."""

    async def work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def ready(self) -> bool:
        return True


class Actors:
    """Sleepers of Ray, by number; those that were killed are replaced."""

    def __init__(self, count: int) -> None:
        self.ray = connected(count, "measured systems")
        # The class itself, not its module: a new process would import this library, for seconds.
        self.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.kind = self.ray.remote(num_cpus=0)(Sleeper)
        self.actors = [self.kind.remote() for _ in range(count)]
        self.ray.get([actor.ready.remote() for actor in self.actors])

    def replace(self, worker: int) -> Any:
        """Kill it; a reference that is there when the next one is."""
        self.ray.kill(self.actors[worker])
        self.actors[worker] = self.kind.remote()
        return self.actors[worker].ready.remote()

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)


def run(system: System, updates: int, rng: np.random.Generator) -> Outcome:
    """So many updates by a real clock, with actors of Ray on this machine that sleep for their
    work, a trainer that sleeps for its updates, and processes that are killed. Raises
    `ConfigError` for two kinds of workers, which only the simulation has."""
    if system.two_kinds:
        raise ConfigError("a measured system has one kind of workers; leave slowdown at 1")
    actors = Actors(system.workers)
    try:
        return _run(system, updates, rng, actors)
    finally:
        actors.close()


def _run(system: System, updates: int, rng: np.random.Generator, actors: Actors) -> Outcome:
    ray, rounds = actors.ray, Controller(system, rng)
    out: dict[
        Any, tuple[int, Conversation, float, float]
    ] = {}  # worker, conversation, since, dies at
    idle, coming = set(range(system.workers)), dict[Any, tuple[int, float]]()
    gone = [system.restart] if system.death_every is None else list[float]()
    busy = lost = 0.0
    deaths, learning = 0, None
    started = time.perf_counter()
    while rounds.version < updates:
        now = time.perf_counter()
        for worker in sorted(idle):
            talk = rounds.next()
            if talk is None:
                break
            idle.discard(worker)
            dies = rng.exponential(system.death_every) if system.death_every else np.inf
            reference = actors.actors[worker].work.remote(rounds.seconds(talk))
            out[reference] = (worker, talk, now, now + dies)
        if learning is None and rounds.may_learn():
            rounds.take()
            learning = now + system.update
        ends = [e for e in (learning, *(o[3] for o in out.values())) if e is not None]
        wait = max(0.0, min([*ends, now + 1.0]) - now)
        done, _ = ray.wait([*out, *coming], timeout=wait) if out or coming else ([], [])
        if not out and not coming:
            time.sleep(wait)
        now = time.perf_counter()
        for reference in done:
            if reference in coming:
                worker, since = coming.pop(reference)
                idle.add(worker)
                gone.append(now - since)
                continue
            worker, talk, since, _ = out.pop(reference)
            busy += now - since
            rounds.spend(talk, now - since)
            idle.add(worker)
            rounds.over(talk)
        for reference in [r for r, o in out.items() if o[3] <= now]:
            worker, talk, since, _ = out.pop(reference)
            busy, lost = (v + now - since for v in (busy, lost))
            rounds.lost(talk)
            deaths += 1
            coming[actors.replace(worker)] = worker, now
        if learning is not None and learning <= now:
            rounds.learned()
            learning = None
        for reference in [r for r, o in out.items() if not rounds.wanted(o[1])]:
            worker, talk, since, _ = out.pop(reference)
            ray.cancel(reference)
            busy += now - since
            rounds.spend(talk, now - since)
            idle.add(worker)
    now = time.perf_counter()
    busy += sum(now - since for _, _, since, _ in out.values())
    restart = float(np.mean(gone)) if gone else system.restart
    return rounds.outcome(now - started, busy, lost, deaths, restart)
