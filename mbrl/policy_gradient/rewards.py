"""Rewards: what is paid at every step, from what was measured."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl.policy_gradient.groups import sequence
from mbrl.policy_gradient.option import Option
from mbrl.types import Trajectories


@dataclass(frozen=True)
class Reward(Option):
    """trajectories to rewards [B, T]."""

    @abstractmethod
    def __call__(self, t: Trajectories) -> Tensor: ...


@dataclass(frozen=True)
class Given(Reward):
    """`reward` as it is."""

    def __call__(self, t: Trajectories) -> Tensor:
        return t.reward


@dataclass(frozen=True)
class Signal(Reward):
    """One of several rewards, or a reward that another part measured: `signals` by name."""

    name: str

    def needs(self) -> tuple[str, ...]:
        return (f"signals.{self.name}",)

    def __call__(self, t: Trajectories) -> Tensor:
        return t.signals[self.name]


def outcome(t: Trajectories) -> Tensor:
    """[B, T]: the whole reward of the sequence, at each of its steps."""
    return sequence(t).sum(t.reward)


def at_last(value: Tensor, t: Trajectories) -> Tensor:
    """[B, T]: `value` at the last step of every sequence, 0 elsewhere."""
    at = torch.arange(t.mask.shape[1], device=t.mask.device).expand_as(t.mask)
    last = sequence(t).max(at.to(value.dtype))
    return torch.where(t.mask & (at == last), value, torch.zeros_like(value))


@dataclass(frozen=True)
class Affine(Reward):
    """`scale` times the whole reward of the sequence plus `shift`, at its last step: with 2 and -1
    right and wrong are 1 and -1."""

    scale: float = 2.0
    shift: float = -1.0

    def __call__(self, t: Trajectories) -> Tensor:
        return at_last(self.scale * outcome(t) + self.shift, t)
