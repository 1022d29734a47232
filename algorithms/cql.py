"""CQL(H): Conservative Q-Learning for Offline Reinforcement Learning (arXiv 2006.04779), on SAC.

Differences from the authors' code: no behaviour cloning in the policy's first updates, no maximum
over sampled next actions in the target; the critics are updated after the policy (theirs: both at
one point); the log-deviation is clipped to [-5, 2] (theirs: [-20, 2]).
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from algorithms import offline
from algorithms.learners.soft_actor_critic import LearnerConfig, critic_loss
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.networks import SquashedGaussianPolicy, adam, descend
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class CQLConfig(offline.SoftConfig):
    """Settings of CQL; the defaults are those the authors name for Gym-MuJoCo."""

    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(
            actor_lr=1e-4, alpha_lr=1e-4, entropy_in_target=False, init="torch"
        )
    )
    weight: float = 5.0  # alpha of the conservative term (the authors: 5 or 10)
    temperature: float = 1.0  # of its soft maximum
    samples: int = 10  # actions a state of each of the three kinds
    threshold: float | None = None  # tau of the Lagrange form; None: the weight is fixed
    threshold_lr: float = 3e-4  # Adam, log of the Lagrange multiplier
    normalise_rewards: bool = False  # times 1000 / range of returns

    def __post_init__(self) -> None:
        if self.learner.eta != 0:
            raise ConfigError(f"eta is {self.learner.eta}, CQL's critics have no diversity term")
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}, it must be above 0")
        if self.samples < 1:
            raise ConfigError(f"samples is {self.samples}, it must be at least 1")


def conservative_gap(q: Tensor, log_density: Tensor, data_q: Tensor, temperature: float) -> Tensor:
    """Batch mean of T log sum_k exp((Q_n(s, a_k) - log mu(a_k)) / T) - Q_n(s, a), [N], for values
    `q` [N, K, B] of sampled actions whose log-density was `log_density` [K, B], and `data_q` [N, B]
    of the logged ones.

    CQL(H) with the authors' importance-sampled estimate of the sum, without its constant log K.
    """
    return (soft_maximum(q, log_density, temperature) - data_q).mean(1)


def soft_maximum(q: Tensor, log_density: Tensor, temperature: float) -> Tensor:
    """T log sum_k exp((Q_n(s, a_k) - log mu(a_k)) / T), [N, B], over all K actions of a state."""
    return temperature * torch.logsumexp((q - log_density) / temperature, 1)


@torch.no_grad()
def sample_actions(
    actor: SquashedGaussianPolicy, obs: Tensor, next_obs: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Actions [3M, B, A] and their log-densities [3M, B] from normal draws `noise` [3M, B, A]: M
    uniform ones, and M each of the policy at the observations and at the next observations."""
    count = len(noise) // 3
    # The error function makes a standard normal draw uniform in (-1, 1).
    uniform = torch.erf(noise[:count] / math.sqrt(2.0))
    density = torch.full_like(uniform[..., 0], -noise.shape[-1] * math.log(2.0))
    draws = noise[count:].unflatten(0, (count, 2))
    action, log_prob = actor.sample(torch.stack([obs, next_obs]), draws)
    return (
        torch.cat([uniform, action.flatten(0, 1)]),
        torch.cat([density, log_prob.flatten(0, 1)]),
    )


def with_action_noise(batch: Batch, samples: int, generator: torch.Generator) -> Batch:
    """The batch with normal draws for `sample_actions` behind those of the learner."""
    assert batch.noise is not None
    shape = (3 * samples, *batch.noise.shape[1:])
    noise = torch.randn(shape, generator=generator, device=batch.noise.device)
    return batch._replace(noise=torch.cat([batch.noise, noise]))


def multiplier_loss(log_multiplier: Tensor, gap: Tensor, threshold: float) -> Tensor:
    """-alpha' mean_n (gap_n - tau) from weighted gaps [N], the paper's Lagrange form: alpha' grows
    while the gap is above the threshold."""
    return -bounded_multiplier(log_multiplier) * (gap.detach() - threshold).mean()


def bounded_multiplier(log_multiplier: Tensor) -> Tensor:
    return log_multiplier.exp().clamp_max(1e6)


class CQL(offline.SoftOffline):
    """SAC whose critics are pressed down on sampled actions and up on logged ones."""

    version = 1

    def __init__(
        self, spec: Spec, config: CQLConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: CQLConfig
        super().__init__(spec, config or CQLConfig(), device, seed)
        if self.config.threshold is not None:
            self.log_multiplier = nn.Parameter(torch.zeros((), device=self.device))
            self.modules["multiplier"] = nn.ParameterDict({"log": self.log_multiplier})
            self.optimisers["multiplier"] = adam([self.log_multiplier], self.config.threshold_lr)

    def next_batch(self) -> Batch:
        """A batch with draws for the learner and, behind them, for the sampled actions."""
        return with_action_noise(super().next_batch(), self.config.samples, self.generator)

    def update(self, batch: Batch) -> Metrics:
        return self.learner.update(batch, critic=self.update_critic)

    def update_critic(self, batch: Batch, target: Tensor) -> Metrics:
        c = self.config
        sampled, log_density = self.sample_actions(batch)
        actions = torch.cat([batch.action[None], sampled])
        q = offline.sampled_q_values(self.learner.critic, batch.obs, actions)
        loss, metrics = critic_loss(q[:, 0], target, None, 0.0, c.learner.huber)
        gap = conservative_gap(q[:, 1:], log_density, q[:, 0], c.temperature)
        penalty = c.weight * gap
        metrics |= {"critic/target": target.mean(), "critic/gap": gap.detach().mean()}
        if c.threshold is not None:
            multiplier = bounded_multiplier(self.log_multiplier.detach())
            metrics["critic/multiplier"] = multiplier
            threshold_loss = multiplier_loss(self.log_multiplier, penalty, c.threshold)
            penalty = multiplier * (penalty - c.threshold)
            descend(self.optimisers["multiplier"], threshold_loss)
        descend(self.learner.optimisers["critic"], loss + penalty.sum())
        return metrics

    def sample_actions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The actions [3M, B, A] that are pressed down, and their log-densities [3M, B]."""
        assert batch.noise is not None
        return sample_actions(self.learner.actor, batch.obs, batch.next_obs, batch.noise[2:])
