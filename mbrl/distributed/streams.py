"""What environments, policies and trainers are joined by. "SRL: Scaling Distributed Reinforcement
Learning to Over Ten Thousand Cores", arXiv 2306.16688: inference streams carry
observations to a policy and actions back, sample streams carry experience to trainers.

Differences from the authors' code: a policy worker is the other end of its inference stream; a
parameter server is the `load` of that worker; of the sample streams inline, Ray, null and round
robin; a stream that is full refuses a sample, and its environment worker waits."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from mbrl.distributed.cluster import connected, placed
from mbrl.errors import ConfigError

Act = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Actions [B] from observations [B, S] and uniform numbers [B], or [B, A] from [B, A]."""


class Answer(NamedTuple):
    """Actions [E], and the `version` of the policy that chose them."""

    action: np.ndarray
    version: int


class CategoricalActs:
    """Actions of a policy with `logits`, as a function of uniform numbers: the same observation and
    number have the same action, whoever else is in the batch (in float64, which `policy` becomes,
    so that the order of sums in a product does not matter)."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy.double()

    @torch.no_grad()
    def __call__(self, obs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        logits = self.policy.logits(torch.from_numpy(obs).double())
        below = torch.softmax(logits, -1).cumsum(-1)[:, :-1] < torch.from_numpy(uniform)[:, None]
        actions: np.ndarray = below.sum(-1).numpy()
        return actions


class GaussianActs:
    """What a policy with a `distribution` before its squash draws [B, A], as a function of uniform
    numbers [B, A] by the inverse of the normal distribution function, in float64, which `policy`
    becomes."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy.double()

    @torch.no_grad()
    def __call__(self, obs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        mean, log_std = self.policy.distribution(torch.from_numpy(obs).double())
        inside = torch.from_numpy(uniform).clamp(1e-12, 1.0 - 1e-12)
        drawn: np.ndarray = (mean + log_std.exp() * torch.special.ndtri(inside)).float().numpy()
        return drawn


class PolicyWorker:
    """Answers requests, several in one pass: as soon as those that wait have `max_batch`
    observations, or whoever `flush`es wants no more to wait. `passes` and `rows` count the work,
    `seconds` its time."""

    def __init__(self, act: Act, max_batch: int) -> None:
        if max_batch < 1:
            raise ConfigError(f"max_batch is {max_batch}, it must be at least 1")
        self.act, self.max_batch, self.version = act, max_batch, 0
        self.waiting: list[tuple[Any, np.ndarray, np.ndarray]] = []
        self.passes = self.rows = 0
        self.seconds = 0.0

    def load(self, act: Act, version: int) -> None:
        """Go on with another policy."""
        self.act, self.version = act, version

    def ask(self, key: Any, obs: np.ndarray, uniform: np.ndarray) -> bool:
        """Let a request wait; whether there are enough for a pass."""
        self.waiting.append((key, obs, uniform))
        return sum(len(obs) for _, obs, _ in self.waiting) >= self.max_batch

    def flush(self) -> dict[Any, Answer]:
        """Answer all that wait."""
        if not self.waiting:
            return {}
        began = time.perf_counter()
        keys, obs, uniform = zip(*self.waiting, strict=True)
        self.waiting = []
        actions = self.act(np.concatenate(obs), np.concatenate(uniform))
        shares = np.split(actions, np.cumsum([len(o) for o in obs])[:-1])
        self.passes, self.rows = self.passes + 1, self.rows + len(actions)
        self.seconds += time.perf_counter() - began
        return {k: Answer(a, self.version) for k, a in zip(keys, shares, strict=True)}

    def counts(self) -> dict[str, float]:
        return {"passes": self.passes, "rows": self.rows, "seconds": self.seconds}


class InferenceStream(Protocol):
    """`ask` sends observations [E, S] with uniform numbers [E]; `answer` waits for the actions."""

    def ask(self, obs: np.ndarray, uniform: np.ndarray) -> Any: ...
    def answer(self, ticket: Any) -> Answer: ...


class InlineInference:
    """To a policy worker in this process, which works when an answer is waited for."""

    def __init__(self, worker: PolicyWorker) -> None:
        self.worker, self.tickets = worker, 0
        self.answers: dict[int, Answer] = {}

    def ask(self, obs: np.ndarray, uniform: np.ndarray) -> int:
        self.tickets += 1
        if self.worker.ask(self.tickets, obs, uniform):
            self.answers |= self.worker.flush()
        return self.tickets

    def answer(self, ticket: int) -> Answer:
        if ticket not in self.answers:
            self.answers |= self.worker.flush()
        return self.answers.pop(ticket)


class ServedPolicy:
    """A policy worker as an actor of Ray. A request waits at most `max_wait` seconds for others."""

    def __init__(self, act: Act, max_batch: int, max_wait: float) -> None:
        torch.set_num_threads(1)
        self.worker, self.max_wait = PolicyWorker(act, max_batch), max_wait
        self.open: dict[int, asyncio.Future[Answer]] = {}
        self.asked = 0
        self.timer: asyncio.TimerHandle | None = None

    async def ask(self, obs: np.ndarray, uniform: np.ndarray) -> Answer:
        loop = asyncio.get_running_loop()
        self.asked += 1
        future = self.open[self.asked] = loop.create_future()
        if self.worker.ask(self.asked, obs, uniform):
            self._flush()
        elif self.timer is None:
            self.timer = loop.call_later(self.max_wait, self._flush)
        answer: Answer = await future
        return answer

    def _flush(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        keys = [key for key, _, _ in self.worker.waiting]
        try:
            answers: dict[int, Any] = self.worker.flush()
        except Exception as error:
            for key in keys:
                self.open.pop(key).set_exception(error)
            return
        for key, answer in answers.items():
            self.open.pop(key).set_result(answer)

    async def load(self, act: Act, version: int) -> None:
        self._flush()
        self.worker.load(act, version)

    async def counts(self) -> dict[str, float]:
        return self.worker.counts()


class RayInference:
    """To an actor of `ServedPolicy`, from any process that this object is sent to."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    @classmethod
    def served(
        cls, act: Act, max_batch: int, max_wait: float, *, cpus: int = 2, tag: str | None = None
    ) -> "RayInference":
        """One with an actor of its own."""
        ray = connected(cpus, "policy workers on Ray")
        PolicyWorker(act, max_batch)  # raises here, not there
        options = {"num_cpus": 1, "max_concurrency": 1000, **placed(ray, tag)}
        return cls(ray.remote(**options)(ServedPolicy).remote(act, max_batch, max_wait))

    def ask(self, obs: np.ndarray, uniform: np.ndarray) -> Any:
        return self.actor.ask.remote(obs, uniform)

    def answer(self, ticket: Any) -> Answer:
        import ray

        answer: Answer = ray.get(ticket)
        return answer


class SampleStream(Protocol):
    """`put` says whether there was room; `take` gives `count` different samples, or None while
    there are fewer."""

    def put(self, sample: Any) -> bool: ...
    def take(self, count: int) -> list[Any] | None: ...


@dataclass
class Used:
    sample: Any
    left: int  # times that it may be taken yet


class InlineSamples:
    """A queue of at most `bound` samples, each of which is taken `reuses` times: again when all
    that were there before it have been taken."""

    def __init__(self, bound: int = 128, reuses: int = 1) -> None:
        if bound < 1 or reuses < 1:
            raise ConfigError(f"bound is {bound} and reuses {reuses}; both must be at least 1")
        self.bound, self.reuses = bound, reuses
        self.queue: deque[Used] = deque()
        self.refused = 0

    def put(self, sample: Any) -> bool:
        if len(self.queue) == self.bound:
            self.refused += 1
            return False
        self.queue.append(Used(sample, self.reuses))
        return True

    def take(self, count: int) -> list[Any] | None:
        if not 1 <= count <= self.bound:
            raise ConfigError(f"count is {count}, it must be from 1 to the stream's {self.bound}")
        if len(self.queue) < count:
            return None
        taken = [self.queue.popleft() for _ in range(count)]
        for used in taken:
            used.left -= 1
        self.queue.extend(used for used in taken if used.left)
        return [used.sample for used in taken]


class NullSamples:
    """Takes all and gives nothing: an evaluation's."""

    def put(self, sample: Any) -> bool:
        return True

    def take(self, count: int) -> list[Any] | None:
        return None


class RoundRobinSamples:
    """Gives samples to several streams in turn; one that is full is passed over."""

    def __init__(self, streams: Sequence[SampleStream]) -> None:
        self.streams, self.next = list(streams), 0

    def put(self, sample: Any) -> bool:
        for _ in self.streams:
            stream = self.streams[self.next]
            self.next = (self.next + 1) % len(self.streams)
            if stream.put(sample):
                return True
        return False

    def take(self, count: int) -> list[Any] | None:
        raise ConfigError("take from the streams behind a round robin, each of which has its own")


class RaySamples:
    """An `InlineSamples` in an actor of Ray, for any process that this object is sent to."""

    def __init__(self, bound: int = 128, reuses: int = 1, *, cpus: int = 2) -> None:
        ray = connected(cpus, "sample streams on Ray")
        InlineSamples(bound, reuses)  # raises here, not there
        self.actor = ray.remote(num_cpus=0)(InlineSamples).remote(bound, reuses)

    def put(self, sample: Any) -> bool:
        import ray

        room: bool = ray.get(self.actor.put.remote(sample))
        return room

    def take(self, count: int) -> list[Any] | None:
        import ray

        try:
            samples: list[Any] | None = ray.get(self.actor.take.remote(count))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return samples
