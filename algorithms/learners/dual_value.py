"""The learner that f-DVL, ReCOIL and SMORe share: a state value fitted to target critics by a loss
of the difference, weighted cloning of the logged actions, and critics on the value of the next
state. The two losses are what a paper adds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.advantage_weighted import (
    cosine_rate,
    exponential_weight,
    weighted_cloning,
)
from algorithms.learners.critics import critics, q_values
from mbrl.buffer import Batch
from mbrl.config import Count, CountOrZero, Discount, NonNegative, Positive, Rate, Settings, Widths
from mbrl.networks import MLP, TanhMeanGaussianPolicy, adam, descend, polyak_update, target_copy
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class DualConfig(Settings):
    """The settings that all three share."""

    temperature: NonNegative = 3.0  # of the advantage weights
    max_weight: Positive = 100.0  # their upper bound
    hidden: Widths = (256, 256)  # widths of all networks
    layer_norm: bool = True  # in the state value
    learning_rate: Positive = 3e-4  # Adam
    decay_steps: CountOrZero = 1_000_000  # the actor's rate falls to 0 on a cosine; 0: constant
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics


@dataclass(frozen=True)
class DualValueConfig(DualConfig):
    """The settings that f-DVL and ReCOIL share."""

    beta: Positive = 1.0  # temperature of the Gumbel loss of the value
    max_exponent: Positive | None = 7.0  # upper bound of its exponent; None: no bound
    uniform_actions: bool = False  # the value is fitted at as many uniform actions, too


def part_of(batch: Batch, rows: slice) -> Batch:
    """Observations and actions of these rows of a batch."""
    obs, action, next_obs = batch.obs[rows], batch.action[rows], batch.next_obs[rows]
    return batch._replace(obs=obs, action=action, next_obs=next_obs)


def gumbel_loss(
    difference: Tensor, beta: float, max_exponent: float | None, others: Tensor | None = None
) -> Tensor:
    """Mean of exp(z) - z - 1, z = min(difference / beta, bound) over `difference` u [B], divided by
    exp(m), m the largest z, also of `others` [C] if they are given, and at least -1, which takes no
    gradient: no overflow, and a step that is smaller where z is large. Without the bound the
    minimum over a common V of u = q - V is V = beta log mean exp(q / beta).

    Extreme Q-Learning: MaxEnt RL without Entropy (arXiv 2301.02328), eq. 10 and its appendix.
    """
    z = difference / beta
    largest = (z if others is None else torch.cat([z, others / beta])).detach().max()
    if max_exponent is not None:
        z, largest = z.clamp_max(max_exponent), largest.clamp_max(max_exponent)
    largest = largest.clamp_min(-1.0)
    return ((z - largest).exp() - (z + 1) * (-largest).exp()).mean()


class DualValue:
    """Value, policy and critics, updated in that order, each with what was just updated.

    `value_loss` is a scalar of the differences [B] of target critics and value; `critic_loss` is
    one of the critics' values [2, B] at the batch, the batch and V(s') [B]. `learned_from` are the
    rows of a batch that value and policy are fitted to; `in_rewards` says whether values are sums
    of the task's rewards; with `uniform_actions` the value is fitted at as many of these, too.
    `beside` are rows whose differences `value_loss` gets after the others, without a gradient.
    """

    def __init__(
        self,
        spec: Spec,
        config: DualConfig,
        device: torch.device,
        generator: Generator,
        value_loss: Callable[..., Tensor],
        critic_loss: Callable[[Tensor, Batch, Tensor], Tensor],
        learned_from: Callable[[Batch], Batch] = lambda batch: batch,
        *,
        in_rewards: bool = True,
        uniform_actions: bool = False,
        beside: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.config, self.device = config, device
        self.uniform_actions = uniform_actions
        self.value_loss, self.critic_loss = value_loss, critic_loss
        self.learned_from, self.in_rewards, self.beside = learned_from, in_rewards, beside
        self.offline = True  # online the policy's rate is constant
        hidden, rate = config.hidden, config.learning_rate
        self.policy = TanhMeanGaussianPolicy(spec, hidden, generator=generator).to(device)
        self.critic = critics(spec, 2, hidden, generator).to(device)
        value = MLP(spec.obs_dim, hidden, 1, layer_norm=config.layer_norm, generator=generator)
        self.value = value.to(device)
        self.critic_target = target_copy(self.critic)
        learned: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "value": self.value,
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch with the draws that become uniform actions, where there are to be any."""
        if not self.uniform_actions:
            return batch
        shape = self.learned_from(batch).action.shape
        noise = torch.randn((1, *shape), generator=generator, device=self.device)
        return batch._replace(noise=noise)

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of everything."""
        c = self.config
        rate = c.learning_rate
        if self.offline:
            rate = cosine_rate(rate, c.decay_steps, count)
        self.optimisers["policy"].param_groups[0]["lr"] = rate
        rows = self.learned_from(batch)
        q = self.target_values(rows)
        others = None if self.beside is None else self.beside(batch)._replace(noise=None)
        metrics = self.update_value(rows, q, others) | self.update_policy(rows, q)
        metrics |= self.update_critic(batch)
        polyak_update(self.critic_target, self.critic, c.tau)
        return metrics

    @torch.no_grad()
    def target_values(self, rows: Batch) -> Tensor:
        """The least of the target critics [B] at the logged actions, then at uniform ones, if they
        were drawn."""
        obs, action = self.policy.normaliser(rows.obs), rows.action
        if rows.noise is not None:
            # The error function makes a standard normal draw uniform in (-1, 1).
            action = torch.cat([action, torch.erf(rows.noise[0] / math.sqrt(2.0))])
            obs = torch.cat([obs, obs])
        return q_values(self.critic_target, obs, action).min(0).values

    def update_value(self, rows: Batch, q: Tensor, others: Batch | None) -> Metrics:
        value = self.value(self.policy.normaliser(rows.obs))[:, 0]
        differences = [q - value.repeat(len(q) // len(value))]
        if others is not None:
            with torch.no_grad():
                beside = self.value(self.policy.normaliser(others.obs))[:, 0]
                differences.append(self.target_values(others) - beside)
        loss = self.value_loss(*differences)
        descend(self.optimisers["value"], loss)
        return {"value/loss": loss.detach(), "value/mean": value.detach().mean()}

    def update_policy(self, rows: Batch, q: Tensor) -> Metrics:
        c = self.config
        with torch.no_grad():
            value = self.value(self.policy.normaliser(rows.obs))[:, 0]
            advantage = q[: len(value)] - value
        log_prob = self.policy.log_prob(rows.obs, rows.action)
        weight = exponential_weight(advantage, c.temperature, c.max_weight)
        loss, metrics = weighted_cloning(log_prob, weight)
        descend(self.optimisers["policy"], loss)
        return metrics

    def update_critic(self, batch: Batch) -> Metrics:
        normalise = self.policy.normaliser
        with torch.no_grad():
            next_value = self.value(normalise(batch.next_obs))[:, 0]
        q = q_values(self.critic, normalise(batch.obs), batch.action)
        loss = self.critic_loss(q, batch, next_value)
        descend(self.optimisers["critic"], loss)
        return {"critic/loss": loss.detach(), "critic/q_mean": q.detach().mean()}
