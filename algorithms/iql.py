"""IQL: Offline Reinforcement Learning with Implicit Q-Learning (arXiv 2110.06169).

Differences: no dropout. The order value, policy, critic is the authors'.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algorithms import offline
from algorithms.learners.advantage_weighted import exponential_weight, weighted_cloning
from mbrl.buffer import Batch
from mbrl.errors import ConfigError
from mbrl.networks import MLP, TanhMeanGaussianPolicy, descend, polyak_update, target_copy
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class IQLConfig:
    """Settings of IQL; the defaults are the paper's for locomotion."""

    expectile: float = 0.7  # tau of the value regression
    temperature: float = 3.0  # beta of the advantage weights
    max_weight: float = 100.0  # their upper bound
    hidden: tuple[int, ...] = (256, 256)  # widths of all networks
    learning_rate: float = 3e-4  # Adam
    decay_steps: int = 1_000_000  # the actor's rate falls to 0 on a cosine; 0: constant
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # rate of the target average
    batch_size: int = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics
    normalise_rewards: bool = False  # times 1000 / range of returns; the authors' for locomotion

    def __post_init__(self) -> None:
        if not 0 < self.expectile < 1:
            raise ConfigError(f"expectile is {self.expectile}, it must lie in (0, 1)")


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Mean of |expectile - 1(u < 0)| u^2 over `difference` u [B] (eq. 4)."""
    weight = torch.where(difference < 0, 1.0 - expectile, expectile)
    return (weight * difference.square()).mean()


def policy_loss(
    log_prob: Tensor, advantage: Tensor, temperature: float, max_weight: float
) -> tuple[Tensor, Metrics]:
    """-mean min(exp(beta A), bound) log pi(a|s), all [B] (eq. 7)."""
    return weighted_cloning(log_prob, exponential_weight(advantage, temperature, max_weight))


class IQL(offline.Offline):
    """Implicit Q-learning."""

    version = 1
    policy_class: Any = TanhMeanGaussianPolicy

    def __init__(
        self, spec: Spec, config: IQLConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config: IQLConfig
        initial = self.setup(spec, config or IQLConfig(), device, seed)
        hidden = self.config.hidden
        self.policy = self.policy_class(spec, hidden, generator=initial).to(self.device)
        self.critic = offline.critics(spec, 2, hidden, initial).to(self.device)
        self.value = MLP(spec.obs_dim, hidden, 1, generator=initial).to(self.device)
        self.critic_target = target_copy(self.critic)
        self.own(
            self.config.learning_rate,
            {"policy": self.policy, "critic": self.critic, "value": self.value},
            critic_target=self.critic_target,
        )

    def update(self, batch: Batch) -> Metrics:
        c, normalise = self.config, self.policy.normaliser
        obs, next_obs = normalise(batch.obs), normalise(batch.next_obs)
        with torch.no_grad():
            next_value = self.value(next_obs)[:, 0]
            q_target = offline.q_values(self.critic_target, obs, batch.action).min(0).values
        value = self.value(obs)[:, 0]
        advantage = (q_target - value).detach()
        value_loss = expectile_loss(q_target - value, c.expectile)
        descend(self.optimisers["value"], value_loss)

        log_prob = self.log_prob(batch)
        loss, metrics = policy_loss(log_prob, advantage, c.temperature, c.max_weight)
        self._set_policy_rate()
        descend(self.optimisers["policy"], loss)

        q = offline.q_values(self.critic, obs, batch.action)
        target = batch.reward + batch.discount * next_value
        critic_loss = (q - target).square().mean(1).sum() / 2
        descend(self.optimisers["critic"], critic_loss)
        polyak_update(self.critic_target, self.critic, c.tau)
        return metrics | {
            "value/loss": value_loss.detach(),
            "critic/loss": critic_loss.detach(),
            "critic/q_mean": q.detach().mean(),
        }

    def log_prob(self, batch: Batch) -> Tensor:
        """log pi(a|s) [B] of the logged actions."""
        log_prob: Tensor = self.policy.log_prob(batch.obs, batch.action)
        return log_prob

    def _set_policy_rate(self) -> None:
        c = self.config
        if c.decay_steps > 0:
            progress = min(1.0, self.step / c.decay_steps)
            rate = c.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
            self.optimisers["policy"].param_groups[0]["lr"] = rate
