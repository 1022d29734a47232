"""COMBO: Conservative Offline Model-Based Policy Optimization (arXiv 2102.08363): critics are
pressed down on actions at imagined (and real) states and up on the logged ones.

Differences: the conservative term is CQL's with importance-sampled actions, as in OfflineRL-Kit,
whose soft maximum runs over three values a state where here it runs over all 3M; the weight is
fixed; the actor's learning rate is constant.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Generator, Tensor

from algorithms.cql import sample_actions, soft_maximum
from algorithms.learners.critics import q_values, sampled_q_values
from algorithms.learners.soft_actor_critic import LearnerConfig, SoftActorCritic, critic_loss
from algorithms.sources.imagined import (
    ImaginationConfig,
    ImaginedRows,
    ModelBasedConfig,
    dynamics,
)
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, NonNegative, Positive
from mbrl.errors import ConfigError
from mbrl.training import Metrics
from world_models import WorldModel


@dataclass(frozen=True)
class COMBOConfig(ModelBasedConfig):
    """Settings of COMBO; weight and horizon are tuned per dataset."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(actor_lr=1e-4, alpha_lr=1e-4, entropy_in_target=False)
    )
    imagination: ImaginationConfig = field(
        default_factory=lambda: ImaginationConfig(real_ratio=0.5)
    )
    weight: NonNegative = 5.0  # beta of the conservative term
    temperature: Positive = 1.0  # of its soft maximum
    samples: Count = 10  # actions a state of each of the three kinds
    states: Literal["mixture", "model"] = "mixture"  # rho: all rows of a batch, or imagined ones

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learner.eta != 0:
            raise ConfigError(f"eta is {self.learner.eta}, COMBO's critics have no diversity term")
        size, ratio = self.learner.batch_size, self.imagination.real_ratio
        real = int(size * ratio)
        if real == 0 or (real == size and self.states == "model"):
            raise ConfigError(
                f"real_ratio is {ratio} with batches of {size} rows: {real} real ones; COMBO needs "
                "at least one, and with states 'model' an imagined one too"
            )


def conservative_gap(
    learner: SoftActorCritic, batch: Batch, q: Tensor, config: COMBOConfig
) -> Tensor:
    """Mean soft maximum over the states of rho minus the mean value of the logged actions, [N],
    both with their gradient; `q` [N, B] is of the batch's own actions."""
    assert batch.noise is not None and batch.real is not None
    first = batch.real if config.states == "model" else 0
    obs, next_obs, noise = batch.obs[first:], batch.next_obs[first:], batch.noise[2:, first:]
    actions, log_density = sample_actions(learner.actor, obs, next_obs, noise)
    sampled = sampled_q_values(learner.critic, obs, actions)
    pressed = soft_maximum(sampled, log_density, config.temperature).mean(1)
    return pressed - q[:, : batch.real].mean(1)


class COMBO(Agent[Batch]):
    """SAC on real and imagined rows, with CQL's term on the states of both.

    Formula:

        critics      y = r + gamma min_n Q'_n(s', a'), a' ~ pi(s')
                     L = sum_n mean (Q_n(s, a) - y)^2 + beta gap_n
                     gap_n = mean over rho of T log sum_k exp((Q_n(s, a_k) - log mu(a_k)) / T)
                             - mean over logged rows of Q_n(s, a)
                     rho: states of all rows of a batch, or of the imagined ones
        policy       L = mean (alpha log pi(a|s) - min_n Q_n(s, a)), a ~ pi(s)

    When not to use it: where time is short: in the table model-based it takes two to four times as
    long as RAVL, MOPO and RAMBO. It has the highest mean there, and the lowest score on
    InvertedPendulum's medium-replay data.
    """

    version = 1
    config: COMBOConfig

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[SoftActorCritic, ImaginedRows]:
        c, device = self.config, self.device
        learner = SoftActorCritic(
            self.spec,
            c.learner,
            device,
            generator,
            critic_loss=self.critic_loss,
            samples=3 * c.samples,
        )
        model = dynamics(self.spec, c.model, c.imagination, device, self.seed, model)
        return learner, ImaginedRows(learner, model, c.imagination, device, self.seed)

    def critic_loss(
        self, learner: SoftActorCritic, batch: Batch, target: Tensor
    ) -> tuple[Tensor, Metrics]:
        c = self.config
        q = q_values(learner.critic, batch.obs, batch.action)
        loss, metrics = critic_loss(q, target, c.learner.huber)
        gap = conservative_gap(learner, batch, q, c)
        return loss + c.weight * gap.sum(), metrics | {"critic/gap": gap.detach().mean()}
