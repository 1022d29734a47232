"""What a task is: a pure, batched simulator over explicit state tensors. The caller owns the
state, so a run can be checkpointed, forked and replayed exactly."""

from typing import NamedTuple, Protocol

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
