"""What TD3+BC and ReBRAC share: a deterministic policy, two critics, their targets and the delayed
updates of TD3 (Addressing Function Approximation Error in Actor-Critic Methods,
arXiv 1802.09477)."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms import offline
from mbrl.buffer import Batch
from mbrl.networks import DeterministicPolicy, descend, polyak_update, target_copy
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class TD3Config:
    """The settings that TD3+BC and ReBRAC share."""

    hidden: tuple[int, ...] = (256, 256)  # widths of policy and critics
    learning_rate: float = 3e-4  # Adam, policy and critics
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # rate of the target average
    policy_noise: float = 0.2  # deviation of the target action's noise
    noise_clip: float = 0.5  # and its bound
    policy_every: int = 2  # policy and targets are updated every this many critic updates
    batch_size: int = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics


def td3_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """r + discount min_n Q_n(s', a') [B] from `next_q` [N, B]."""
    return reward + discount * next_q.min(0).values


class TD3(offline.Offline):
    """TD3 on logged data. A class built on it defines `policy_loss`."""

    def __init__(
        self, spec: Spec, config: TD3Config, device: str, seed: int, *, layer_norm: bool = False
    ) -> None:
        initial = self.setup(spec, config, device, seed)
        hidden = config.hidden
        self.policy = DeterministicPolicy(spec, hidden, generator=initial).to(self.device)
        critic = offline.critics(spec, 2, hidden, initial, layer_norm=layer_norm)
        self.critic = critic.to(self.device)
        self.policy_target, self.critic_target = target_copy(self.policy), target_copy(self.critic)
        self.own(
            config.learning_rate,
            {"policy": self.policy, "critic": self.critic},
            policy_target=self.policy_target,
            critic_target=self.critic_target,
        )

    def next_batch(self) -> Batch:
        """A uniform batch with the target action's noise."""
        batch = super().next_batch()
        shape = (1, len(batch.obs), self.spec.action_dim)
        noise = torch.randn(shape, generator=self.generator, device=self.device)
        return batch._replace(noise=noise)

    def update(self, batch: Batch) -> Metrics:
        metrics = self.update_critic(batch)
        if self.step % self.config.policy_every == 0:
            metrics |= self.update_policy(batch)
            polyak_update(self.policy_target, self.policy, self.config.tau)
            polyak_update(self.critic_target, self.critic, self.config.tau)
        return metrics

    def update_critic(self, batch: Batch) -> Metrics:
        assert batch.noise is not None
        c, normalise = self.config, self.policy.normaliser
        with torch.no_grad():
            noise = (batch.noise[0] * c.policy_noise).clamp(-c.noise_clip, c.noise_clip)
            action = (self.policy_target.unit(batch.next_obs) + noise).clamp(-1, 1)
            next_q = self.next_q_values(batch, action)
            target = td3_target(batch.reward, batch.discount, next_q)
        q = offline.q_values(self.critic, normalise(batch.obs), self.logged(batch))
        loss = (q - target).square().mean(1).sum()
        descend(self.optimisers["critic"], loss)
        return {"critic/loss": loss.detach(), "critic/q_mean": q.detach().mean()}

    def next_q_values(self, batch: Batch, action: Tensor) -> Tensor:
        """Target critics [N, B] at the next observations and `action` [B, A]."""
        obs = self.policy.normaliser(batch.next_obs)
        return offline.q_values(self.critic_target, obs, action)

    def logged(self, batch: Batch) -> Tensor:
        """The logged actions [B, A]; a batch may carry more columns behind them."""
        return batch.action[:, : self.spec.action_dim]

    def update_policy(self, batch: Batch) -> Metrics:
        action = self.policy.unit(batch.obs)
        x = torch.cat([self.policy.normaliser(batch.obs), action], -1)
        loss, metrics = self.policy_loss(x, action, self.logged(batch))
        descend(self.optimisers["policy"], loss)
        return metrics

    @abstractmethod
    def policy_loss(self, x: Tensor, action: Tensor, logged: Tensor) -> tuple[Tensor, Metrics]:
        """Loss of the policy's `action` [B, A]; `x` [B, S + A] is the critics' input there."""
