"""Contrastive RL: Contrastive Learning as Goal-Conditioned Reinforcement Learning (arXiv
2206.07568), as in OGBench's reference code (arXiv 2410.20092; impls/agents/crl.py at 1d41409).

Differences: the goal side sees the entries of a goal alone, the state side those of a state; the
policy's mean goes through a tanh and its hidden layers have ReLU; LayerNorm stands before GELU.
The policy climbs (DDPG+BC); the reference code's other loss, with a value of its own, is left out.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from algorithms.learners.goal_conditioned import (
    GoalConfig,
    GoalPolicy,
    climbing_policy_loss,
    descend_together,
    goal_rows,
    input_normaliser,
    optimisers_of,
)
from algorithms.sources.relabelled import GoalDraws, RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, NonNegative
from mbrl.goals import GoalEntries
from mbrl.networks import EnsembleMLP
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class ContrastiveRLConfig(GoalConfig):
    """Settings of contrastive RL."""

    value_goals: GoalDraws = field(default_factory=lambda: GoalDraws(0.0, 1.0, 0.0))  # the critics'
    latent: Count = 512  # size of the two representations
    layer_norm: bool = True  # in the critics
    alpha: NonNegative = 0.1  # weight of the clone


def contrastive_loss(logits: Tensor) -> Tensor:
    """Mean binary cross-entropy of `logits` [N, B, B], row i at goal j, where i = j is the right
    pair and all others are wrong."""
    check_shapes(logits=(logits, "N B B"))
    labels = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return F.binary_cross_entropy_with_logits(logits, labels.expand_as(logits))


class BilinearCritics(nn.Module):
    """Two critics phi(s, a)' psi(g) / sqrt(d)."""

    def __init__(self, spec: Spec, config: ContrastiveRLConfig, generator: Generator) -> None:
        super().__init__()
        self.entries, self.normaliser = GoalEntries(spec), input_normaliser(spec, config)
        sizes = (len(self.entries.own) + spec.action_dim, len(spec.goal))
        self.phi, self.psi = (
            EnsembleMLP(
                2, size, config.hidden, config.latent,
                activation="gelu", layer_norm=config.layer_norm, generator=generator,
            )
            for size in sizes
        )  # fmt: skip

    def sides(self, obs: Tensor, action: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """phi [2, B, d] / sqrt(d) and psi [2, B, d] of raw `obs` [B, S] and `goal` [B, G], each
        beside the other while they are standardised."""
        seen = self.normaliser(self.entries.with_goal(obs, goal))
        phi = self.phi(torch.cat([self.entries.own_of(seen), action], -1))
        return phi / phi.shape[-1] ** 0.5, self.psi(self.entries.goal_of(seen))

    def logits(self, obs: Tensor, action: Tensor, goal: Tensor) -> Tensor:
        """[2, B, B]: of row i and goal j."""
        phi, psi = self.sides(obs, action, goal)
        return phi @ psi.transpose(1, 2)

    def forward(self, obs: Tensor, action: Tensor, goal: Tensor) -> Tensor:
        """[2, B]: of each row and its own goal."""
        phi, psi = self.sides(obs, action, goal)
        return (phi * psi).sum(-1)


class Contrast:
    """Critics that tell the goals of rows from those of others, and a policy that climbs them."""

    def __init__(
        self, spec: Spec, config: ContrastiveRLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.policy = GoalPolicy(spec, config.hidden, generator=generator).to(device)
        self.critic = BilinearCritics(spec, config, generator).to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "critic": self.critic}
        self.optimisers = optimisers_of(self.modules, config.learning_rate)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of critics and policy, both from the critics before it."""
        goal, entries = batch.policy_goal, self.critic.entries
        assert goal is not None
        logits = self.critic.logits(batch.obs, batch.action, entries.goal_of(batch.obs))
        critic_loss = contrastive_loss(logits)
        obs = entries.with_goal(batch.obs, goal)
        q = self.critic(obs, self.policy.unit(obs), goal).min(0).values
        log_prob = self.policy.log_prob(obs, batch.action)
        loss, metrics = climbing_policy_loss(q, log_prob, self.config.alpha)
        descend_together(self.optimisers, {"critic": critic_loss, "policy": loss})
        right = logits.detach().diagonal(dim1=1, dim2=2).mean()
        return metrics | {"critic/loss": critic_loss.detach(), "critic/right": right}


class ContrastiveRL(Agent[Batch]):
    """Contrastive RL.

    Formula:

        goals        a later state of the episode: of critics at a geometric distance, of the policy
                     uniform
        critics      f_n(s, a, g) = phi_n(s, a)' psi_n(g) / sqrt(d); over all pairs of rows i and
                     goals j of a batch, L = mean cross-entropy of sigmoid(f_n(s_i, a_i, g_j))
                     against 1 where i = j, else 0; at best f = log p(g|s, a) / p(g) + constant
        policy       L = -mean f / mean |f| - alpha mean log pi(a|s, g), f = min_n f_n at its mean

    When not to use it: where the way to a goal must be joined from pieces of several episodes: the
    critics know what the data's own policy reaches, and learn nothing by next values.
    """

    version = 1
    needs_goals = True
    config: ContrastiveRLConfig

    def build(self, generator: Generator) -> tuple[Contrast, RelabelledRows]:
        c = self.config
        learner = Contrast(self.spec, c, self.device, generator)
        source = goal_rows(self.spec, c, self.device, c.value_goals)
        return learner, source
