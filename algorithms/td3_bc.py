"""TD3+BC: A Minimalist Approach to Offline Reinforcement Learning (arXiv 2106.06860).

Differences: none known from the authors' code; observations are standardised with eps 1e-3.
"""

from dataclasses import dataclass

from torch import Generator, Tensor

from algorithms.learners.td3 import TD3, TD3Config
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import NonNegative
from mbrl.native.deterministic import PolicyLoss as CompiledLoss
from mbrl.shapes import check_shapes
from mbrl.training import Metrics


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    """Settings of TD3+BC; the defaults are the paper's."""

    alpha: NonNegative = 2.5  # weight of the value term against cloning
    normalise_obs: bool = True  # standardise observations with the data's statistics


def actor_loss(q: Tensor, action: Tensor, logged: Tensor, alpha: float) -> tuple[Tensor, Metrics]:
    """-lambda mean Q + mean (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 5, 6)."""
    check_shapes(q=(q, "B"), action=(action, "B A"), logged=(logged, "B A"))
    weight = alpha / q.detach().abs().mean().clamp_min(1e-8)
    clone = (action - logged).square().mean()
    loss = -weight * q.mean() + clone
    return loss, {"actor/loss": loss.detach(), "actor/bc": clone.detach()}


class TD3BC(Agent[Batch]):
    """TD3 with a behaviour-cloning term.

    Formula:

        critics      y = r + gamma min_n Q'_n(s', clip(pi'(s') + clip(noise, -c, c), -1, 1))
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = -lambda mean Q_1(s, pi(s)) + mean (pi(s) - a)^2
                     lambda = alpha / mean |Q_1(s, pi(s))|

    When not to use it: where the data are of random or many mediocre policies: the cloning term
    holds the policy to them. In the table classic it stays far below IQL on Pendulum's random and
    medium-replay data, with ten times the updates too.
    """

    version = 1
    config: TD3BCConfig

    def build(self, generator: Generator) -> tuple[TD3, LoggedRows]:
        c = self.config
        learner = TD3(
            self.spec,
            c,
            self.device,
            generator,
            self.policy_loss,
            compiled=CompiledLoss(1.0, 1.0 / self.spec.action_dim, c.alpha, normalised=True),
        )
        return learner, LoggedRows.of(self.spec, c, self.device)

    def policy_loss(
        self, learner: TD3, x: Tensor, action: Tensor, logged: Tensor
    ) -> tuple[Tensor, Metrics]:
        q = learner.critic.member(x, 0)[:, 0]
        return actor_loss(q, action, logged, self.config.alpha)
