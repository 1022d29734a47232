"""Behaviour cloning: supervised learning of the logged actions, continuous or discrete.

Differences: continuous actions are fitted by squared error of a deterministic tanh policy (as
TD3+BC's authors' BC row does), not by likelihood.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from algorithms import offline
from mbrl.buffer import Batch
from mbrl.networks import CategoricalPolicy, DeterministicPolicy, descend
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class BCConfig:
    """Settings of behaviour cloning."""

    hidden: tuple[int, ...] = (256, 256)  # policy widths
    learning_rate: float = 3e-4  # Adam
    batch_size: int = 256  # rows an update
    normalise_obs: bool = True  # standardise observations with the data's statistics
    gamma: float = 0.99  # unused by the loss; the buffer's discount


def squared_error(action: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
    """Mean squared error of actions [B, A] in [-1, 1]."""
    loss = F.mse_loss(action, logged)
    return loss, {"actor/bc": loss.detach()}


def cross_entropy(logits: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of logged actions [B] under logits [B, n]."""
    loss = F.cross_entropy(logits, logged)
    return loss, {"actor/bc": loss.detach()}


class BC(offline.Offline):
    """Behaviour cloning."""

    version = 1
    action_kinds = ("continuous", "discrete")

    def __init__(
        self, spec: Spec, config: BCConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: BCConfig
        initial = self.setup(spec, config or BCConfig(), device, seed)
        kind = CategoricalPolicy if spec.discrete else DeterministicPolicy
        self.policy: CategoricalPolicy | DeterministicPolicy = kind(
            spec, self.config.hidden, generator=initial
        ).to(self.device)
        self.own(self.config.learning_rate, {"policy": self.policy})

    def update(self, batch: Batch) -> Metrics:
        if isinstance(self.policy, CategoricalPolicy):
            loss, metrics = cross_entropy(self.policy.logits(batch.obs), batch.action)
        else:
            assert isinstance(self.policy, DeterministicPolicy)
            loss, metrics = squared_error(self.policy.unit(batch.obs), batch.action)
        descend(self.optimisers["policy"], loss)
        return metrics
