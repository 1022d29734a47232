"""TD3+BC: A Minimalist Approach to Offline Reinforcement Learning (arXiv 2106.06860).

Differences: none known from the authors' code; observations are standardised with eps 1e-3.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from algorithms import offline
from mbrl import agent
from mbrl.buffer import Batch
from mbrl.networks import (
    DeterministicPolicy,
    EnsembleMLP,
    adam,
    descend,
    ensemble_values,
    polyak_update,
    target_copy,
)
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class TD3BCConfig:
    """Settings of TD3+BC; the defaults are the paper's."""

    alpha: float = 2.5  # weight of the value term against cloning
    hidden: tuple[int, ...] = (256, 256)  # widths of actor and critics
    learning_rate: float = 3e-4  # Adam, actor and critics
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # rate of the target average
    policy_noise: float = 0.2  # deviation of the target action's noise
    noise_clip: float = 0.5  # and its bound
    policy_every: int = 2  # actor and targets are updated every this many critic updates
    batch_size: int = 256  # rows an update
    normalise_obs: bool = True  # standardise observations with the data's statistics


def td3_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """r + discount min_n Q_n(s', a') [B] from `next_q` [N, B]."""
    return reward + discount * next_q.min(0).values


def actor_loss(q: Tensor, action: Tensor, logged: Tensor, alpha: float) -> tuple[Tensor, Metrics]:
    """-lambda mean Q + mean (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 5, 6)."""
    weight = alpha / q.detach().abs().mean().clamp_min(1e-8)
    clone = (action - logged).square().mean()
    loss = -weight * q.mean() + clone
    return loss, {"actor/loss": loss.detach(), "actor/bc": clone.detach()}


class TD3BC(offline.Offline):
    """TD3 with a behaviour-cloning term."""

    version = 1

    def __init__(
        self, spec: Spec, config: TD3BCConfig | None = None, *, device: str = "cpu", seed: int = 0
    ) -> None:
        offline.require_continuous(spec, "TD3BC")
        self.config: TD3BCConfig
        initial = offline.setup(self, spec, config or TD3BCConfig(), device, seed)
        hidden, rate = self.config.hidden, self.config.learning_rate
        width = spec.obs_dim + spec.action_dim
        self.policy = DeterministicPolicy(spec, hidden, generator=initial).to(self.device)
        self.critic = EnsembleMLP(2, width, hidden, 1, generator=initial).to(self.device)
        self.policy_target, self.critic_target = target_copy(self.policy), target_copy(self.critic)
        self.modules = {
            "policy": self.policy,
            "critic": self.critic,
            "policy_target": self.policy_target,
            "critic_target": self.critic_target,
        }
        self.optimisers = {
            "policy": adam(self.policy.parameters(), rate),
            "critic": adam(self.critic.parameters(), rate),
        }

    act, predict, fit, save = agent.act, agent.predict, agent.fit, agent.save
    prepare = offline.prepare
    state_dict, load_state_dict = offline.state_dict, offline.load_state_dict

    def next_batch(self) -> Batch:
        batch = offline.next_batch(self)
        noise = torch.randn(batch.action.shape, generator=self.generator, device=self.device)
        return batch._replace(noise=noise[None])

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
            x = torch.cat([normalise(batch.next_obs), action], -1)
            next_q, _ = ensemble_values(self.critic_target, x)
            target = td3_target(batch.reward, batch.discount, next_q)
        x = torch.cat([normalise(batch.obs), batch.action], -1)
        q, _ = ensemble_values(self.critic, x)
        loss = (q - target).square().mean(1).sum()
        descend(self.optimisers["critic"], loss)
        return {"critic/loss": loss.detach(), "critic/q_mean": q.detach().mean()}

    def update_policy(self, batch: Batch) -> Metrics:
        action = self.policy.unit(batch.obs)
        x = torch.cat([self.policy.normaliser(batch.obs), action], -1)
        q = self.critic.member(x, 0)[:, 0]
        loss, metrics = actor_loss(q, action, batch.action, self.config.alpha)
        descend(self.optimisers["policy"], loss)
        return metrics

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "TD3BC":
        """Read an agent that `save` or a run's checkpoint wrote."""
        return agent.load(cls, path, device)
