"""Behaviour cloning: supervised learning of the logged actions, continuous or discrete.

Differences: continuous actions are fitted by squared error of a deterministic tanh policy (as
TD3+BC's authors' BC row does), not by likelihood.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Positive, Settings, Widths
from mbrl.native.deterministic import PolicyLoss, PolicySteps, policy_steps
from mbrl.networks import CategoricalPolicy, DeterministicPolicy, adam, descend
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class BCConfig(Settings):
    """Settings of behaviour cloning."""

    hidden: Widths = (256, 256)  # policy widths
    learning_rate: Positive = 3e-4  # Adam
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = True  # standardise observations with the data's statistics
    gamma: Discount = 0.99  # unused by the loss; the buffer's discount


def squared_error(action: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
    """Mean squared error of actions [B, A] in [-1, 1]."""
    check_shapes(action=(action, "B A"), logged=(logged, "B A"))
    loss = F.mse_loss(action, logged)
    return loss, {"actor/bc": loss.detach()}


def cross_entropy(logits: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
    """Negative log-likelihood of logged actions [B] under logits [B, n]."""
    check_shapes(logits=(logits, "B A"), logged=(logged, "B"))
    loss = F.cross_entropy(logits, logged)
    return loss, {"actor/bc": loss.detach()}


class Cloning:
    """A policy and its supervised update."""

    def __init__(
        self, spec: Spec, config: BCConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        kind = CategoricalPolicy if spec.discrete else DeterministicPolicy
        self.policy: CategoricalPolicy | DeterministicPolicy = kind(
            spec, config.hidden, generator=generator
        ).to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy}
        self.optimisers = {"policy": adam(self.policy.parameters(), config.learning_rate)}
        self.steps: PolicySteps | None = None
        if isinstance(self.policy, DeterministicPolicy):
            loss = PolicyLoss(1.0, 1.0 / spec.action_dim)
            self.steps = policy_steps(spec, self.policy, self.optimisers["policy"], loss)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        if self.steps is not None and self.steps.ready(batch):
            return {"actor/bc": self.steps.step(batch)[0]}
        if isinstance(self.policy, CategoricalPolicy):
            loss, metrics = cross_entropy(
                self.policy.logits(batch.obs, batch.action_mask), batch.action
            )
        else:
            assert isinstance(self.policy, DeterministicPolicy)
            loss, metrics = squared_error(self.policy.unit(batch.obs), batch.action)
        descend(self.optimisers["policy"], loss)
        return metrics


class BC(Agent[Batch]):
    """Behaviour cloning.

    Formula:

        continuous   L = mean (pi(s) - a)^2, actions in [-1, 1]
        discrete     L = -mean log pi(a|s)

    When not to use it: where the log is of mediocre decisions and a better policy is wanted: it
    ends near the level of the data. In the table classic it wins on expert data and comes last over
    all datasets.
    """

    version = 1
    action_kinds = ("continuous", "discrete")
    takes_masks = True
    config: BCConfig

    def build(self, generator: Generator) -> tuple[Cloning, LoggedRows]:
        c = self.config
        learner = Cloning(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
