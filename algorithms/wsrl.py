"""WSRL: Efficient Online Reinforcement Learning Fine-Tuning Need Not Retain Offline Data (arXiv
2412.07762).

Read in the authors' code (zhouzypaul/wsrl): pre-training by Cal-QL with the networks of the second
part; its rows are left behind, the unchanged policy acts for 5,000 steps, then plain soft
actor-critic learns with four steps of the critics for one of the actor. Differences: the actor's
batch is as large as one of the critics' (theirs: the four together); the conservative term is of
all critics (theirs: of two random ones), the next value without a maximum over sampled actions; the
two critics of a target are two (theirs may be one twice); each critic has its own last layer
(theirs: one for all); the temperature's loss is of its logarithm at the batch's states (theirs: of
a softplus at the next ones); deviations are clipped to [e^-5, e^2] (theirs: [1e-5, 10]);
LayerNorm's epsilon is 1e-5 (theirs: 1e-6).
"""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from algorithms.cql import Conservatism, CQLConfig
from algorithms.learners.soft_actor_critic import (
    LearnerConfig,
    Metrics,
    SoftActorCritic,
    regression,
)
from algorithms.sources.episode_rows import EpisodeRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.collector import CollectorConfig
from mbrl.config import Count, CountOrZero, Probability
from mbrl.errors import ConfigError


@dataclass(frozen=True)
class WSRLConfig(CollectorConfig, CQLConfig):
    """Settings of WSRL: Cal-QL's for logged data, and the collection's for the task."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            critics=10,
            hidden=(256, 256),
            actor_lr=1e-4,
            alpha_lr=1e-4,
            entropy_in_target=False,
            target_min_of=2,
            layer_norm="all",
            policy_every=4,
            init="torch",
        )
    )
    calibrated: bool = True  # values below the logged return are not pressed further
    frozen: CountOrZero = 5000  # rows of the unchanged policy before the first update in the task
    logged_share: Probability | None = 0.0  # of each batch in the task; None: with the experience
    updates_per_step: Count = 4  # of the critics; `learner.policy_every` of them for one actor's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            raise ConfigError(
                f"threshold is {self.threshold}; WSRL has Cal-QL with a fixed weight, leave it out"
            )


class CalibratedOffline:
    """Cal-QL's loss of the critics on logged data, and squared errors in the task."""

    def __init__(self, config: WSRLConfig, device: torch.device) -> None:
        self.conservatism = Conservatism(config, device)

    def __call__(
        self, learner: SoftActorCritic, batch: Batch, target: Tensor
    ) -> tuple[Tensor, Metrics]:
        loss = self.conservatism if learner.offline else regression
        return loss(learner, batch, target)


class WSRL(Agent[Batch]):
    """Warm-start reinforcement learning, from logged data into a task.

    `fit` is Cal-QL, and `learn` afterwards soft actor-critic on its experience alone, of which the
    unchanged policy makes the first `frozen` rows.

    Formula:

        fit          CQL with `calibrated`
        learn        critics: y = r + gamma min over 2 random Q'_n(s', a'), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2
                     policy, in one of `policy_every` updates:
                     L = mean (alpha log pi(a|s) - min_n Q_n(s, a))

    When not to use it: where the first steps in the task must improve at once: `frozen` of them
    learn nothing. Where the logged rows are good and few steps follow, RLPD or a share of them in
    every batch (`--collection.logged-share 0.5`) keeps them.
    """

    version = 1
    config: WSRLConfig

    def build(self, generator: Generator) -> tuple[SoftActorCritic, EpisodeRows]:
        c = self.config
        learner = SoftActorCritic(
            self.spec,
            c.learner,
            self.device,
            generator,
            critic_loss=CalibratedOffline(c, self.device),
            samples=3 * c.samples,
        )
        source = EpisodeRows(
            self.spec,
            c.learner.gamma,
            c.learner.batch_size,
            self.device,
            collection=c,
            normalise_rewards=c.normalise_rewards,
            logged_alone=True,
        )
        return learner, source
