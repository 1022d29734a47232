"""Sampling and learning side by side, with a bound on how old conversations may be. "AReaL: A
Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning"; conversations that
go on under a newer policy as in "APRIL: Active Partial Rollouts in Reinforcement Learning to Tame
Long-tail Generation".

What happens in which order is an outside matter (which worker was faster), so it is written down:
the record of it, played again, gives the same updates."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from algorithms.language import schedule
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.conversation import Conversation, GenerationLimits
from algorithms.language.sampling.equal_groups import differ, give_up
from algorithms.language.sampling.rollouts import grouped, to_rollouts
from algorithms.language.sampling.workers import Weights, Work, WorkerConfig, Workers
from mbrl.errors import CheckpointError, ConfigError
from mbrl.files import replacing


@dataclass
class Group:
    """The conversations about one problem, begun under the policy of version `begun`. With `wanted`
    it is done when so many of them are, and the others are given up (RollArt's redundant
    environments): `finished` are the rows that are done, first those that came first, of these the
    shortest. `late`: it is too old, and nobody waits for it."""

    number: int
    begun: int
    rows: list[dict[str, Any]]
    wanted: int | None = None
    finished: list[int] = field(default_factory=list)
    late: bool = False

    @property
    def done(self) -> bool:
        if self.wanted is None:
            return all(row["done"] for row in self.rows)
        return len(self.finished) >= self.wanted

    def returned(self, rows: list[dict[str, Any]]) -> None:
        """Take in what a worker made of the rows; once it is done, those that are wanted stay."""
        self.rows = rows
        if self.wanted is None:
            return
        new = [i for i, row in enumerate(rows) if row["done"] and i not in self.finished]
        self.finished += sorted(new, key=lambda i: (len(rows[i]["behaviour"]), i))
        if self.done:
            self.rows = [rows[i] for i in sorted(self.finished[: self.wanted])]
            self.finished = list(range(self.wanted))


@dataclass
class Ledger:
    """Which groups there are and where. `batch` groups are learned from at once, which makes a new
    version of the policy, and each at most `staleness` versions after it was begun.

    A group may begin while fewer than (version + staleness + 1) batch groups have begun (AReaL's
    rule of admission). That alone lets a slow group grow older and older while others overtake it,
    so what would be too old later is taken first, and waited for (`chosen`). With `drop_late`
    nobody waits: what has become too old is given up, and others begin in its place (RollArt).
    """

    batch: int
    staleness: int
    version: int = 0
    begun: int = 0
    dropped: int = 0  # in whose place others may begin
    tried: int = 0  # of these, since the latest version
    waiting: dict[int, Group] = field(default_factory=dict)  # for a worker
    working: dict[int, list[Group]] = field(default_factory=dict)  # by piece of work
    ready: dict[int, Group] = field(default_factory=dict)  # done, in the order of arrival
    pieces: int = 0
    drop_late: bool = False

    def may_begin(self) -> int:
        """How many groups may begin now."""
        return (self.version + self.staleness + 1) * self.batch + self.dropped - self.begun

    def begin(self, groups: list[Group]) -> None:
        self.waiting |= {g.number: g for g in groups}
        self.begun += len(groups)

    def take(self, numbers: list[int]) -> Work:
        """Give out these waiting groups as a piece of work."""
        groups = [self.waiting.pop(n) for n in numbers]
        self.pieces += 1
        self.working[self.pieces] = groups
        return Work(self.pieces, self.version, [row for g in groups for row in g.rows])

    def returned(self, piece: int, rows: list[dict[str, Any]] | None) -> None:
        """A piece of work is back with its rows, or lost (None): then it is done again."""
        for group in self.working.pop(piece):
            if rows is not None:
                count = len(group.rows)
                group.returned(rows[:count])
                rows = rows[count:]
            if group.late:
                continue
            place = self.ready if group.done else self.waiting
            place[group.number] = group
        self.waiting = dict(sorted(self.waiting.items()))

    def chosen(self) -> list[int] | None:
        """The groups to learn from next; None while they are not all there. Those that came first,
        except that of the groups due by any later version no more stay than fit into the batches
        until then."""
        if self.drop_late:
            return list(self.ready)[: self.batch] if len(self.ready) >= self.batch else None
        everyone = [*self.waiting.values(), *self.ready.values()]
        everyone += [g for groups in self.working.values() for g in groups]
        due = {g.number: g.begun + self.staleness for g in everyone}
        picked: list[int] = []
        for last in range(self.version, self.version + self.staleness + 1):
            here = [n for n in due if due[n] <= last]
            stay = (last - self.version) * self.batch
            lacking = len(here) - stay - sum(n in picked for n in here)
            free = [n for n in self.ready if n in here and n not in picked]
            if lacking > len(free):
                return None
            picked += free[: max(0, lacking)]
        rest = [n for n in self.ready if n not in picked]
        picked += rest[: self.batch - len(picked)]
        return picked if len(picked) == self.batch else None

    def drop(self, numbers: list[int]) -> None:
        """Take these groups out, which are not learned from. Raises `RuntimeError` after too many
        in a row."""
        for number in numbers:
            del self.ready[number]
        self.dropped += len(numbers)
        self.tried += len(numbers)
        give_up(self.tried, self.batch)

    def learn(self, numbers: list[int]) -> list[Group]:
        """Take these groups out; the policy gets its next version."""
        self.version += 1
        self.tried = 0
        groups = [self.ready.pop(n) for n in numbers]
        if self.drop_late:
            self.give_up_late()
        return groups

    def give_up_late(self) -> None:
        """Take out what is too old for the version, wherever it is."""
        working = [g for groups in self.working.values() for g in groups]
        for group in [*self.waiting.values(), *self.ready.values(), *working]:
            if group.begun + self.staleness < self.version and not group.late:
                group.late = True
                self.dropped += 1
                self.waiting.pop(group.number, None)
                self.ready.pop(group.number, None)

    def state_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("version", "begun", "pieces", "dropped", "tried"):
            setattr(self, name, state.get(name, 0))  # older checkpoints had dropped none
        for name in ("waiting", "ready"):
            setattr(self, name, {n: Group(**g) for n, g in state[name].items()})
        self.working = {n: [Group(**g) for g in gs] for n, gs in state["working"].items()}


class Record:
    """What happened, an event a line: `begin` and `take` groups, a piece of work `came` back or was
    `lost`, `drop` groups, `learn` from groups."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.count = path, 0

    def add(self, event: str, value: Any) -> None:
        if self.path is not None:
            with self.path.open("a" if self.count else "w") as file:
                file.write(json.dumps({event: value}) + "\n")
        self.count += 1

    def cut(self, count: int) -> None:
        """Drop what came after the first `count` events."""
        self.count = count
        if self.path is None or (count == 0 and not self.path.exists()):
            return
        text = self.path.read_text() if self.path.exists() else ""
        lines = text.splitlines(keepends=True)
        if len(lines) < count:
            raise CheckpointError(
                f"{self.path} has {len(lines)} events, the checkpoint has seen {count}; the record "
                "of the run is damaged"
            )
        with replacing(self.path) as file:
            file.write("".join(lines[:count]).encode())


def events(path: Path) -> Iterator[tuple[str, Any]]:
    """The events of a record."""
    for line in path.read_text().splitlines():
        ((event, value),) = json.loads(line).items()
        yield event, value


class AsyncCollector:
    """Where a `LanguagePolicyGradient` gets its conversations from: workers that go on sampling
    while it learns. `chunk` groups are a piece of work. The agent's `staleness` is the bound, in
    updates; its `old` log-probs are the sampler's own, token by token, unless they are of a round's
    start.

    "RollArt: Scaling Agentic RL Training via Disaggregated Infrastructure", arXiv 2512.22560: with
    `redundancy` that many conversations more begin in a group than are learned from, the first to
    end are taken, and long ones are seen too seldom. That gains where workers stop after a budget
    of tokens. With `drop_late` groups that have become too old are given up, not waited for."""

    def __init__(
        self,
        agent: LanguagePolicyGradient,
        workers: Workers,
        *,
        chunk: int = 8,
        record: Path | None = None,
        redundancy: int = 0,
        drop_late: bool = False,
    ) -> None:
        schedule.check_plain(agent.config, "workers", "leave workers at 0")
        if chunk < 1 or redundancy < 0:
            raise ConfigError(f"chunk is {chunk} (at least 1), redundancy {redundancy} (0 or more)")
        self.workers, self.chunk, self.record = workers, chunk, Record(record)
        self.redundancy, self.ledger = redundancy, ledger(agent.config, drop_late)

    def collect(self, agent: LanguagePolicyGradient) -> int:
        """Wait until a round is there; returns how many updates follow. Raises `RuntimeError` where
        none can come: the ledger lets nothing begin, and nothing is on its way."""
        while (numbers := self.ledger.chosen()) is None:
            self.dispatch(agent)
            pieces = self.workers.arrived()
            if not pieces:
                raise RuntimeError(
                    f"version {self.ledger.version} has no round: {self.ledger.begun} groups began "
                    "and no other may; none is on its way, which is an error of the library"
                )
            for piece, rows in pieces:
                self.record.add("lost" if rows is None else "came", piece)
                self.ledger.returned(piece, rows)
            if agent.config.drop_equal:
                self.drop()
        self.dispatch(agent)  # they go on while the agent learns
        self.record.add("learn", numbers)
        return take_in(agent, self.ledger.learn(numbers))

    def drop(self) -> None:
        """Drop the groups whose rewards are equal."""
        numbers = [
            group.number
            for group in self.ledger.ready.values()
            if not differ([Conversation.from_plain(row) for row in group.rows])
        ]
        if numbers:
            self.record.add("drop", numbers)
            self.ledger.drop(numbers)

    def dispatch(self, agent: LanguagePolicyGradient) -> None:
        """Dispatch waiting groups to idle workers."""
        while self.workers.idle() > 0:
            new = min(self.chunk - len(self.ledger.waiting), self.ledger.may_begin())
            if new > 0:
                self.record.add("begin", new)
                groups = opened(agent, new, self.ledger.version, self.redundancy)
                self.ledger.begin(groups)
            numbers = list(self.ledger.waiting)[: self.chunk]
            if not numbers:
                return
            self.record.add("take", numbers)
            self.workers.give(self.ledger.take(numbers), lambda: weights_of(agent))

    def state_dict(self) -> dict[str, Any]:
        return {"ledger": self.ledger.state_dict(), "events": self.record.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Work that was out when the state was saved is lost, and done again."""
        self.ledger.load_state_dict(state["ledger"])
        self.record.cut(state["events"])
        for piece in list(self.ledger.working):
            self.record.add("lost", piece)
            self.ledger.returned(piece, None)


class ReplayCollector:
    """The rounds of a record once more, in this process. Raises `CheckpointError` where the record
    is not of such a run."""

    def __init__(
        self,
        agent: LanguagePolicyGradient,
        workers: Workers,
        path: Path,
        *,
        redundancy: int = 0,
        drop_late: bool = False,
    ) -> None:
        schedule.check_plain(agent.config, "workers", "leave workers at 0")
        self.workers, self.events = workers, events(path)
        self.redundancy, self.ledger = redundancy, ledger(agent.config, drop_late)
        self.out: dict[int, Any] = {}

    def collect(self, agent: LanguagePolicyGradient) -> int:
        for event, value in self.events:
            if event == "begin":
                self.ledger.begin(opened(agent, value, self.ledger.version, self.redundancy))
            elif event == "take":
                self.workers.give(self.ledger.take(value), lambda: weights_of(agent))
                self.out |= dict(self.workers.arrived())
            elif event in ("came", "lost"):
                rows = self.out.pop(value)
                self.ledger.returned(value, rows if event == "came" else None)
            elif event == "drop":
                self.ledger.drop(value)
            elif event == "learn":
                return take_in(agent, self.ledger.learn(value))
        raise CheckpointError("the record has no more rounds")


def ledger(config: LanguageConfig, drop_late: bool) -> Ledger:
    """The ledger of a run, whose staleness is in rounds."""
    rounds = config.staleness // (config.epochs * config.minibatches)
    return Ledger(config.prompts, rounds, drop_late=drop_late)


def opened(
    agent: LanguagePolicyGradient, count: int, version: int, redundancy: int = 0
) -> list[Group]:
    """New groups about the agent's next problems, with `redundancy` conversations more than are
    wanted."""
    size = agent.config.group + redundancy
    wanted = agent.config.group if redundancy else None
    groups = []
    numbers = agent.new_numbers(count)
    for number, problem in zip(numbers, agent.problems(numbers), strict=True):
        tokens = agent.codec.opening(problem.prompt)
        seeds = torch.randint(2**62, (size,), generator=agent.generator, device=agent.device)
        rows = [Conversation(problem, list(tokens), seed).plain() for seed in seeds.tolist()]
        groups.append(Group(number, version, rows, wanted))
    return groups


def take_in(agent: LanguagePolicyGradient, groups: list[Group]) -> int:
    """Make a round of `groups`; returns how many updates follow."""
    rows = [Conversation.from_plain(row) for group in groups for row in group.rows]
    like = next(agent.model.parameters())
    owner = [group.number for group in groups for _ in group.rows]
    rollouts = grouped(to_rollouts(rows, agent.codec.pad, like), owner)
    agent.tokens["sampled"] += int(rollouts.data.mask.sum())
    version = rollouts.data.policy_version  # workers count rounds, an agent its updates
    assert version is not None
    updates = agent.config.epochs * agent.config.minibatches
    data = dataclasses.replace(rollouts.data, policy_version=version * updates)
    rollouts = dataclasses.replace(rollouts, data=data)
    # Without staleness the learner is the policy that sampled, but for the sampler's precision.
    return agent.take_in(agent.with_old(rollouts, sampled=agent.config.staleness > 0))


def weights_of(agent: LanguagePolicyGradient) -> Weights:
    """The model's weights as they are, for other processes."""
    state = agent.model.state_dict()
    return {name: value.detach().cpu().numpy().copy() for name, value in state.items()}


def worker_config(agent: LanguagePolicyGradient, budget: int | None, threads: int) -> WorkerConfig:
    """The settings of the agent's workers."""
    c = agent.config
    limits = GenerationLimits(c.sampling, c.turn_tokens)
    device, precision = str(agent.device), c.sampling_precision
    places = c.rewards, c.reward_retries
    return WorkerConfig(c.model, c.task, limits, budget, threads, device, precision, *places)
