"""What a task is: a pure, batched simulator over explicit state tensors. The caller owns the
state, so a run can be checkpointed, forked and replayed exactly."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mbrl.types import Spec


class Step(NamedTuple):
    """One step of B parallel tasks: `state` [B, K], `obs` [B, S], `reward` [B], `terminated` [B]
    bool. Time limits are the caller's (`spec.max_episode_steps`)."""

    state: Tensor
    obs: Tensor
    reward: Tensor
    terminated: Tensor

    @property
    def truncated(self) -> Tensor | None:
        """[B] bool: the episodes that the task itself has cut; None where it cuts none."""
        return None

    @property
    def ended(self) -> Tensor:
        """[B] bool: the episodes that the task has ended or cut."""
        return self.terminated if self.truncated is None else self.terminated | self.truncated


class LiveStep(Step):
    """A step of environments that cut episodes themselves; it unpacks to the four of `Step`. `cut`
    [B] bool and `terminated` may both be set."""

    cut: Tensor

    @property
    def truncated(self) -> Tensor:
        return self.cut


class Task(Protocol):
    """A batched task. All methods are pure: the same arguments give the same answer."""

    @property
    def spec(self) -> Spec: ...

    @property
    def device(self) -> torch.device: ...

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` initial states [count, K], drawn from the task's start distribution."""
        ...

    def observe(self, state: Tensor) -> Tensor:
        """Observations [B, S] of states [B, K]."""
        ...

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Advance states [B, K] by actions [B, A] (or [B] int64 where discrete)."""
        ...

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """States [B, K] that observe as `obs`, hidden coordinates 0, and a mask [B] bool that is
        False where no such state exists."""
        ...

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """[B] bool: whether the task ends on reaching `next_obs`, from observations alone."""
        ...


@runtime_checkable
class LiveTask(Protocol):
    """A task over environments that can only go on from where they are: a state is a ticket for
    one step, whose second use raises `ConfigError`. The methods of `Task` beside these."""

    copies: int  # environments that a caller without a number of its own runs side by side

    def restart(self, state: Tensor, ended: Tensor, generator: torch.Generator) -> Tensor:
        """`state` [B, K] with new starts in the rows that `ended` [B] marks."""
        ...

    def release(self, state: Tensor) -> None:
        """Give back the environments of states that nobody will step."""
        ...

    def holds(self, state: Tensor) -> bool:
        """Whether all these states can be stepped."""
        ...

    def action_mask(self, state: Tensor) -> Tensor | None:
        """[B, n] bool, the discrete actions allowed in states; None where all always are."""
        ...


def as_live(task: Task) -> LiveTask | None:
    """`task` where it is a `LiveTask`. Ask once: `isinstance` of a protocol takes long."""
    return task if isinstance(task, LiveTask) else None
