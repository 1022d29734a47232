"""MBPO: When to Trust Your Model: Model-Based Policy Optimization (arXiv 1906.08253): short
rollouts, no penalty. `learn` is the paper's; `fit` takes logged data in place of the environment,
the baseline that RAVL and MOPO are measured against.

Differences: online, refits keep the members that the first fit kept, and early stopping sees a
holdout anew at each; imagined rows start from the experience as a whole. Offline, the model is
fitted once, the horizon is fixed and the schedule is RAVL's, so that the two differ in their
critics alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.sources.imagined import (
    ImaginationConfig,
    ImaginedRows,
    ModelBasedConfig,
    RefitConfig,
    dynamics,
)
from mbrl.agent import Agent
from mbrl.buffer import Batch, resized
from mbrl.config import Count, CountOrZero
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Transitions
from world_models import RolloutConfig, WorldModel
from world_models.rollout import Actor


@dataclass(frozen=True)
class DynaConfig(RefitConfig):
    """Online learning on imagined rows; rollouts are refreshed after each refit of the model."""

    updates_per_step: Count = 20  # of the learner, a loop step
    horizons: tuple[Count, Count] = (1, 15)  # of rollouts, at first and in the end
    # steps of a copy of the task while they grow
    growth: tuple[CountOrZero, CountOrZero] = (20_000, 150_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth[0] >= self.growth[1]:
            raise ConfigError(f"growth is {self.growth}, it must be (first step, later step)")

    def horizon(self, step: int) -> int:
        """Whole part of the linear growth from the first horizon to the last."""
        (low, high), (first, last) = self.horizons, self.growth
        share = min(max((step - first) / (last - first), 0.0), 1.0)
        return int(low + share * (high - low))


@dataclass(frozen=True)
class OnlineModelBasedConfig(ModelBasedConfig):
    """The settings of an algorithm that imagines, offline and online."""

    online: DynaConfig = field(default_factory=DynaConfig)


@dataclass(frozen=True)
class MBPOConfig(OnlineModelBasedConfig):
    """Settings of MBPO: two critics, no penalty; `online` as mbrl-lib has it for Hopper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=2))


class DynaRows(ImaginedRows):
    """MBPO's loop around the learner: act, add to the experience and refit the model every
    `refit_every` steps (`observe`, as for all imagined rows), imagine from the experience right
    after (`advance`), update several times. Offline, the plain imagined rows."""

    def __init__(
        self,
        learner: SoftActorCritic,
        model: WorldModel,
        imagination: ImaginationConfig,
        online: DynaConfig,
        seed: int,
        *,
        policy: Actor | None = None,
        policy_metrics: Callable[[], Metrics] | None = None,
    ) -> None:
        device = learner.log_alpha.device
        super().__init__(
            learner,
            model,
            imagination,
            device,
            seed,
            policy=policy,
            policy_metrics=policy_metrics,
            collection=online,
        )
        self.task_steps = 0  # of a copy; steps of the loop before experience are not of the task

    @property
    def online(self) -> DynaConfig | None:
        """The settings of learning online; None before there is experience."""
        c = self.collection
        return c if self.real.online and isinstance(c, DynaConfig) else None

    @property
    def horizon(self) -> int:
        """Of the rollouts that are imagined now."""
        if self.online is None:
            return self.imagination.rollout.horizon
        return self.online.horizon(self.task_steps - 1)

    def observe(self, data: Transitions, step: int) -> None:
        self.task_steps += 1
        super().observe(data, step)

    def advance(self, step: int, generator: Generator) -> Metrics:
        """Imagine after each refit, `horizon` steps far, into a buffer that holds `retain` such
        refreshes."""
        metrics = super().advance(step, generator)
        if self.online is None:
            return metrics
        metrics["model/horizon"] = torch.tensor(float(self.horizon))
        if self.learned is not None and self.learned.holdout_mse is not None:
            metrics["model/holdout_mse"] = self.learned.holdout_mse.mean()
        return metrics

    def due(self, step: int) -> bool:
        if self.online is None:
            return super().due(step)
        return step % self.online.refit_every == 0 or len(self.imagined) == 0

    def rollout_config(self, step: int) -> RolloutConfig:
        return replace(self.imagination.rollout, horizon=self.horizon)

    def imagine(self, step: int, generator: Generator) -> Metrics:
        if self.online is not None:
            c = self.imagination
            self.imagined = resized(self.imagined, c.starts * self.horizon * c.retain)
        return super().imagine(step, generator)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"task_steps": self.task_steps} if self.task_steps else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # Not in files of earlier releases, in which every row that was met is counted.
        self.task_steps = state.get("task_steps", state.get("acted", 0) // self.collection.envs)


class MBPO(Agent[Batch]):
    """SAC on short rollouts of a learned world model, without any pessimism about it. `model`
    replaces the learned ensemble.

    Formula:

        model        Gaussian members p_e(s', r | s, a); a random one at each step
        rows         `real_ratio` logged ones; the others from rollouts of k steps of the policy
        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2, on both kinds of rows
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on narrow logged data: nothing guards against the model's errors, and in the
    table classic it ends far below cloning on expert data. On Pendulum's medium and medium-replay
    data it is as good as RAVL.
    """

    version = 1
    config: MBPOConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, DynaRows]:
        c = self.config
        learner = SoftActorCritic(self.spec, c.learner, self.device, generator)
        model = dynamics(self.spec, c.model, c.imagination, self.device, self.seed, model)
        return learner, DynaRows(learner, model, c.imagination, c.online, self.seed)
