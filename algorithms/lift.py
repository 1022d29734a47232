"""LIFT: Towards Bridging the Gap between Large-Scale Pretraining and Efficient Finetuning for
Humanoid Control (arXiv 2601.21363), its fine-tuning; pre-training is SAC with many copies of a task
and large batches.

Read in the authors' configuration (bigai-ai/LIFT-humanoid): greedy actions in the task, the first
rows by the policy as it came, a temperature begun anew at exp(-7.13), horizons that grow, a share
of 0.06 of real rows, rates and discount. Differences: the model is an ensemble with a loss of one
step (theirs: one member, a loss over four); `physics` may be any task of this library; refits and
rollouts follow MBPO's schedule.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Generator

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.mbpo import DynaConfig, DynaRows, OnlineModelBasedConfig
from algorithms.sources.imagined import ImaginationConfig, dynamics, termination_rule
from mbrl import tasks
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero
from mbrl.errors import ConfigError
from world_models import WorldModel
from world_models.physics import PhysicsResidual


@dataclass(frozen=True)
class GreedyConfig(DynaConfig):
    """MBPO's schedule with greedy actions in the task."""

    deterministic: bool = True
    warmup_by: Literal["uniform", "policy"] = "policy"
    warmup: Count = 1000  # rows of the policy as it came, before the first fit of the model
    horizons: tuple[Count, Count] = (1, 20)
    growth: tuple[CountOrZero, CountOrZero] = (0, 10_000)


@dataclass(frozen=True)
class LIFTConfig(OnlineModelBasedConfig):
    """Settings of LIFT."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            hidden=(256, 256),
            actor_lr=2e-4,
            critic_lr=2e-4,
            alpha_lr=2e-4,
            tau=0.001,
            alpha=math.exp(-7.13),
            init="torch",
        )
    )
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(starts=400, real_ratio=0.06)
    )
    online: GreedyConfig = field(default_factory=GreedyConfig)
    physics: str | None = None  # a task whose steps the model corrects; None: it has no physics

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.physics is not None and self.imagination.truth > 0:
            raise ConfigError(
                f"physics is {self.physics!r} and imagination.truth {self.imagination.truth}; the "
                "truth needs no physics: set one of the two to its default"
            )


class LIFT(Agent[Batch]):
    """A trained policy that acts greedily in a task and explores in a model of it.

    `run lift TASK --after FOLDER`: the policy is that of an earlier run, the model is fitted to
    what it meets.

    Formula:

        task         a = tanh(mu(s)), no noise
        model        s' = f(s, a) + residual, the residual an ensemble's, f the step of `physics`
                     (without: f(s, a) = s)
        learner      soft actor-critic on rows imagined with a ~ pi(s), and a share of real ones;
                     actor and critics go on from the earlier run, the temperature begins anew

    When not to use it: without an earlier policy, since greedy actions of a new one explore
    nothing. Where steps in the task cost nothing, exploration there (SAC, MBPO) learns from what
    the model does not know.
    """

    version = 3
    fresh = ("temperature", "alpha")  # not taken over from an earlier run
    config: LIFTConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, DynaRows]:
        c = self.config
        learner = SoftActorCritic(self.spec, c.learner, self.device, generator)
        if model is None and c.physics is not None:
            model = PhysicsResidual(
                self.spec,
                c.model,
                termination=termination_rule(self.spec, c.imagination.termination),
                device=self.device,
                seed=self.seed,
                physics=tasks.make(c.physics, device=self.device),
            )
        model = dynamics(self.spec, c.model, c.imagination, self.device, self.seed, model)
        return learner, DynaRows(learner, model, c.imagination, c.online, self.seed)
