"""COMBO: Conservative Offline Model-Based Policy Optimization (arXiv 2102.08363): critics are
pressed down on actions at imagined (and real) states and up on the logged ones.

Differences: the conservative term is CQL's with importance-sampled actions, as in OfflineRL-Kit,
whose soft maximum runs over three values a state where here it runs over all 3M; the weight is
fixed; the actor's learning rate is constant.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from algorithms import offline
from algorithms.cql import sample_actions, soft_maximum, with_action_noise
from algorithms.learners.soft_actor_critic import LearnerConfig, critic_loss
from algorithms.model_based import ImaginationConfig, ModelBased, ModelBasedConfig
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.networks import descend
from mbrl.training import Metrics
from mbrl.types import Spec
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
    weight: float = 5.0  # beta of the conservative term
    temperature: float = 1.0  # of its soft maximum
    samples: int = 10  # actions a state of each of the three kinds
    states: Literal["mixture", "model"] = "mixture"  # rho: all rows of a batch, or imagined ones

    def __post_init__(self) -> None:
        if self.learner.eta != 0:
            raise ConfigError(f"eta is {self.learner.eta}, COMBO's critics have no diversity term")
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}, it must be above 0")
        if self.samples < 1:
            raise ConfigError(f"samples is {self.samples}, it must be at least 1")
        size, ratio = self.learner.batch_size, self.imagination.real_ratio
        real = int(size * ratio)
        if real == 0 or (real == size and self.states == "model"):
            raise ConfigError(
                f"real_ratio is {ratio} with batches of {size} rows: {real} real ones; COMBO needs "
                "at least one, and with states 'model' an imagined one too"
            )


class COMBO(ModelBased):
    """SAC on real and imagined rows, with CQL's term on the states of both."""

    version = 1

    def __init__(
        self,
        spec: Spec,
        config: COMBOConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: COMBOConfig
        super().__init__(spec, config or COMBOConfig(), model, device, seed)

    def next_batch(self) -> Batch:
        """A mixed batch with draws for the learner and, behind them, for the sampled actions."""
        return with_action_noise(super().next_batch(), self.config.samples, self.generator)

    def update_learner(self, batch: Batch) -> Metrics:
        return self.learner.update(batch, critic=self.update_critic)

    def update_critic(self, batch: Batch, target: Tensor) -> Metrics:
        c, critic = self.config, self.learner.critic
        q = offline.q_values(critic, batch.obs, batch.action)
        loss, metrics = critic_loss(q, target, None, 0.0, c.learner.huber)
        gap = self.conservative_gap(batch, q)
        descend(self.learner.optimisers["critic"], loss + c.weight * gap.sum())
        return metrics | {"critic/target": target.mean(), "critic/gap": gap.detach().mean()}

    def conservative_gap(self, batch: Batch, q: Tensor) -> Tensor:
        """Mean soft maximum over the states of rho minus the mean value of the logged actions,
        [N], both with their gradient; `q` [N, B] is of the batch's own actions."""
        assert batch.noise is not None
        c, real = self.config, self.real_rows(len(batch.obs))
        first = real if c.states == "model" else 0
        obs, next_obs, noise = batch.obs[first:], batch.next_obs[first:], batch.noise[2:, first:]
        actions, log_density = sample_actions(self.learner.actor, obs, next_obs, noise)
        sampled = offline.sampled_q_values(self.learner.critic, obs, actions)
        pressed = soft_maximum(sampled, log_density, c.temperature).mean(1)
        return pressed - q[:, :real].mean(1)
