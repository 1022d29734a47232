"""The learner that AWAC and CRR share: critics of the policy's own values, and a policy that clones
the logged actions with weights from their advantages. The weight is what a paper adds."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from algorithms.learners.critics import CriticRegression, critics, q_values, sampled_q_values
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Positive, Rate, Settings, Widths
from mbrl.networks import TanhMeanGaussianPolicy, adam, descend, polyak_update, target_copy
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


def advantages(q: Tensor, sampled_q: Tensor, baseline: Literal["mean", "max"] = "mean") -> Tensor:
    """A(s, a) = min_n Q_n(s, a) - baseline over k of min_n Q_n(s, a_k), [B], from `q` [N, B] of the
    logged actions and `sampled_q` [N, K, B] of the policy's.

    Critic Regularized Regression (arXiv 2006.15134), table 1: the mean or the largest of K samples.
    """
    check_shapes(q=(q, "N B"), sampled_q=(sampled_q, "N K B"))
    values = sampled_q.min(0).values
    state_value = values.mean(0) if baseline == "mean" else values.max(0).values
    return q.min(0).values - state_value


def exponential_weight(advantage: Tensor, scale: float, bound: float) -> Tensor:
    """min(exp(scale * A), bound), [B]."""
    return (scale * advantage).exp().clamp_max(bound)


def weighted_cloning(log_prob: Tensor, weight: Tensor) -> tuple[Tensor, Metrics]:
    """-mean weight log pi(a|s), both [B]; no gradient flows into the weight."""
    check_shapes(log_prob=(log_prob, "B"), weight=(weight, "B"))
    weight = weight.detach()
    loss = -(weight * log_prob).mean()
    return loss, {"actor/loss": loss.detach(), "actor/weight": weight.mean()}


def cosine_rate(rate: float, decay_steps: int, count: int) -> float:
    """The learning rate after `count` updates: from `rate` on a cosine to 0 at `decay_steps`, or
    `rate` where that is 0."""
    if decay_steps == 0:
        return rate
    progress = min(1.0, count / decay_steps)
    return rate * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class AdvantageWeightedConfig(Settings):
    """The settings that AWAC and CRR share."""

    critics: Count = 2  # their minimum is the value
    hidden: Widths = (256, 256)  # widths of policy and critics
    learning_rate: Positive = 3e-4  # Adam, policy and critics
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics


class AdvantageWeighted:
    """Critics of the policy's values and cloning with `weight` [B] of the advantages [B], which
    subtract a `baseline` over `samples` actions of the policy."""

    def __init__(
        self,
        spec: Spec,
        config: AdvantageWeightedConfig,
        device: torch.device,
        generator: torch.Generator,
        weight: Callable[[Tensor], Tensor],
        *,
        baseline: Literal["mean", "max"] = "mean",
        samples: int = 1,
    ) -> None:
        self.config, self.device = config, device
        self.weight, self.baseline, self.samples = weight, baseline, samples
        hidden, rate = config.hidden, config.learning_rate
        self.policy = TanhMeanGaussianPolicy(spec, hidden, generator=generator).to(device)
        self.critic = critics(spec, config.critics, hidden, generator).to(device)
        self.critic_target = target_copy(self.critic)
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "critic_target": self.critic_target,
        }
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "policy": adam(self.policy.parameters(), rate),
            "critic": adam(self.critic.parameters(), rate),
        }
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.policy.normaliser
        )

    def draw(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with the draws of one next action and of `samples` actions a state."""
        shape = (1 + self.samples, *batch.action.shape)
        noise = torch.randn(shape, generator=generator, device=self.device)
        return batch._replace(noise=noise)

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        metrics = self.update_critic(batch) | self.update_policy(batch)
        polyak_update(self.critic_target, self.critic, self.config.tau)
        return metrics

    def update_critic(self, batch: Batch) -> Metrics:
        assert batch.noise is not None
        normalise = self.policy.normaliser
        with torch.no_grad():
            action, _ = self.policy.sample(batch.next_obs, batch.noise[0])
            next_q = q_values(self.critic_target, normalise(batch.next_obs), action)
            target = batch.reward + batch.discount * next_q.min(0).values
        return self.regression.step(batch, target)

    def update_policy(self, batch: Batch) -> Metrics:
        advantage = self.advantage(batch)
        log_prob = self.policy.log_prob(batch.obs, batch.action)
        loss, metrics = weighted_cloning(log_prob, self.weight(advantage))
        descend(self.optimisers["policy"], loss)
        return metrics | {"actor/advantage": advantage.mean()}

    @torch.no_grad()
    def advantage(self, batch: Batch) -> Tensor:
        """Advantages [B] of the logged actions; they and the samples are valued in one call."""
        assert batch.noise is not None
        sampled, _ = self.policy.sample(batch.obs, batch.noise[1:])
        actions = torch.cat([batch.action[None], sampled])
        q = sampled_q_values(self.critic, self.policy.normaliser(batch.obs), actions)
        return advantages(q[:, 0], q[:, 1:], self.baseline)
