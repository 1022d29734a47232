"""RO2O: Towards Robust Offline-to-Online Reinforcement Learning via Uncertainty and Smoothness
(arXiv 2309.16973), on SAC-N.

Read in the authors' code (BattleWen/RO2O, offline/ro2o_mujoco.py): ten critics, the target's
minimum over all; each term moves observations along draws of its own, the same for the whole
batch; unseen actions are the policy's at moved observations, and valued there. In a task the three
terms stay, with the pessimism at its least, as in the paper; the released fine-tuning leaves them
out (`in_task` "released"). Radii are in units of the data's deviation where `learner.normalise_obs`
is set, as in their code, and else in those of the observations.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from algorithms.learners.critics import q_values
from algorithms.learners.soft_actor_critic import (
    LearnerConfig,
    Metrics,
    SoftActorCritic,
    SoftConfig,
    regression,
)
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Fraction, NonNegative, Settings
from mbrl.errors import ConfigError
from mbrl.shapes import check_shapes


@dataclass(frozen=True)
class SmoothnessConfig(Settings):
    """Radii and weights of the three terms."""

    perturbations: Count = 20  # of every observation, for each term
    value_radius: NonNegative = 0.01
    value_weight: NonNegative = 1e-4
    falling: Fraction = 0.2  # tau, the weight of values that fall; 1 - tau of those that rise
    policy_radius: NonNegative = 0.01
    policy_weight: NonNegative = 1.0
    unseen_radius: NonNegative = 0.01
    unseen_weight: NonNegative = 0.1
    pessimism: NonNegative = 2.0  # u, deviations that values of unseen actions are lowered by
    pessimism_decay: NonNegative = 1e-6  # what it falls by an update
    pessimism_least: NonNegative = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pessimism < self.pessimism_least:
            raise ConfigError(
                f"pessimism is {self.pessimism}, it must be at least pessimism_least "
                f"({self.pessimism_least})"
            )

    def pessimism_at(self, count: int) -> float:
        """u after `count` updates."""
        return max(self.pessimism - count * self.pessimism_decay, self.pessimism_least)


@dataclass(frozen=True)
class RO2OConfig(SoftConfig):
    """Settings of RO2O."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(critics=10, normalise_obs=True)
    )
    smooth: SmoothnessConfig = field(default_factory=SmoothnessConfig)
    in_task: Literal["paper", "released"] = "paper"  # whether the terms stay in a task

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learner.eta != 0:
            raise ConfigError(f"eta is {self.learner.eta}, RO2O's critics have no diversity term")
        if self.learner.critics < 2:
            raise ConfigError(
                f"critics is {self.learner.critics}; their deviation needs at least two"
            )


def value_smoothness(moved: Tensor, q: Tensor, falling: float) -> Tensor:
    """Batch mean of max_k mean_n [(1 - tau) max(u, 0)^2 + tau min(u, 0)^2], u = Q_n(s + d_k, a) -
    Q_n(s, a), from `moved` [N, K, B] and `q` [N, B] (eq. 5)."""
    check_shapes(moved=(moved, "N K B"), q=(q, "N B"))
    rise = moved - q[:, None]
    weight = torch.where(rise > 0, 1.0 - falling, falling)
    return (weight * rise.square()).mean(0).max(0).values.mean()


def policy_smoothness(
    mean: Tensor, log_std: Tensor, moved_mean: Tensor, moved_log_std: Tensor
) -> Tensor:
    """Batch mean of max_k of both Kullback-Leibler divergences between the Gaussians before the
    squash at s, [B, A], and at s + d_k, [K, B, A] (eq. 8)."""
    check_shapes(mean=(mean, "B A"), moved_mean=(moved_mean, "K B A"))
    gap = (moved_mean - mean).square()
    one, other = (2 * log_std).exp(), (2 * moved_log_std).exp()
    divergence = 0.5 * ((one + gap) / other + (other + gap) / one - 2.0)
    return divergence.sum(-1).max(0).values.mean()


def unseen_loss(q: Tensor, pessimism: float) -> Tensor:
    """Mean squared error of `q` [N, K, B], values of the policy's actions at moved observations,
    against themselves less `pessimism` of their deviations over critics, which take no gradient
    (eq. 7)."""
    check_shapes(q=(q, "N K B"))
    target = (q - pessimism * q.std(0)).detach()
    return (q - target).square().mean()


class Smoothness:
    """The losses of critics and actor."""

    def __init__(self, config: RO2OConfig) -> None:
        self.config = config

    def active(self, learner: SoftActorCritic) -> bool:
        """Whether the terms count."""
        return learner.offline or self.config.in_task == "paper"

    def moved(self, learner: SoftActorCritic, batch: Batch, term: int, radius: float) -> Tensor:
        """Observations [K, B, S] of the batch, moved along the draws of the `term`-th term."""
        assert batch.shift is not None
        draws = batch.shift.chunk(3)[term]
        deviation = learner.actor.normaliser.std
        return batch.obs + radius * deviation * draws[:, None]

    def critic_loss(
        self, learner: SoftActorCritic, batch: Batch, target: Tensor
    ) -> tuple[Tensor, Metrics]:
        assert batch.noise is not None
        loss, metrics = regression(learner, batch, target)
        if not self.active(learner):
            return loss, metrics
        c = self.config.smooth
        moved = self.moved(learner, batch, 0, c.value_radius)
        actions = batch.action.expand(len(moved), *batch.action.shape)
        q = q_values(learner.critic, batch.obs, batch.action)
        smooth = value_smoothness(paired_values(learner, moved, actions), q, c.falling)
        moved = self.moved(learner, batch, 2, c.unseen_radius)
        with torch.no_grad():
            actions, _ = learner.actor.sample(moved, batch.noise[2:])
        least = c.pessimism_least
        pessimism = c.pessimism_at(learner.count) if learner.offline else least
        unseen = unseen_loss(paired_values(learner, moved, actions), pessimism)
        metrics |= {"critic/smooth": smooth.detach(), "critic/unseen": unseen.detach()}
        return loss + c.value_weight * smooth + c.unseen_weight * unseen, metrics

    def actor_term(self, learner: SoftActorCritic, batch: Batch) -> tuple[Tensor, Metrics]:
        if not self.active(learner):
            return batch.obs.new_zeros(()), {}
        c = self.config.smooth
        moved = self.moved(learner, batch, 1, c.policy_radius)
        mean, log_std = learner.actor.distribution(batch.obs)
        term = policy_smoothness(mean, log_std, *learner.actor.distribution(moved))
        return c.policy_weight * term, {"actor/smooth": term.detach()}


def paired_values(learner: SoftActorCritic, obs: Tensor, actions: Tensor) -> Tensor:
    """Q_n(s_k, a_k) [N, K, B] of `obs` [K, B, S] and `actions` [K, B, A]."""
    values = q_values(learner.critic, obs.flatten(0, 1), actions.flatten(0, 1))
    return values.view(-1, *obs.shape[:2])


class RO2O(Agent[Batch]):
    """SAC-N with smooth values, a smooth policy and pessimism about unseen actions.

    It goes on in the task without a change of its losses.

    Formula:

        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
                     + w mean max_d mean_n [(1 - tau) max(u, 0)^2 + tau min(u, 0)^2],
                       u = Q_n(s + d, a) - Q_n(s, a)
                     + v mean (Q_n(s + d, a) - [Q_n(s + d, a) - u std_n Q])^2, a ~ pi(s + d),
                       the bracket without a gradient
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a))
                     + mean max_d (KL(pi(s) || pi(s + d)) + KL(pi(s + d) || pi(s)))

    When not to use it: where time is short: each update values `perturbations` copies of the batch
    twice. With radii of a hundredth of the data's deviation, as published, the terms change little
    where observations are exact.
    """

    version = 1
    config: RO2OConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, LoggedRows]:
        c = self.config
        smoothness = Smoothness(c)
        learner = SoftActorCritic(
            self.spec,
            c.learner,
            self.device,
            generator,
            critic_loss=smoothness.critic_loss,
            actor_term=smoothness.actor_term,
            samples=c.smooth.perturbations,
            shifts=3 * c.smooth.perturbations,
        )
        source = LoggedRows(self.spec, c.learner.gamma, c.learner.batch_size, self.device)
        return learner, source
