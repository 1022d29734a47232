"""A policy with all that it needs to act, as one module to export: raw observations in, actions in
the task's units out, with the out-of-data score and a fallback where there are any."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.pets import CrossEntropyPlanner
from mbrl.data.out_of_data import OutOfData
from mbrl.errors import ConfigError
from mbrl.training import is_stateful
from mbrl.types import Spec


class FixedAction(nn.Module):
    """The same action for every observation: `action` [A] in the task's units, or a number."""

    action: Tensor

    def __init__(self, action: Tensor) -> None:
        super().__init__()
        self.register_buffer("action", action)

    def forward(self, obs: Tensor) -> Tensor:
        return self.action.expand(obs.shape[0], *self.action.shape)


@dataclass(frozen=True)
class Parts:
    """What a file is made of: the policy (a module in the precision in which it is to compute),
    the score and the fallback, each None where there is none."""

    spec: Spec
    policy: Any
    score: OutOfData | None = None
    fallback: nn.Module | None = None

    @property
    def stateful(self) -> bool:
        return is_stateful(self.policy)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.policy.parameters()).dtype
        return dtype

    @property
    def inputs(self) -> list[str]:
        if self.stateful:
            return ["obs", "state", "previous_action", "previous_reward"]
        return ["obs", "action_mask"] if self.spec.action_mask else ["obs"]

    @property
    def outputs(self) -> list[str]:
        names = ["action"]
        names += ["out_of_data"] if self.score is not None else []
        names += ["fallback_used"] if self.fallback is not None else []
        return [*names, "next_state"] if self.stateful else names

    def state_size(self) -> int:
        """Numbers of the state: the policy's own, and one that says whether an episode is on."""
        obs = torch.zeros(1, self.spec.obs_dim, dtype=self.dtype)
        return int(self.policy.step(obs, None, None)[1].shape[1]) + 1

    def example(self, rows: int = 2) -> tuple[Tensor, ...]:
        """Inputs of the right kinds and sizes."""
        obs = torch.zeros(rows, self.spec.obs_dim)
        if self.stateful:
            action = torch.zeros(rows, self.spec.action_dim)
            return obs, torch.zeros(rows, self.state_size()), action, torch.zeros(rows)
        if self.spec.action_mask:
            return obs, torch.ones(rows, self.spec.num_actions or 0, dtype=torch.bool)
        return (obs,)

    def graph(self) -> nn.Module:
        return StatefulGraph(self) if self.stateful else MarkovGraph(self)


def parts_of(
    agent: Any, score: OutOfData | None, fallback: nn.Module | None, dtype: torch.dtype
) -> Parts:
    """Copies, on the CPU, of what is exported of `agent`. Raises `ConfigError` for a policy that
    cannot leave the library, and for a fallback without a score."""
    policy = agent.policy
    if isinstance(policy, CrossEntropyPlanner):
        raise ConfigError(
            f"{type(agent).__name__} plans with its world model at every step and learns no "
            "policy, so there is nothing to export. Train one that learns a policy on the same "
            "data: mbpo, mopo, ravl, iql (`python -m experiments list` shows all)"
        )
    if not isinstance(policy, nn.Module):
        raise ConfigError(
            f"the policy is a {type(policy).__name__}, not a torch module of this library; export "
            "it with the library that trained it"
        )
    if fallback is not None and score is None:
        raise ConfigError(
            "a fallback acts where the out-of-data score is above 1, and without logged data "
            "there is no score; give the dataset, or no fallback"
        )
    copied = copy.deepcopy(policy).cpu().to(dtype).eval().requires_grad_(False)
    backup = fallback
    if fallback is not None:
        backup = copy.deepcopy(fallback).cpu().to(dtype).eval().requires_grad_(False)
    return Parts(agent.spec, copied, score, backup)


def acted(parts: Parts, obs: Tensor, own: Tensor, limits: dict[str, Tensor]) -> list[Tensor]:
    """The action, and the score and whether the fallback acted where there are such things, from
    the policy's `own` action at raw `obs`."""
    action, more = own, []
    if parts.score is not None:
        more = [parts.score(obs)]
    if parts.fallback is not None:
        outside = ~(more[0] <= 1.0)  # of a NaN too
        if own.is_floating_point():  # what else the policy took in may be no number
            outside = outside | ~torch.isfinite(own).all(1)
        other = parts.fallback(obs.to(parts.dtype), **limits)
        wide = outside if own.ndim == 1 else outside[:, None]
        action, more = torch.where(wide, other, own), [*more, outside]
    return [action if action.dtype == torch.int64 else action.float(), *more]


class MarkovGraph(nn.Module):
    """obs [B, S] (and action_mask [B, n] where the task has one) to action [B, A] float32, or [B]
    int64 where discrete; then out_of_data [B] and fallback_used [B] bool, where they are."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        self.policy, self.out_of_data, self.fallback = parts.policy, parts.score, parts.fallback

    def forward(self, obs: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        limits = {} if action_mask is None else {"mask": action_mask}
        own = self.policy(obs.to(self.parts.dtype), **limits)
        cloned = limits if not isinstance(self.fallback, FixedAction) else {}
        return tuple(acted(self.parts, obs, own, cloned))


class StatefulGraph(nn.Module):
    """obs [B, S], state [B, M], previous_action [B, A], previous_reward [B] to action [B, A], then
    out_of_data and fallback_used as in `MarkovGraph`, and next_state [B, M]. A row of zeros of
    `state` begins an episode: previous action and reward are not read there. Where something that
    is read is no finite number, the state stays as it was: else one such number would stand in it
    until the episode ends."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        self.policy, self.out_of_data, self.fallback = parts.policy, parts.score, parts.fallback

    def forward(
        self, obs: Tensor, state: Tensor, previous_action: Tensor, previous_reward: Tensor
    ) -> tuple[Tensor, ...]:
        dtype = self.parts.dtype
        own_state, on = state[:, :-1].to(dtype), state[:, -1:] > 0
        after = self.policy.observe_reward(
            own_state, previous_reward.to(dtype), previous_action.to(dtype)
        )
        own, carried = self.policy.step(obs.to(dtype), torch.where(on, after, own_state), None)
        before = torch.cat([previous_action, previous_reward[:, None]], 1)
        read = torch.cat([obs, torch.where(on, before, 0.0)], 1)
        following = torch.cat([carried.float(), torch.ones_like(state[:, -1:])], 1)
        known = torch.isfinite(read).all(1, keepdim=True)
        return (*acted(self.parts, obs, own, {}), torch.where(known, following, state))
