"""GCBC: goal-conditioned behaviour cloning (Learning to Reach Goals via Iterated Supervised
Learning, arXiv 1912.06088, its one iteration on logged data), as in OGBench's reference code
(arXiv 2410.20092).

Differences: the policy's mean goes through a tanh and its hidden layers have ReLU; theirs is linear
and cut at the bounds, with GELU.
"""

from dataclasses import dataclass

import torch
from torch import Generator, nn

from algorithms.learners.goal_conditioned import (
    GoalConfig,
    GoalPolicy,
    goal_rows,
    optimisers_of,
)
from algorithms.sources.relabelled import RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.goals import GoalEntries
from mbrl.networks import descend
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class GCBCConfig(GoalConfig):
    """Settings of GCBC."""


class GoalCloning:
    """A policy of goals and its supervised update."""

    def __init__(
        self, spec: Spec, config: GoalConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.entries = GoalEntries(spec).to(device)
        self.policy = GoalPolicy(spec, config.hidden, generator=generator).to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy}
        self.optimisers = optimisers_of(self.modules, config.learning_rate)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        assert batch.policy_goal is not None
        obs = self.entries.with_goal(batch.obs, batch.policy_goal)
        loss = -self.policy.log_prob(obs, batch.action).mean()
        descend(self.optimisers["policy"], loss)
        return {"actor/loss": loss.detach()}


class GCBC(Agent[Batch]):
    """Goal-conditioned behaviour cloning.

    Formula:

        goals        g: a later state of the row's episode, uniform
        policy       L = -mean log pi(a|s, g), pi = N(tanh f(s, g), 1)

    When not to use it: where the data do not lead from the starts to the goals in one episode: it
    joins no pieces of different episodes, and it clones detours as well as short ways.
    """

    version = 1
    needs_goals = True
    config: GCBCConfig

    def build(self, generator: Generator) -> tuple[GoalCloning, RelabelledRows]:
        c = self.config
        learner = GoalCloning(self.spec, c, self.device, generator)
        source = goal_rows(self.spec, c, self.device)
        return learner, source
