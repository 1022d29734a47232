"""Gradients of a language learner's loss by several workers, each with a share of the rows.

A recipe's loss is of all rows at once (means over tokens, statistics of groups), so the losses of
shares do not add up to it. The log-probs are a matter of single rows, so workers make them; the
loss and its derivative at them are taken of all, and workers carry that into the weights."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.language import measures
from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.models.passes import passes
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.sampling.workers import Weights
from mbrl.distributed.groups import WorkerGroup, dispatched
from mbrl.errors import ConfigError
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.trainer import Minibatch
from mbrl.training import Metrics


class GradientWorker:
    """A worker with its own copy of the learner of `config`, in float64 or float32 (`precision`).
    Raises `ConfigError` for recipes that change the model for an update, or have a teacher, which
    workers do not know."""

    def __init__(
        self, config: LanguageConfig, precision: str = "float32", *, rank: int, size: int
    ) -> None:
        for kind in measures.kinds(RECIPES[config.recipe]):
            if kind.training_model is not LanguageMeasure.training_model:
                raise ConfigError(
                    f"recipe {config.recipe} changes the model for an update ({kind.__name__}), "
                    "which workers do not know; take its gradients in one process"
                )
        self.agent = LanguagePolicyGradient(None, config)
        self.agent.model.to(getattr(torch, precision))

    @dispatched("one_to_all")
    def load(self, weights: Weights) -> None:
        """The policy as the trainer has it."""
        state = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
        self.agent.model.load_state_dict(state)

    @dispatched("split")
    def values(self, rollouts: Rollouts) -> Tensor:
        """Log-probs and entropies [b, T, 2] of these rows."""
        todo = passes(rollouts.data.mask, self.agent.config.rows_at_once)
        with torch.no_grad():
            return torch.stack(self.agent.current(rollouts, todo), -1)

    @dispatched("metric")
    def gradients(self, rollouts: Rollouts, derivative: Tensor) -> Weights:
        """The share of these rows in the gradient, from the loss's `derivative` [b, T, 2] at what
        `values` gives."""
        model = self.agent.model
        model.zero_grad()
        if len(rollouts):
            todo = passes(rollouts.data.mask, self.agent.config.rows_at_once)
            self.agent.backpropagate(rollouts, todo, derivative.unbind(-1))
        named = model.named_parameters()
        return {n: p.grad.numpy().copy() for n, p in named if p.grad is not None}


def gradients(
    agent: LanguagePolicyGradient, batch: Minibatch[Rollouts], group: WorkerGroup
) -> tuple[dict[str, Tensor], Metrics]:
    """The gradient of the agent's loss on `batch` by name of the weights, and the loss's metrics;
    `group` is of `GradientWorker`s that have the agent's weights. Raises `ConfigError` where a
    teacher's log-probs are among the targets."""
    if "teacher" in batch.targets:
        raise ConfigError(
            f"recipe {agent.config.recipe} learns from a teacher, which workers do not know; take "
            "its gradients in one process"
        )
    values = group.call("values", batch.rollouts).result()
    leaves = tuple(v.clone().requires_grad_() for v in values.unbind(-1))
    loss, metrics = agent.loss_of(batch, leaves)
    loss.backward()
    pairs = [torch.zeros_like(v) if v.grad is None else v.grad for v in leaves]
    shares: list[Any] = group.call("gradients", batch.rollouts, torch.stack(pairs, -1)).result()
    total: dict[str, Tensor] = {}
    for share in shares:
        for name, value in share.items():
            total[name] = total.get(name, 0) + torch.from_numpy(np.array(value))
    return total, metrics
