"""Soft actor-critic whose critics give two numbers, a mean and a second one about the errors of the
temporal difference: STAC's and the generalised Gaussian's. What a paper adds is the critics' loss
and the value that policy and target take from the two numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.soft_actor_critic import actor_loss, soft_target, temperature_loss
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, Finite, Positive, Rate, Settings, Widths
from mbrl.networks import (
    EnsembleMLP,
    SquashedGaussianPolicy,
    adam,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class DistributionalConfig(Settings):
    """The settings that these learners share."""

    critics: Count = 1  # independent critics
    hidden: Widths = (256, 256)  # widths of actor and critics
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    learning_rate: Positive = 3e-4  # Adam, actor, critics and log temperature
    alpha: Positive = 0.2  # initial temperature
    learn_alpha: bool = True  # adapt it towards the target entropy
    target_entropy: Finite | None = None  # None: minus the number of action dimensions
    normalise_obs: bool = False  # standardise observations with the data's statistics


class DistributionalActorCritic:
    """`value` maps the critics' outputs [N, B, 2] to values [B]; `critic_loss` is of the outputs at
    the batch, the targets [B], and each target critic's discounted mean [N, B] at the next
    state."""

    def __init__(
        self,
        spec: Spec,
        config: DistributionalConfig,
        device: torch.device,
        generator: Generator,
        value: Callable[[Tensor], Tensor],
        critic_loss: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Metrics]],
    ) -> None:
        self.spec, self.config = spec, config
        self.value, self.critic_loss = value, critic_loss
        hidden, width = config.hidden, spec.obs_dim + spec.action_dim
        self.actor = SquashedGaussianPolicy(spec, hidden, generator=generator).to(device)
        critic = EnsembleMLP(config.critics, width, hidden, 2, generator=generator)
        self.critic = critic.to(device)
        self.target = target_copy(self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.alpha), device=device))
        entropy = config.target_entropy
        self.target_entropy = -float(spec.action_dim) if entropy is None else entropy
        self.modules: dict[str, nn.Module] = {
            "actor": self.actor,
            "critic": self.critic,
            "target": self.target,
            "temperature": nn.ParameterDict({"log_alpha": self.log_alpha}),
        }
        rate = config.learning_rate
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "actor": adam(self.actor.parameters(), rate),
            "critic": adam(self.critic.parameters(), rate),
            "alpha": adam([self.log_alpha], rate),
        }

    @property
    def policy(self) -> SquashedGaussianPolicy:
        return self.actor

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch with the draws of an action at the state and of one at the next."""
        shape = (2, len(batch.obs), self.spec.action_dim)
        noise = torch.randn(shape, generator=generator, device=batch.obs.device)
        return batch._replace(noise=noise)

    def outputs(self, critic: EnsembleMLP, obs: Tensor, action: Tensor) -> Tensor:
        """The two numbers of each critic [N, B, 2] at raw `obs` [B, S] and `action` [B, A]."""
        out: Tensor = critic(torch.cat([self.actor.normaliser(obs), action], -1))
        return out

    def policy_values(self, obs: Tensor) -> Tensor:
        """The value [B] of the greedy action at raw `obs` [B, S]."""
        action = self.actor.scale.to_unit(self.actor(obs))
        return self.value(self.outputs(self.critic, obs, action))

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of temperature, actor, critics and target, in that order."""
        metrics = self.update_policy(batch) | self.update_critic(batch)
        polyak_update(self.target, self.critic, self.config.tau)
        return metrics

    def update_policy(self, batch: Batch) -> Metrics:
        assert batch.noise is not None
        action, log_prob = self.actor.sample(batch.obs, batch.noise[0])
        if self.config.learn_alpha:
            loss = temperature_loss(self.log_alpha, log_prob, self.target_entropy)
            descend(self.optimisers["alpha"], loss)
        alpha = self.log_alpha.detach().exp()
        value = self.value(self.outputs(self.critic, batch.obs, action))
        loss, metrics = actor_loss(log_prob, value, alpha)
        descend(self.optimisers["actor"], loss)
        return metrics | {"actor/alpha": alpha}

    def update_critic(self, batch: Batch) -> Metrics:
        assert batch.noise is not None
        with torch.no_grad():
            action, log_prob = self.actor.sample(batch.next_obs, batch.noise[1])
            following = self.outputs(self.target, batch.next_obs, action)
            value, alpha = self.value(following)[None], self.log_alpha.exp()
            target = soft_target(batch.reward, batch.discount, value, log_prob, alpha)
        outputs = self.outputs(self.critic, batch.obs, batch.action)
        loss, metrics = self.critic_loss(outputs, target, batch.discount * following[..., 0])
        descend(self.optimisers["critic"], loss)
        mean = outputs[..., 0].detach().mean()
        return metrics | {"critic/q_mean": mean, "critic/target": target.mean()}
