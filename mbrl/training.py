"""The library's single control loop: sample, update, count, tell the callbacks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Generator, Tensor
from torch.nn import Parameter

from mbrl.buffer import Batch
from mbrl.types import Dataset, Spec, Transitions

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Metrics = dict[str, Tensor]


class Policy(Protocol):
    """Raw observations [B, S] to actions in the task's units: greedy, and sampled."""

    def __call__(self, obs: Tensor) -> Tensor: ...
    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor: ...
    def parameters(self) -> Iterator[Parameter]: ...
    def state_dict(self) -> dict[str, Any]: ...


class Stateful(Protocol):
    """A policy that carries something from one step of an episode to the next: a plan, a memory."""

    def proceed(
        self,
        obs: Tensor,
        state: Tensor | None,
        generator: Generator | None,
        *,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Actions [B, A] in the task's units at raw `obs` [B, S], and the state [B, ...] to give
        back at the next step; rows of zeros, or None, begin an episode."""
        ...

    def heard(self, state: Tensor, reward: Tensor, action: Tensor | None = None) -> Tensor:
        """The state after the step's `reward` [B] is known, and, where another `action` [B, A] in
        the task's units was taken than the policy's own, after that one."""
        ...


def carries(policy: object) -> "TypeIs[Stateful]":
    """Whether `policy` is `Stateful`. By a method of its class: to ask `isinstance` of a protocol
    takes longer than a small policy's action."""
    return hasattr(type(policy), "proceed")


@runtime_checkable
class Agent(Protocol):
    """What the loop, the evaluation and the checkpoints need of an algorithm."""

    version: int
    spec: Spec
    config: Any
    seed: int
    step: int

    @property
    def policy(self) -> Policy: ...
    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None: ...
    def next_batch(self) -> Batch: ...
    def update(self, batch: Batch) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Callback(Protocol):
    """Called with the event: "start" (before the first update), "prepare" (progress of what is
    fitted first), "step" (after each update), "end". `metrics` are detached 0-d tensors."""

    def __call__(self, event: str, agent: Agent, metrics: Metrics) -> None: ...


class Source(Protocol):
    """Where an online agent's data comes from."""

    def collect(self, agent: Any) -> int:
        """Gather experience for one step; returns how many updates follow it, 0 while the agent
        should not update yet."""
        ...


class Online(Protocol):
    """What an algorithm needs beside `Agent` to learn online."""

    updates_per_step: int  # updates after each step of the collector

    def observe(self, data: Transitions) -> None: ...


def train(
    agent: Agent, until: int, callbacks: Sequence[Callback] = (), source: Source | None = None
) -> None:
    """Update `agent` until its step counter reads `until`."""
    for callback in callbacks:
        callback("start", agent, {})
    while agent.step < until:
        metrics: Metrics = {}
        for _ in range(1 if source is None else source.collect(agent)):
            metrics |= agent.update(agent.next_batch())
        agent.step += 1
        for callback in callbacks:
            callback("step", agent, metrics)
    for callback in callbacks:
        callback("end", agent, {})
