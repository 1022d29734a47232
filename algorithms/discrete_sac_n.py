"""SAC-N for discrete actions: Soft Actor-Critic for Discrete Action Settings (arXiv 1910.07207)
with the minimum of N critics (arXiv 2110.01548), on logged data.

Differences: the target entropy is half of the largest one (1910.07207: 0.98 of it, which keeps two
actions near 0.58 and 0.42); the temperature is updated before the policy; the minimum over critics
is taken action by action. The entropy in the target is positive here, so its bonus raises the
values, their differences and with them the learned temperature: over many updates both can run off
(`entropy_in_target=False` leaves it out).
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.critics import critics, q_values
from algorithms.learners.soft_actor_critic import (
    actor_loss,
    critic_loss,
    soft_target,
    temperature_loss,
)
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Positive, Probability, Rate, Settings, Widths
from mbrl.networks import CategoricalPolicy, adam, descend, polyak_update, target_copy
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class DiscreteSACNConfig(Settings):
    """Settings of discrete SAC-N."""

    critics: Count = 10  # N, independent critics
    hidden: Widths = (256, 256)  # widths of policy and critics
    learning_rate: Positive = 3e-4  # Adam, policy, critics and log temperature
    alpha: Positive = 1.0  # initial temperature
    learn_alpha: bool = True  # adapt it towards the target entropy
    entropy_fraction: Probability = 0.5  # target entropy over log(number of actions)
    entropy_in_target: bool = True  # subtract alpha log pi in the critics' target
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics


def expectations(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """sum_a pi(a|s) Q(s, a) and sum_a pi(a|s) log pi(a|s), both [B], from `logits` and `values`
    [B, A]: what stands in the place of samples (arXiv 1910.07207)."""
    check_shapes(logits=(logits, "B A"), values=(values, "B A"))
    log_pi = torch.log_softmax(logits, -1)
    pi = log_pi.exp()
    return (pi * values).sum(-1), (pi * log_pi).sum(-1)


class DiscreteSoftActorCritic:
    """A categorical policy, critics with one output an action, a temperature, and the update."""

    def __init__(
        self, spec: Spec, config: DiscreteSACNConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = c = config
        self.policy = CategoricalPolicy(spec, c.hidden, generator=generator).to(device)
        self.critic = critics(spec, c.critics, c.hidden, generator).to(device)
        self.critic_target = target_copy(self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(c.alpha), device=device))
        self.target_entropy = c.entropy_fraction * math.log(spec.num_actions or 1)
        learned: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "temperature": nn.ParameterDict({"log_alpha": self.log_alpha}),
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = {
            name: adam(m.parameters(), c.learning_rate) for name, m in learned.items()
        }

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: expectations need no draws."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        metrics = self.update_policy(batch) | self.update_critic(batch)
        polyak_update(self.critic_target, self.critic, self.config.tau)
        return metrics

    def update_policy(self, batch: Batch) -> Metrics:
        with torch.no_grad():
            values = self.critic(self.policy.normaliser(batch.obs)).min(0).values
        value, log_prob = expectations(self.policy.logits(batch.obs, batch.action_mask), values)
        if self.config.learn_alpha:
            loss = temperature_loss(self.log_alpha, log_prob, self.entropy_wanted(batch))
            descend(self.optimisers["temperature"], loss)
        alpha = self.log_alpha.detach().exp()
        loss, metrics = actor_loss(log_prob, value, alpha)
        descend(self.optimisers["policy"], loss)
        return metrics | {"actor/alpha": alpha}

    def entropy_wanted(self, batch: Batch) -> Tensor | float:
        """The target entropy: of all actions, or [B] of those that each row allows."""
        if batch.action_mask is None:
            return self.target_entropy
        return self.config.entropy_fraction * batch.action_mask.sum(-1).float().log()

    def update_critic(self, batch: Batch) -> Metrics:
        normalise = self.policy.normaliser
        with torch.no_grad():
            values = self.critic_target(normalise(batch.next_obs)).min(0).values
            logits = self.policy.logits(batch.next_obs, batch.next_action_mask)
            value, log_prob = expectations(logits, values)
            entropy = log_prob if self.config.entropy_in_target else None
            alpha = self.log_alpha.exp()
            target = soft_target(batch.reward, batch.discount, value[None], entropy, alpha)
        q = q_values(self.critic, normalise(batch.obs), batch.action)
        loss, metrics = critic_loss(q, target, None)
        descend(self.optimisers["critic"], loss)
        return metrics | {"critic/target": target.mean()}


class DiscreteSACN(Agent[Batch]):
    """SAC with N critics and exact expectations over discrete actions.

    Formula:

        critics      y = r + gamma sum_a pi(a|s') (min_n Q'_n(s', a) - alpha log pi(a|s'))
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean sum_a pi(a|s) (alpha log pi(a|s) - min_n Q_n(s, a))
        temperature  L = -log alpha mean (sum_a pi(a|s) log pi(a|s) + target entropy)

    When not to use it: on data of one policy, expert data most of all: in the table
    classic-discrete it fails on CartPole's and MountainCar's, where all logged rewards are equal
    and values tell no action from another.
    """

    version = 1
    action_kinds = ("discrete",)
    takes_masks = True
    config: DiscreteSACNConfig

    def build(self, generator: Generator) -> tuple[DiscreteSoftActorCritic, LoggedRows]:
        c = self.config
        learner = DiscreteSoftActorCritic(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
