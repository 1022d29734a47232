"""Recipes as advantage estimators of rLLM (0.3; github.com/rllm-org/rllm).

    from rllm.trainer.algorithms.advantage import register_rllm_adv_estimator
    register_rllm_adv_estimator("longreach_rloo")(estimator("rloo"))

rLLM's hook makes one number of an answer's reward; the loss stays that of its back end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from algorithms.language.adapters.tensors import advantages
from mbrl.errors import ConfigError
from mbrl.policy_gradient import recipe
from mbrl.policy_gradient.axes.selection import Finished

Groups = list[np.ndarray]


def estimator(name: str) -> Callable[..., tuple[Groups, Groups]]:
    """A function for `register_rllm_adv_estimator`: from the rewards of every group's answers, one
    array a group, to their advantages. Lengths are those of the answers' tokens where rLLM gives
    its `traj_groups`, else 1. Raises `ConfigError` for a recipe whose advantages differ between
    the tokens of an answer, or that needs more than rewards, such as which answers were cut off."""
    chosen = recipe(name)
    if any(isinstance(option, Finished) for option in chosen.selection):
        raise ConfigError(
            f"recipe {name} leaves out answers that were cut off, and rLLM's hook does not tell "
            "which; take another recipe"
        )

    def advantage(
        rewards: Groups, algorithm_config: Any = None, traj_groups: Any = None, **others: Any
    ) -> tuple[Groups, Groups]:
        if not rewards:
            return [], []
        sizes = [len(group) for group in rewards]
        flat = torch.from_numpy(np.concatenate(rewards).astype(np.float64))
        mask = _mask(traj_groups, len(flat))
        prompt = [i for i, size in enumerate(sizes) for _ in range(size)]
        values, weight = advantages(chosen, flat, mask, prompt)
        values = values * weight
        one = values[:, 0]
        if not torch.allclose(values, torch.where(mask, one[:, None], 0.0)):
            raise ConfigError(
                f"recipe {name} has another advantage for every token, and rLLM's hook takes one "
                "of an answer; take a recipe whose credit is the outcome"
            )
        parts = [part.numpy() for part in one.split(sizes)]
        return parts, parts

    return advantage


def _mask(traj_groups: Any, count: int) -> torch.Tensor:
    """[B, T]: the tokens of every answer, or one token each where they are not known."""
    if traj_groups is None:
        return torch.ones(count, 1, dtype=torch.bool)
    lengths = torch.tensor(
        [
            max(1, sum(len(step.response_ids or ()) for step in t.steps))
            for group in traj_groups
            for t in group.trajectories
        ]
    )
    return torch.arange(int(lengths.max())) < lengths[:, None]
