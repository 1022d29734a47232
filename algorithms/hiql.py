"""HIQL: Offline Goal-Conditioned RL with Latent States as Actions (arXiv 2307.11949), as in
OGBench's reference code (arXiv 2410.20092; impls/agents/hiql.py at 1d41409).

Differences: the low policy's mean goes through a tanh; the hidden layers of both policies have
ReLU; LayerNorm stands before the values' GELU, theirs behind it.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.goal_conditioned import (
    GoalValueConfig,
    GoalValues,
    descend_together,
    goal_rows,
    input_normaliser,
    normalised,
    optimisers_of,
    weighted_policy_loss,
)
from algorithms.sources.relabelled import RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Fraction, NonNegative
from mbrl.goals import GoalEntries
from mbrl.networks import MLP, ActionScale, polyak_update
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class HIQLConfig(GoalValueConfig):
    """Settings of HIQL."""

    expectile: Fraction = 0.7  # of the value regression
    subgoal_steps: Count = 25  # how far ahead a subgoal lies
    representation: Count = 10  # size of that of a subgoal
    low_temperature: NonNegative = 3.0  # of the low policy's advantage weights
    high_temperature: NonNegative = 3.0  # of the high policy's


class HierarchicalPolicy(nn.Module):
    """A high policy that gives the representation of a subgoal, and a low one that acts for it;
    both are Gaussians of deviation 1 around their means."""

    def __init__(self, spec: Spec, config: HIQLConfig, *, generator: Generator) -> None:
        super().__init__()
        hidden, size = config.hidden, config.representation
        self.entries, self.scale = GoalEntries(spec), ActionScale(spec)
        self.normaliser = input_normaliser(spec, config)
        self.high = MLP(spec.obs_dim, hidden, size, generator=generator)
        inputs = len(self.entries.own) + size
        self.low = MLP(inputs, hidden, spec.action_dim, generator=generator)

    def high_mean(self, obs: Tensor) -> Tensor:
        """Mean [B, D] of the representation of a subgoal at raw `obs` [B, S]."""
        mean: Tensor = self.high(self.normaliser(obs))
        return mean

    def low_unit(self, obs: Tensor, subgoal: Tensor) -> Tensor:
        """Mean action [B, A] in [-1, 1] at raw `obs` [B, S] for the representation `subgoal`
        [B, D], which has a length of its own and is taken as it is."""
        own = self.entries.own_of(self.normaliser(obs))
        return torch.tanh(self.low(torch.cat([own, subgoal], -1)))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action for a sampled subgoal, in the task's units."""
        high = self.high_mean(obs)
        high = high + torch.randn(high.shape, generator=generator, device=obs.device)
        low = self.low_unit(obs, normalised(high))
        low = low + torch.randn(low.shape, generator=generator, device=obs.device)
        return self.scale.to_task(low.clamp(-1, 1))

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action for the mean subgoal, in the task's units."""
        return self.scale.to_task(self.low_unit(obs, normalised(self.high_mean(obs))))


def log_density(x: Tensor, mean: Tensor) -> Tensor:
    """log N(x; mean, 1) [B] of `x` [B, D], without its constant."""
    return -0.5 * (x - mean).square().sum(-1)


class Hierarchy:
    """Values of goals through representations, and two policies by weighted cloning."""

    def __init__(
        self, spec: Spec, config: HIQLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.policy = HierarchicalPolicy(spec, config, generator=generator).to(device)
        self.value = GoalValues(spec, config, generator, config.representation).to(device)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "value": self.value}
        self.optimisers = optimisers_of(self.modules, config.learning_rate)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of values and policies, all from the values before it."""
        value_loss, metrics = self.value.loss(batch, self.config.expectile)
        low, of_low = self.low_loss(batch)
        high, of_high = self.high_loss(batch)
        descend_together(self.optimisers, {"value": value_loss, "policy": low + high})
        polyak_update(self.value.targets, self.value.values, self.config.tau)
        metrics |= {name.replace("actor", "low_actor"): v for name, v in of_low.items()}
        return metrics | {name.replace("actor", "high_actor"): v for name, v in of_high.items()}

    def subgoal(self, obs: Tensor, goal: Tensor) -> Tensor:
        """The representation [B, D] of `goal` [B, G] seen from `obs`; only values shape it."""
        value = self.value
        assert value.represent is not None
        with torch.no_grad():
            seen = value.normaliser(value.entries.with_goal(obs, goal))
            result: Tensor = value.represent(seen)
        return result

    def low_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        goal = batch.low_goal
        assert goal is not None
        advantage = self.value.advantage(batch.next_obs, batch.obs, goal)
        mean = self.policy.low_unit(batch.obs, self.subgoal(batch.obs, goal))
        log_prob = log_density(batch.action, mean)
        return weighted_policy_loss(log_prob, advantage, self.config.low_temperature)

    def high_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        goal, waypoint = batch.policy_goal, batch.waypoint
        assert goal is not None and waypoint is not None
        entries = self.value.entries
        advantage = self.value.advantage(waypoint, batch.obs, goal)
        target = self.subgoal(batch.obs, entries.achieved_of(waypoint))
        log_prob = log_density(target, self.policy.high_mean(entries.with_goal(batch.obs, goal)))
        return weighted_policy_loss(log_prob, advantage, self.config.high_temperature)


class HIQL(Agent[Batch]):
    """Hierarchical implicit Q-learning.

    Formula:

        values       GCIVL's, V(s, phi(s, g)); phi(s, g) has D entries and the length sqrt(D)
        subgoal      w: the state k steps ahead, at most the policy's goal
        low policy   L = -mean min(exp(b (V(s', w) - V(s, w))), 100) log pi_l(a|s, phi(s, w))
                     (w k steps ahead, at most the episode's last row)
        high policy  L = -mean min(exp(b (V(w, g) - V(s, g))), 100) log pi_h(phi(s, w)|s, g)
        acting       phi = mean of pi_h(.|s, g), at the length sqrt(D); a = mean of pi_l(.|s, phi)

    When not to use it: where goals are a few steps away, which a flat policy reaches as well. k
    must suit the task: it is how far ahead the values can still tell states apart.
    """

    version = 2
    needs_goals = True
    config: HIQLConfig

    def build(self, generator: Generator) -> tuple[Hierarchy, RelabelledRows]:
        c = self.config
        learner = Hierarchy(self.spec, c, self.device, generator)
        source = goal_rows(
            self.spec, c, self.device, c.value_goals, c.subgoal_steps, last_states=False
        )
        return learner, source
