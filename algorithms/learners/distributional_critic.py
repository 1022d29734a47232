"""Soft actor-critic whose critics give two numbers, a mean and a second one about the errors of the
temporal difference: STAC's and the generalised Gaussian's. What a paper adds is the critics' loss
and the value that policy and target take from the two numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.dropout import Dropped, draw_masks, masked_outputs, masked_sample
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
    state. `dropout` are the rates of the policy's and of the critics' hidden units in all passes of
    an update; acting has none."""

    def __init__(
        self,
        spec: Spec,
        config: DistributionalConfig,
        device: torch.device,
        generator: Generator,
        value: Callable[[Tensor], Tensor],
        critic_loss: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Metrics]],
        dropout: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.spec, self.config = spec, config
        self.value, self.critic_loss, self.dropout = value, critic_loss, dropout
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

    def draw(self, batch: Batch, generator: Generator) -> Batch | Dropped:
        """The batch with the draws of an action at the state and of one at the next, and with the
        masks of dropout, if there is any."""
        rows, c = len(batch.obs), self.config
        shape = (2, rows, self.spec.action_dim)
        noise = torch.randn(shape, generator=generator, device=batch.obs.device)
        drawn = batch._replace(noise=noise)
        if self.dropout == (0.0, 0.0):
            return drawn
        policy, critic = self.dropout
        return Dropped(
            drawn,
            draw_masks((2, 1, rows), c.hidden, policy, generator),
            draw_masks((3, c.critics, rows), c.hidden, critic, generator),
        )

    def outputs(
        self, critic: EnsembleMLP, obs: Tensor, action: Tensor, masks: Sequence[Tensor] = ()
    ) -> Tensor:
        """The two numbers of each critic [N, B, 2] at raw `obs` [B, S] and `action` [B, A], under
        `masks` [N, B, W] of its hidden layers."""
        return masked_outputs(critic, torch.cat([self.actor.normaliser(obs), action], -1), masks)

    def policy_values(self, obs: Tensor) -> Tensor:
        """The value [B] of the greedy action at raw `obs` [B, S]."""
        action = self.actor.scale.to_unit(self.actor(obs))
        return self.value(self.outputs(self.critic, obs, action))

    def update(self, batch: Batch | Dropped, count: int = 0) -> Metrics:
        """One step of temperature, actor, critics and target, in that order."""
        drawn = batch if isinstance(batch, Dropped) else Dropped(batch)
        metrics = self.update_policy(drawn) | self.update_critic(drawn)
        polyak_update(self.target, self.critic, self.config.tau)
        return metrics

    def update_policy(self, drawn: Dropped) -> Metrics:
        batch = drawn.batch
        assert batch.noise is not None
        masks = [mask[0] for mask in drawn.policy]
        action, log_prob = masked_sample(self.actor, batch.obs, batch.noise[0], masks)
        if self.config.learn_alpha:
            loss = temperature_loss(self.log_alpha, log_prob, self.target_entropy)
            descend(self.optimisers["alpha"], loss)
        alpha = self.log_alpha.detach().exp()
        masks = [mask[0] for mask in drawn.critic]
        value = self.value(self.outputs(self.critic, batch.obs, action, masks))
        loss, metrics = actor_loss(log_prob, value, alpha)
        descend(self.optimisers["actor"], loss)
        return metrics | {"actor/alpha": alpha}

    def update_critic(self, drawn: Dropped) -> Metrics:
        batch = drawn.batch
        assert batch.noise is not None
        with torch.no_grad():
            masks = [mask[1] for mask in drawn.policy]
            action, log_prob = masked_sample(self.actor, batch.next_obs, batch.noise[1], masks)
            masks = [mask[1] for mask in drawn.critic]
            following = self.outputs(self.target, batch.next_obs, action, masks)
            value, alpha = self.value(following)[None], self.log_alpha.exp()
            target = soft_target(batch.reward, batch.discount, value, log_prob, alpha)
        masks = [mask[2] for mask in drawn.critic]
        outputs = self.outputs(self.critic, batch.obs, batch.action, masks)
        loss, metrics = self.critic_loss(outputs, target, batch.discount * following[..., 0])
        descend(self.optimisers["critic"], loss)
        mean = outputs[..., 0].detach().mean()
        return metrics | {"critic/q_mean": mean, "critic/target": target.mean()}
