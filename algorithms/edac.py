"""EDAC: Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble
(arXiv 2110.01548): SAC with N critics, their minimum, and a gradient-diversity term.

Differences: the actor's step uses the gradient of the minimum only, which is the same number at
less work; all learning rates are 3e-4.
"""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from algorithms.learners import soft_actor_critic
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic, SoftConfig, Target
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.networks import ensemble_values
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class EDACConfig(SoftConfig):
    """Settings of EDAC; N = 10 and eta = 1 are the authors' for HalfCheetah and Walker2d."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=10, eta=1.0))


def diversity_loss(dq_da: Tensor) -> Tensor:
    """Mean over the batch of sum_{i != j} <g_i, g_j> / (N - 1), where g_n is the action gradient
    of critic n scaled to unit length; `dq_da` is [N, B, A] (eq. 5)."""
    check_shapes(dq_da=(dq_da, "N B A"))
    g: Tensor = dq_da / (dq_da.norm(dim=-1, keepdim=True) + 1e-10)
    # sum_{i != j} <g_i, g_j> = |sum g|^2 - sum |g|^2 avoids the N x N table.
    pairs = g.sum(0).square().sum(-1) - g.square().sum((0, 2))
    return pairs.mean() / (dq_da.shape[0] - 1)


def critic_loss(learner: SoftActorCritic, batch: Batch, target: Tensor) -> tuple[Tensor, Metrics]:
    """The errors of all critics plus eta times the diversity term."""
    eta, huber = learner.config.eta, learner.config.huber
    if eta == 0:
        return soft_actor_critic.regression(learner, batch, target)
    x = torch.cat([batch.obs, batch.action], -1)
    q, dq_da = ensemble_values(learner.critic, x, learner.spec.action_dim)
    loss, metrics = soft_actor_critic.critic_loss(q, target, huber)
    diversity = diversity_loss(dq_da)
    return loss + eta * diversity, metrics | {"critic/diversity": diversity.detach()}


def diversified(
    spec: Spec,
    config: LearnerConfig,
    device: torch.device,
    generator: Generator,
    target: Target | None = None,
) -> SoftActorCritic:
    """The learner with this loss of the critics, and a `target` of another algorithm."""
    return SoftActorCritic(
        spec,
        config,
        device,
        generator,
        critic_loss=critic_loss,
        target=target,
        compiled_critics=True,
    )


class EDAC(Agent[Batch]):
    """SAC with a diversified critic ensemble.

    Formula:

        critics      y = r + gamma (min of all N Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2 + eta mean sum_(i != j) <g_i, g_j> / (N - 1)
                     g_n = gradient of Q_n(s, a) by a, scaled to unit length
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)
        temperature  L = -log alpha mean (log pi(a|s) + target entropy)

    When not to use it: on narrow expert data: in the table classic it is the worst of nine
    algorithms on the expert data of Pendulum and InvertedPendulum, below random actions. With broad
    data it is among the best.
    """

    version = 1
    config: EDACConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, LoggedRows]:
        c = self.config.learner
        learner = diversified(self.spec, c, self.device, generator)
        return learner, LoggedRows(self.spec, c.gamma, c.batch_size, self.device)
