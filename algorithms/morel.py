"""MOReL: Model-Based Offline Reinforcement Learning (arXiv 2005.05951). The learner plans in a
pessimistic task: a step where two members of the model disagree too much leads to HALT.

Differences: the planner is soft actor-critic on short rollouts (the paper: natural policy gradient
over whole episodes); batches hold a share of real rows; members are compared in pairs as in eq. 2
(the authors' mjrl: with the member that made the step, by the mean square of the difference). With
`halt_forever` HALT pays its reward at every later step, as the paper's absorbing state does;
without, once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic
from algorithms.sources.imagined import ImaginedRows, ModelBasedConfig, dynamics
from mbrl.agent import Agent
from mbrl.buffer import Batch, transitions
from mbrl.config import Finite, NonNegative
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from mbrl.types import Dataset, Transitions
from world_models import RolloutConfig, WorldModel
from world_models.disagreement import data_disagreement
from world_models.rollout import HaltingRollout

MEASURE = "max_pairwise_difference"  # eq. 2: members are compared at one and the same input

Rule = Literal["mean_std", "quantile", "maximum"]


@dataclass(frozen=True)
class MOReLConfig(ModelBasedConfig):
    """Settings of MOReL; threshold and penalty are tuned per dataset in the paper."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(critics=2))
    threshold_rule: Rule = "mean_std"  # how the data's disagreements give the threshold
    threshold: NonNegative = 5.0  # deviations above the mean; or quantile; or factor of the maximum
    halt_offset: Finite = -50.0  # added to the data's least reward to give that of HALT
    # HALT pays at every later step: its reward, or 0 if that is less, / (1 - gamma)
    halt_forever: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold_rule == "quantile" and self.threshold > 1:
            raise ConfigError(
                f"threshold is {self.threshold}, with threshold_rule 'quantile' it must lie in "
                "[0, 1]"
            )
        if self.imagination.rollout.stop is not None:
            raise ConfigError(
                f"imagination.rollout.stop is {self.imagination.rollout.stop!r}, but MOReL stops "
                "rollouts by its own rule; leave it None and set threshold_rule and threshold"
            )


def halt_threshold(disagreement: Tensor, rule: Rule, value: float) -> Tensor:
    """The threshold from the disagreements [N] of the data: mean + value * deviation, the quantile
    `value`, or value times the maximum."""
    level = disagreement.double()
    if rule == "mean_std":
        return level.mean() + value * level.std(correction=0)
    if rule == "quantile":
        # By sorting: torch.quantile refuses more than 2^24 values.
        return level.sort().values[min(int(value * len(level)), len(level) - 1)]
    return value * level.max()


class HaltingRows(ImaginedRows):
    """Rollouts in the pessimistic task; the column `halted` tells which rows lead to HALT."""

    def __init__(
        self, config: MOReLConfig, learner: SoftActorCritic, model: WorldModel, seed: int
    ) -> None:
        device = learner.log_alpha.device
        super().__init__(learner, model, config.imagination, device, seed, widths={"halted": 0})
        self.config = config
        self.halt: Tensor | None = None  # [2]: threshold, reward of HALT

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Fit the world model, then decide from the data where HALT is and what it pays."""
        super().prepare(dataset, on_progress)
        if self.halt is None:
            self.set_halt(dataset.transitions.to(self.device))

    def refitted(self) -> None:
        self.set_halt(transitions(self.real.rows))

    def set_halt(self, data: Transitions) -> None:
        """Threshold and reward of HALT from the disagreements and the rewards of `data`."""
        c = self.config
        levels = data_disagreement(self.model, data, MEASURE)
        threshold = halt_threshold(levels, c.threshold_rule, c.threshold)
        reward = data.reward.min() + c.halt_offset
        if c.halt_forever:
            # Never a prize, as it would be where every step is paid and ends are not.
            reward = reward.clamp_max(0.0) / (1.0 - c.gamma)
        self.halt = torch.stack([threshold.float(), reward.float()])

    def rollout_config(self, step: int) -> RolloutConfig:
        assert self.halt is not None
        threshold, reward = self.halt.tolist()
        values = {**vars(self.imagination.rollout), "stop": MEASURE}
        return HaltingRollout(**values | {"stop_above": threshold}, halt_reward=reward)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"halt": self.halt}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.halt = None if state["halt"] is None else state["halt"].to(self.device)


class MOReL(Agent[Batch]):
    """SAC in a pessimistic task that ends where the model's members disagree. `model` replaces the
    learned ensemble.

    Formula:

        disagreement U(s, a) = max over i, j of |mu_i(s, a) - mu_j(s, a)|
        task         a step with U above the threshold ends in HALT and pays min r + halt_offset
        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: on a small budget: in the table model-based it is last of seven at 5,000
    updates, and where the others are at 50,000. Where rewards are negative an early end can look
    better than going on; set `halt_forever` there.
    """

    version = 2
    config: MOReLConfig
    source: HaltingRows

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, HaltingRows]:
        c = self.config
        learner = SoftActorCritic(self.spec, c.learner, self.device, generator)
        model = dynamics(self.spec, c.model, c.imagination, self.device, self.seed, model)
        return learner, HaltingRows(c, learner, model, self.seed)

    def update(self, batch: Batch) -> Metrics:
        assert batch.halted is not None and self.source.halt is not None
        measured = {"halt/threshold": self.source.halt[0], "halt/share": batch.halted.mean()}
        return super().update(batch) | measured
