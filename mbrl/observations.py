"""Observations of a caller as a policy takes them, and its actions as the caller gave those."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.training import Trainable
from mbrl.types import Spec


def as_mask(spec: Spec, mask: Any, rows: int) -> Tensor | None:
    """Allowed actions as [B, n] bool for `rows` observations, from flags [n] or [B, n] (B is 1 or
    `rows`), array or tensor. Raises `ConfigError` for another shape, where the task has masks and
    none is given, and where one allows nothing."""
    if mask is None:
        if spec.action_mask:
            raise ConfigError(
                f"task {spec.task!r} does not allow all actions at all times; give `mask` (of "
                "gymnasium: info['action_mask']; predict: action_masks)"
            )
        return None
    flags = mask if isinstance(mask, Tensor) else torch.as_tensor(np.asarray(mask))
    if flags.ndim not in (1, 2) or flags.shape[-1] != (spec.num_actions or 0):
        raise ConfigError(
            f"mask has shape {tuple(flags.shape)}, task {spec.task!r} needs [{spec.num_actions}] "
            f"or [B, {spec.num_actions}]"
        )
    flags = flags.reshape(-1, flags.shape[-1]).bool()
    if len(flags) not in (1, rows):
        raise ConfigError(f"mask has {len(flags)} rows for {rows} observations; give one for each")
    if not bool(flags.any(1).all()):
        row = int((~flags.any(1)).nonzero()[0])
        raise ConfigError(
            f"mask allows no action in row {row}; set one flag at least, or do not ask there: an "
            "episode that has ended has nothing to choose"
        )
    return flags


def as_batch(agent: Trainable, obs: Any) -> Tensor:
    """Raw observations [S] or [B, S], array or tensor, as a batch [B, S] for the policy. Raises
    `ConfigError` for another shape, and for numbers that are not finite: what a network answers to
    them means nothing."""
    if np.ma.is_masked(obs):
        raise ConfigError(
            "obs has masked entries; fill them in as in the data that the agent learned from"
        )
    tensor = obs if isinstance(obs, Tensor) else torch.as_tensor(_numbers(obs))
    if tensor.ndim not in (1, 2) or tensor.shape[-1] != agent.spec.obs_dim:
        raise ConfigError(
            f"obs has shape {tuple(tensor.shape)}, task {agent.spec.task!r} needs "
            f"[{agent.spec.obs_dim}] or [B, {agent.spec.obs_dim}]"
        )
    parameter = next(agent.policy.parameters())
    tensor = tensor.to(parameter.device, parameter.dtype)  # in which a large number may be infinite
    if not torch.isfinite(tensor).all():
        row, entry = (~torch.isfinite(tensor.reshape(-1, agent.spec.obs_dim))).nonzero()[0].tolist()
        name = f" ({agent.spec.obs_names[entry]})" if agent.spec.obs_names else ""
        raise ConfigError(
            f"obs entry {entry}{name} is not finite in row {row}; give a number, filled in as in "
            "the data that the agent learned from, or let something else act"
        )
    return tensor.reshape(-1, agent.spec.obs_dim)


def _numbers(obs: Any) -> np.ndarray:
    """A copy where torch takes none of it as it is: objects, and strides that run backwards."""
    array = np.asarray(obs)
    try:
        return np.ascontiguousarray(array.astype(np.float64) if array.dtype.kind == "O" else array)
    except (TypeError, ValueError):
        raise ConfigError(
            "obs has entries that are no numbers; give a row as the agent's data have it"
        ) from None


def like_input(action: Tensor, obs: Any) -> Any:
    """Actions [B, A] in the form of `obs`: an array or a tensor on its device, one or a batch."""
    if np.ndim(obs) == 1:
        action = action[0]
    return action.to(obs.device) if isinstance(obs, Tensor) else action.cpu().numpy()


def as_observed(spec: Spec, state: Any, reward: Any, action: Any) -> tuple[Tensor, Tensor | None]:
    """A reward [B], and an action [B, A] where one is given, for the rows of `state` [B, ...].
    Raises `ConfigError` for other shapes, and for numbers that are not finite."""
    if not isinstance(state, Tensor):
        raise ConfigError(
            f"state is {state!r}; give the state that `act` returned for the step's observation"
        )
    rows = len(state)
    rewards = _of_rows("reward", reward, (rows,), state)
    if action is None:
        return rewards, None
    return rewards, _of_rows("action", action, (rows, spec.action_dim), state)


def _of_rows(name: str, given: Any, shape: tuple[int, ...], state: Tensor) -> Tensor:
    """Numbers of `shape`, on the device of `state`; where there is one row, it may stand alone."""
    given = given.detach().cpu() if isinstance(given, Tensor) else given
    values = torch.as_tensor(np.asarray(given, dtype=np.float64))
    if shape[0] == 1 and values.ndim == len(shape) - 1:
        values = values[None]
    if values.shape != shape:
        raise ConfigError(
            f"{name} has shape {list(values.shape)}, and the state {shape[0]} rows; give one of "
            f"shape {list(shape)}"
        )
    if not torch.isfinite(values).all():
        raise ConfigError(f"{name} has a number that is not finite; give finite ones")
    return values.to(state.device, torch.float32)
