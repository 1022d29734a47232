"""GCIVL: goal-conditioned implicit values, IQL (arXiv 2110.06169) with state values alone, as in
OGBench's reference code (arXiv 2410.20092; impls/agents/gcivl.py at 1d41409).

Differences: the policy's mean goes through a tanh and its hidden layers have ReLU; LayerNorm stands
before the values' GELU, theirs behind it.
"""

from dataclasses import dataclass

import torch
from torch import Generator, nn

from algorithms.learners.goal_conditioned import (
    GoalPolicy,
    GoalValueConfig,
    GoalValues,
    descend_together,
    goal_rows,
    optimisers_of,
    weighted_policy_loss,
)
from algorithms.sources.relabelled import RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import NonNegative
from mbrl.networks import polyak_update
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class GCIVLConfig(GoalValueConfig):
    """Settings of GCIVL."""

    temperature: NonNegative = 10.0  # alpha of the advantage weights


class ImplicitGoalValues:
    """Values of goals by expectiles, a policy by weighted cloning."""

    def __init__(
        self, spec: Spec, config: GCIVLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.policy = GoalPolicy(spec, config.hidden, generator=generator).to(device)
        self.value = GoalValues(spec, config, generator).to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "value": self.value}
        self.optimisers = optimisers_of(self.modules, config.learning_rate)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of values and policy, both from the values before it."""
        c, goal = self.config, batch.policy_goal
        assert goal is not None
        value_loss, metrics = self.value.loss(batch, c.expectile)
        advantage = self.value.advantage(batch.next_obs, batch.obs, goal)
        log_prob = self.policy.log_prob(self.value.entries.with_goal(batch.obs, goal), batch.action)
        loss, more = weighted_policy_loss(log_prob, advantage, c.temperature)
        descend_together(self.optimisers, {"value": value_loss, "policy": loss})
        polyak_update(self.value.targets, self.value.values, c.tau)
        return metrics | more


class GCIVL(Agent[Batch]):
    """Goal-conditioned implicit values.

    Formula:

        goals        of values: the state itself, a later one of its episode at a geometric
                     distance, any state (0.2, 0.5, 0.3); of the policy: a later one, uniform;
                     each one that a row leaves
        reward       r = -1, and at the goal r = 0 and no next value
        values       L = sum_n mean |tau - 1(A < 0)| (r + gamma V'_n(s', g) - V_n(s, g))^2
                     A = r + gamma min_n V'_n(s', g) - mean_n V'_n(s, g)
        policy       L = -mean min(exp(alpha (V(s', g) - V(s, g))), 100) log pi(a|s, g)

    When not to use it: where the same action leads to different states: the expectile over next
    states takes luck for skill. Where goals are far, the value of one step more or less drowns in
    the error of the values; `hiql` and `saw` compare states that lie further apart.
    """

    version = 2
    needs_goals = True
    config: GCIVLConfig

    def build(self, generator: Generator) -> tuple[ImplicitGoalValues, RelabelledRows]:
        c = self.config
        learner = ImplicitGoalValues(self.spec, c, self.device, generator)
        source = goal_rows(self.spec, c, self.device, c.value_goals, last_states=False)
        return learner, source
