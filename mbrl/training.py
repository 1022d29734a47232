"""The library's single control loop: collect, let the source move on, update, run the callbacks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn
from torch.nn import Parameter

from mbrl.errors import DivergenceError
from mbrl.types import Dataset, Spec

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
    """A policy with a state that lasts from step to step of an episode: a plan, a memory."""

    def step(
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

    def observe_reward(self, state: Tensor, reward: Tensor, action: Tensor | None = None) -> Tensor:
        """The state after the step's `reward` [B] is known, and, where another `action` [B, A] in
        the task's units was taken than the policy's own, after that one."""
        ...


def is_stateful(policy: object) -> "TypeIs[Stateful]":
    """Whether `policy` is `Stateful`. By a method of its class: to ask `isinstance` of a protocol
    takes longer than a small policy's action."""
    return hasattr(type(policy), "observe_reward")


def device_of(policy: Any, otherwise: torch.device) -> torch.device:
    """Where a policy wants observations: a module where its parameters are."""
    first = next(policy.parameters(), None) if isinstance(policy, nn.Module) else None
    return otherwise if first is None else first.device


def chosen_action(
    policy: Any,
    obs: Tensor,
    generator: Generator | None,
    *,
    deterministic: bool,
    mask: Tensor | None,
) -> Tensor:
    """The action of a `Policy` at raw `obs` [B, S], among those that `mask` [B, n] allows where
    there is one."""
    limits = {} if mask is None else {"mask": mask.to(obs.device)}
    action: Tensor
    if deterministic:
        action = policy(obs, **limits)
    else:
        action = policy.explore(obs, generator, **limits)
    return action


@runtime_checkable
class Trainable(Protocol):
    """What the loop, the evaluation and the checkpoints need of an agent."""

    version: int
    spec: Spec
    config: Any
    seed: int
    step: int

    @property
    def policy(self) -> Policy: ...
    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None: ...
    def advance(self) -> Metrics: ...
    def next_batch(self) -> Any: ...
    def update(self, batch: Any) -> Metrics: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Callback(Protocol):
    """Called with the event: "start" (before the first update), "prepare" (progress of what is
    fitted first), "step" (after each update), "end". `metrics` are detached 0-d tensors. One that
    returns True at a "step" ends the training there."""

    def __call__(self, event: str, agent: Trainable, metrics: Metrics) -> bool | None: ...


class Collecting(Protocol):
    """What gathers an online agent's experience."""

    def collect(self, agent: Any) -> int:
        """Act for one step; returns how many updates follow it, 0 while the agent should not
        update yet."""
        ...


def check_state(state: dict[str, Any], step: int) -> None:
    """Raise `DivergenceError` if a network's weights are not finite."""
    for name, weights in state.get("modules", {}).items():
        for key, value in weights.items():
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                raise DivergenceError(
                    f"training diverged: {name}.{key} is not finite at update {step}. A checkpoint "
                    "that was saved before is untouched; a lower learning rate or standardised "
                    "observations (normalise_obs) may help"
                )


def train(
    agent: Trainable,
    until: int,
    callbacks: Sequence[Callback] = (),
    collector: Collecting | None = None,
) -> None:
    """Update `agent` until its step counter reads `until` or a callback ends it: once a step, or
    with a `collector` as often as it says after its step in the task. Raises `DivergenceError` if
    weights are not finite in the end."""
    for callback in callbacks:
        callback("start", agent, {})
    over = False
    while agent.step < until and not over:
        updates = 1 if collector is None else collector.collect(agent)
        metrics: Metrics = agent.advance() if updates else {}
        for _ in range(updates):
            metrics |= agent.update(agent.next_batch())
        agent.step += 1
        for callback in callbacks:
            over |= callback("step", agent, metrics) is True
    modules = getattr(agent, "modules", {})
    check_state({"modules": {k: m.state_dict() for k, m in modules.items()}}, agent.step)
    for callback in callbacks:
        callback("end", agent, {})
