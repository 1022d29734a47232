"""GCIQL: goal-conditioned IQL (arXiv 2110.06169), as in OGBench's reference code (arXiv 2410.20092;
impls/agents/gciql.py at 1d41409).

Differences: the policy's mean goes through a tanh and its hidden layers have ReLU; LayerNorm stands
before the values' GELU, theirs behind it.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.iql import expectile_loss
from algorithms.learners.goal_conditioned import (
    GoalPolicy,
    GoalValueConfig,
    climbing_policy_loss,
    descend_together,
    goal_rows,
    optimisers_of,
    weighted_policy_loss,
)
from algorithms.sources.relabelled import RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import NonNegative
from mbrl.goals import GoalEntries
from mbrl.networks import EnsembleMLP, polyak_update, target_copy
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class GCIQLConfig(GoalValueConfig):
    """Settings of GCIQL."""

    policy_loss: Literal["climb", "weigh"] = "climb"  # DDPG+BC, or advantage-weighted cloning
    alpha: NonNegative = 0.3  # weight of the clone; or the temperature of the advantage weights


class ImplicitGoalQ:
    """Values by expectiles of target critics, critics on the values, and a policy."""

    in_rewards = False  # values count steps to a goal, not the task's rewards

    def __init__(
        self, spec: Spec, config: GCIQLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.spec, self.config = spec, config
        self.entries = GoalEntries(spec).to(device)
        self.flat = self.flat_policy(generator).to(device)
        self.critic = self.values(2, spec.action_dim, generator).to(device)
        self.value = self.values(1, 0, generator).to(device)
        self.critic_target = target_copy(self.critic)
        learned: dict[str, nn.Module] = {
            "policy": self.flat,
            "critic": self.critic,
            "value": self.value,
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = optimisers_of(learned, config.learning_rate)

    def flat_policy(self, generator: Generator) -> GoalPolicy:
        """The policy of actions for a goal."""
        return GoalPolicy(self.spec, self.config.hidden, generator=generator)

    def values(self, members: int, actions: int, generator: Generator) -> nn.Module:
        """Networks from [B, S + actions], raw observations first, to [members, B, 1]."""
        c, size = self.config, self.spec.obs_dim
        values = EnsembleMLP(
            members, size + actions, c.hidden, 1,
            activation="gelu", layer_norm=c.layer_norm, generator=generator,
        )  # fmt: skip
        if c.normalise_obs:
            values.standardise(size)
        return values

    @property
    def policy(self) -> Any:
        """What acts."""
        return self.flat

    def draw(self, batch: Batch, generator: Generator) -> Any:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Any, count: int = 0) -> Metrics:
        """One step of value, critics and policy, each from what was there before it."""
        c = self.config
        with torch.no_grad():
            q_target = pairs(self.critic_target, batch.obs, batch.action).min(0).values
            next_value = self.value(batch.next_obs)[0, :, 0]
        value_loss = expectile_loss(q_target - self.value(batch.obs)[0, :, 0], c.expectile)
        q = pairs(self.critic, batch.obs, batch.action)
        target = batch.reward + batch.discount * next_value
        critic_loss = (q - target).square().mean(1).sum()
        loss, metrics = self.policy_loss(batch)
        losses = {"value": value_loss, "critic": critic_loss, "policy": loss}
        descend_together(self.optimisers, losses)
        polyak_update(self.critic_target, self.critic, c.tau)
        return metrics | {
            "value/loss": value_loss.detach(),
            "critic/loss": critic_loss.detach(),
            "critic/q_mean": q.detach().mean(),
        }

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        c, goal = self.config, batch.policy_goal
        assert goal is not None
        obs = self.entries.with_goal(batch.obs, goal)
        log_prob = self.flat.log_prob(obs, batch.action)
        if c.policy_loss == "climb":
            q = pairs(self.critic, obs, self.flat.unit(obs)).min(0).values
            return climbing_policy_loss(q, log_prob, c.alpha)
        with torch.no_grad():
            q = pairs(self.critic, obs, batch.action).min(0).values
            advantage = q - self.value(obs)[0, :, 0]
        return weighted_policy_loss(log_prob, advantage, c.alpha)


def pairs(critic: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    """Q_n(s, a, g) [N, B]."""
    values: Tensor = critic(torch.cat([obs, action], -1))
    return values[..., 0]


class GCIQL(Agent[Batch]):
    """Goal-conditioned implicit Q-learning.

    Formula:

        goals        as GCIVL; reward r = -1, and at the goal r = 0 and no next value
        value        L = mean |tau - 1(u < 0)| u^2, u = min_n Q'_n(s, a, g) - V(s, g)
        critics      L = sum_n mean (Q_n(s, a, g) - r - gamma V(s', g))^2
        policy       L = -mean Q / mean |Q| - alpha mean log pi(a|s, g), Q = min_n Q_n at its mean
                     or ("weigh") L = -mean min(exp(alpha (Q - V)), 100) log pi(a|s, g)

    When not to use it: where alpha cannot be chosen: OGBench's runs take from 0.003 (point mazes)
    to 1. Climbing trusts the critics beside the logged actions; where rows are few, weigh.
    """

    version = 2
    needs_goals = True
    config: GCIQLConfig

    def build(self, generator: Generator) -> tuple[ImplicitGoalQ, RelabelledRows]:
        c = self.config
        learner = ImplicitGoalQ(self.spec, c, self.device, generator)
        source = goal_rows(self.spec, c, self.device, c.value_goals, last_states=False)
        return learner, source
