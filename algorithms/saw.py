"""SAW: Flattening Hierarchies with Policy Bootstrapping (arXiv 2505.14975), compared with the
authors' code (johnlyzhou/saw at 1ce8ac7, impls/agents/saw.py).

Differences: the policies' means go through a tanh and their hidden layers have ReLU; LayerNorm
stands before the values' GELU, theirs behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.goal_conditioned import (
    BOUND,
    GoalPolicy,
    GoalValueConfig,
    GoalValues,
    LengthNormalised,
    descend_together,
    goal_rows,
    input_normaliser,
    optimisers_of,
    weighted_policy_loss,
)
from algorithms.sources.relabelled import RelabelledRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Fraction, NonNegative
from mbrl.goals import GoalEntries
from mbrl.networks import MLP, ActionScale, polyak_update
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class SAWConfig(GoalValueConfig):
    """Settings of SAW."""

    expectile: Fraction = 0.7  # of the value regression
    subgoal_steps: Count = 25  # how far ahead a waypoint lies
    representation: Count = 10  # size of that of a goal
    low_temperature: NonNegative = 3.0  # of the near policy's advantage weights
    temperature: NonNegative = 3.0  # of the flat policy's
    waypoint_temperature: NonNegative = 3.0  # of the waypoints' weights
    waypoints: Literal["weighted", "unweighted", "none"] = "weighted"  # their loss in the policy's


def waypoint_loss(
    mean: Tensor, near_mean: Tensor, advantage: Tensor, temperature: float
) -> tuple[Tensor, Metrics]:
    """mean min(exp(kappa A), 100) |mu(s, g) - mu_l(s, w)|^2, means [B, A] and advantages [B]; no
    gradient flows into the near policy or the weight."""
    check_shapes(mean=(mean, "B A"), near_mean=(near_mean, "B A"), advantage=(advantage, "B"))
    weight = (temperature * advantage.detach()).exp().clamp_max(BOUND)
    distance = (mean - near_mean.detach()).square().sum(-1)
    loss = (weight * distance).mean()
    return loss, {"waypoint/loss": loss.detach(), "waypoint/weight": weight.mean()}


class RepresentedPolicy(nn.Module):
    """N(tanh(f(s, phi(s, g))), 1), with a representation of its own."""

    def __init__(
        self, spec: Spec, config: SAWConfig, hidden: Sequence[int], *, generator: Generator
    ) -> None:
        super().__init__()
        size = config.representation
        self.entries, self.scale = GoalEntries(spec), ActionScale(spec)
        self.normaliser = input_normaliser(spec, config)
        self.represent = LengthNormalised(spec.obs_dim, hidden, size, config.layer_norm, generator)
        inputs = len(self.entries.own) + size
        self.net = MLP(inputs, hidden, spec.action_dim, generator=generator)

    def unit(self, obs: Tensor) -> Tensor:
        """Mean actions [B, A] in [-1, 1] at raw `obs` [B, S]."""
        obs = self.normaliser(obs)
        seen = torch.cat([self.entries.own_of(obs), self.represent(obs)], -1)
        return torch.tanh(self.net(seen))

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action in the task's units."""
        mean = self.unit(obs)
        noise = torch.randn(mean.shape, generator=generator, device=obs.device)
        return self.scale.to_task((mean + noise).clamp(-1, 1))

    def forward(self, obs: Tensor) -> Tensor:
        """The mean in the task's units."""
        return self.scale.to_task(self.unit(obs))


class Bootstrapped:
    """Values of goals, a near policy, and a flat one that learns from both."""

    def __init__(
        self, spec: Spec, config: SAWConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        hidden, size = config.hidden, config.representation
        policy = RepresentedPolicy(spec, config, hidden, generator=generator)
        self.policy = policy.to(device)
        self.near = GoalPolicy(spec, hidden, generator=generator).to(device)
        self.value = GoalValues(spec, config, generator, size).to(device)
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "near": self.near,
            "value": self.value,
        }
        self.optimisers = optimisers_of(self.modules, config.learning_rate)

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of values and policies, all from what was there before it."""
        value_loss, metrics = self.value.loss(batch, self.config.expectile)
        near_loss, of_near = self.near_loss(batch)
        flat_loss, of_flat = self.flat_loss(batch)
        losses = {"value": value_loss, "near": near_loss, "policy": flat_loss}
        descend_together(self.optimisers, losses)
        polyak_update(self.value.targets, self.value.values, self.config.tau)
        return metrics | {k.replace("actor", "near"): v for k, v in of_near.items()} | of_flat

    def near_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Weighted cloning towards what is achieved k steps ahead."""
        goal, value = batch.low_goal, self.value
        assert goal is not None
        advantage = value.advantage(batch.next_obs, batch.obs, goal)
        log_prob = self.near.log_prob(value.entries.with_goal(batch.obs, goal), batch.action)
        return weighted_policy_loss(log_prob, advantage, self.config.low_temperature)

    def flat_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Weighted cloning towards the policy's goal, plus the loss of waypoints on the way."""
        c, value, goal, waypoint = self.config, self.value, batch.policy_goal, batch.waypoint
        assert goal is not None and waypoint is not None
        entries = value.entries
        mean = self.policy.unit(entries.with_goal(batch.obs, goal))
        log_prob = -0.5 * (batch.action - mean).square().sum(-1)
        advantage = value.advantage(batch.next_obs, batch.obs, goal)
        cloning, metrics = weighted_policy_loss(log_prob, advantage, c.temperature)
        if c.waypoints == "none":
            return cloning, metrics
        with torch.no_grad():
            way = entries.achieved_of(waypoint)
            near_mean = self.near.unit(entries.with_goal(batch.obs, way))
        advantage = value.advantage(waypoint, batch.obs, goal)
        temperature = c.waypoint_temperature if c.waypoints == "weighted" else 0.0
        bootstrap, more = waypoint_loss(mean, near_mean, advantage, temperature)
        return cloning + bootstrap, metrics | more


class SAW(Agent[Batch]):
    """Subgoal advantage-weighted policy bootstrapping.

    Formula:

        values       GCIVL's, V(s, phi(s, g)); phi(s, g) has D entries and the length sqrt(D)
        near policy  L = -mean min(exp(b (V(s', w) - V(s, w))), 100) log pi_l(a|s, w)
                     (w k steps ahead, at most the episode's last row)
        policy       L = -mean min(exp(b (V(s', g) - V(s, g))), 100) log pi(a|s, g)
                     + mean min(exp(kappa (V(w, g) - V(s, g))), 100) |mu(s, g) - mu_l(s, w)|^2
                     (w k steps ahead, at most the policy's goal; no gradient into mu_l;
                     unweighted: kappa = 0; none: without this term)
        acting       the policy alone

    When not to use it: where a waypoint of the data's own way is no better than the state it
    follows: weights of waypoints then say nothing. The authors choose kappa for each task.
    """

    version = 2
    needs_goals = True
    config: SAWConfig

    def build(self, generator: Generator) -> tuple[Bootstrapped, RelabelledRows]:
        c = self.config
        learner = Bootstrapped(self.spec, c, self.device, generator)
        source = goal_rows(
            self.spec, c, self.device, c.value_goals, c.subgoal_steps, last_states=False
        )
        return learner, source
