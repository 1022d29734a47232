"""CQL(H) for discrete actions: Conservative Q-Learning for Offline Reinforcement Learning
(arXiv 2006.04779) on double DQN (arXiv 1509.06461).

Differences: expected values (the authors: quantile regression); the target network follows by an
exponential average (d3rlpy's: copied every 8000 updates); squared error unless `huber` is set.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.critics import chosen, critics
from algorithms.learners.soft_actor_critic import critic_loss
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, NonNegative, Positive, Rate, Settings, Widths
from mbrl.networks import (
    EnsembleMLP,
    Normaliser,
    adam,
    allowed_only,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class DiscreteCQLConfig(Settings):
    """Settings of discrete CQL."""

    weight: NonNegative = 1.0  # alpha of the conservative term (the authors on Atari: 1 or 4)
    critics: Count = 1  # with more: greedy in their mean, valued by their minimum
    hidden: Widths = (256, 256)  # widths of the critics
    learning_rate: Positive = 3e-4  # Adam
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    huber: Positive | None = None  # Huber threshold of the critic loss; None: squared
    normalise_obs: bool = False  # standardise observations with the data's statistics


def double_q_values(online: Tensor, target: Tensor) -> Tensor:
    """Values [N, B] that the `target` critics [N, B, A] give the action that is best in the mean of
    the `online` ones [N, B, A]."""
    check_shapes(online=(online, "N B A"), target=(target, "N B A"))
    return chosen(target, online.mean(0).argmax(-1))


def conservative_gap(q: Tensor, data_q: Tensor) -> Tensor:
    """Batch mean of log sum_a exp Q_n(s, a) - Q_n(s, a_logged), [N], for `q` [N, B, A] and `data_q`
    [N, B]: CQL(H) with the sum over all actions."""
    check_shapes(q=(q, "N B A"), data_q=(data_q, "N B"))
    return (torch.logsumexp(q, -1) - data_q).mean(1)


class GreedyPolicy(nn.Module):
    """The action that is best in the mean of the critics."""

    stochastic = False  # a collector mixes its actions with uniform ones

    def __init__(self, spec: Spec, critic: EnsembleMLP) -> None:
        super().__init__()
        self.normaliser, self.critic = Normaliser(spec.obs_dim), critic

    def values(self, obs: Tensor) -> Tensor:
        """Q_n(s, a) [N, B, actions] at raw observations [B, S]."""
        return self.critic(self.normaliser(obs))

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The greedy action [B], int64, of those that `mask` [B, n] allows."""
        return allowed_only(self.values(obs).mean(0), mask).argmax(-1)

    def explore(
        self, obs: Tensor, generator: Generator | None, mask: Tensor | None = None
    ) -> Tensor:
        """The policy has no noise of its own: the action itself."""
        return self.forward(obs, mask)


class ConservativeDQN:
    """Critics that are the policy, their target, and the update."""

    def __init__(
        self, spec: Spec, config: DiscreteCQLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        critic = critics(spec, config.critics, config.hidden, generator)
        self.policy = GreedyPolicy(spec, critic).to(device)
        self.critic_target = target_copy(self.policy.critic)
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic_target": self.critic_target,
        }
        self.optimisers = {"critic": adam(self.policy.critic.parameters(), config.learning_rate)}

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        c, policy = self.config, self.policy
        with torch.no_grad():
            next_obs = policy.normaliser(batch.next_obs)
            online = allowed_only(policy.critic(next_obs), batch.next_action_mask)
            next_q = double_q_values(online, self.critic_target(next_obs))
            target = batch.reward + batch.discount * next_q.min(0).values
        q = policy.values(batch.obs)
        data_q = chosen(q, batch.action)
        loss, metrics = critic_loss(data_q, target, c.huber)
        gap = conservative_gap(allowed_only(q, batch.action_mask), data_q)
        descend(self.optimisers["critic"], loss + c.weight * gap.sum())
        polyak_update(self.critic_target, policy.critic, c.tau)
        return metrics | {"critic/target": target.mean(), "critic/gap": gap.detach().mean()}


class DiscreteCQL(Agent[Batch]):
    """Double DQN whose values are pressed down on all actions and up on logged ones.

    Formula:

        critics      y = r + gamma min_n Q'_n(s', a*), a* = argmax_a mean_n Q_n(s', a)
                     L = sum_n mean (Q_n(s, a) - y)^2
                         + weight mean (log sum_b exp Q_n(s, b) - Q_n(s, a))
        policy       argmax_a mean_n Q_n(s, a)

    When not to use it: where one seed has to do: in the table classic-discrete its seeds lie far
    apart on Acrobot and on CartPole's random data. On MountainCar's expert data cloning is better.
    It has the highest mean there.
    """

    version = 1
    action_kinds = ("discrete",)
    takes_masks = True
    config: DiscreteCQLConfig

    def build(self, generator: Generator) -> tuple[ConservativeDQN, LoggedRows]:
        c = self.config
        learner = ConservativeDQN(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
