"""A2PR: Adaptive Advantage-Guided Policy Regularization for Offline Reinforcement Learning (arXiv
2405.19909), compared with the authors' code (ltlhuuu/A2PR, f92a2a4).

Differences: no gradient flows through the proposed action (`through_proposal` restores the
authors'); its values take no gradient either.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.critics import CriticRegression, critics, q_values
from algorithms.learners.td3 import td3_target
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, NonNegative, Positive, Rate, Settings, Widths
from mbrl.networks import MLP, DeterministicPolicy, adam, descend, polyak_update, target_copy
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec

LOG_STD_BOUNDS = (-4.0, 15.0)


@dataclass(frozen=True)
class A2PRConfig(Settings):
    """Settings of A2PR. The authors choose `alpha`, `regularisation` and the discount per dataset
    (40, 1 and 0.99 for HalfCheetah-medium, 2.5, 0.4 and 0.995 for Hopper-medium)."""

    alpha: NonNegative = 2.5  # weight of the value term against the regularisation
    regularisation: NonNegative = 0.5  # weight of the regularisation where it is on
    vae_weight: Positive = 1.0  # weight of the VAE's reconstruction of actions with an advantage
    kl_weight: NonNegative = 0.5  # and of the divergence of its codes from a standard normal
    through_proposal: bool = False  # let the policy's gradient flow through the VAE's proposal
    hidden: Widths = (256, 256, 256)  # widths of the policy
    critic_hidden: Widths = (256, 256, 256, 256)  # widths of critics and state value
    vae_hidden: Widths = (750, 750)  # widths of encoder and decoder
    learning_rate: Positive = 3e-4  # Adam, policy, critics and state value
    vae_learning_rate: Positive = 1e-3  # Adam, VAE
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    policy_noise: NonNegative = 0.2  # deviation of the target action's noise
    noise_clip: NonNegative = 0.5  # and its bound
    policy_every: Count = 2  # policy and targets are updated in every so many updates
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = True  # standardise observations with the data's statistics


class ActionVAE(nn.Module):
    """A conditional VAE of actions in [-1, 1] given (standardised) observations, with codes of
    twice the actions' size."""

    def __init__(self, spec: Spec, hidden: tuple[int, ...], generator: Generator) -> None:
        super().__init__()
        self.codes = 2 * spec.action_dim
        width = spec.obs_dim + spec.action_dim
        self.encoder = MLP(width, hidden, 2 * self.codes, generator=generator)
        self.decoder = MLP(spec.obs_dim + self.codes, hidden, spec.action_dim, generator=generator)

    def forward(self, obs: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The reconstruction [B, A] from a code drawn with standard normal `noise` [B, 2 A], and
        the code's mean and log-deviation."""
        mean, log_std = self.encoder(torch.cat([obs, action], -1)).chunk(2, -1)
        log_std = log_std.clamp(*LOG_STD_BOUNDS)
        code = mean + log_std.exp() * noise
        return torch.tanh(self.decoder(torch.cat([obs, code], -1))), mean, log_std


def vae_loss(
    reconstruction: Tensor,
    action: Tensor,
    mean: Tensor,
    log_std: Tensor,
    chosen: Tensor,
    kl_weight: float,
) -> Tensor:
    """Mean over rows and components of `chosen` [B] times the squared error of [B, A], plus
    `kl_weight` times the mean over rows and codes of the divergence of N(mean, std^2) [B, L] from
    N(0, 1)."""
    check_shapes(
        reconstruction=(reconstruction, "B A"),
        action=(action, "B A"),
        mean=(mean, "B L"),
        log_std=(log_std, "B L"),
        chosen=(chosen, "B"),
    )
    error = (chosen[:, None] * (reconstruction - action).square()).mean()
    divergence = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std).mean()
    return error + kl_weight * divergence


def guide(
    action: Tensor, q: Tensor, proposal: Tensor, proposal_q: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """What the policy is drawn to [B, A], the `proposal` where its value [B] is at least that of
    the logged `action`, else that one; and 1 where either has an advantage over `value` [B] (the
    logged one above 0, the proposal at least 0), else 0."""
    check_shapes(
        action=(action, "B A"),
        q=(q, "B"),
        proposal=(proposal, "B A"),
        proposal_q=(proposal_q, "B"),
        value=(value, "B"),
    )
    chosen = torch.where((proposal_q >= q)[:, None], proposal, action)
    return chosen, ((proposal_q >= value) | (q > value)).to(q.dtype)


def actor_loss(
    q: Tensor, action: Tensor, target: Tensor, weight: Tensor, alpha: float
) -> tuple[Tensor, Metrics]:
    """-lambda mean Q + mean weight (pi(s) - target)^2 with lambda = alpha / mean |Q|; `q` and
    `weight` [B], actions [B, A]."""
    check_shapes(q=(q, "B"), action=(action, "B A"), target=(target, "B A"), weight=(weight, "B"))
    scale = alpha / q.detach().abs().mean().clamp_min(1e-8)
    distance = (weight[:, None] * (action - target).square()).mean()
    loss = -scale * q.mean() + distance
    return loss, {"actor/loss": loss.detach(), "actor/bc": distance.detach()}


class AdvantageGuided:
    """TD3's critics, a state value, the VAE of logged actions with an advantage, and the policy."""

    def __init__(
        self, spec: Spec, config: A2PRConfig, device: torch.device, generator: Generator
    ) -> None:
        self.spec, self.config, self.device = spec, config, device
        widths, rate = config.critic_hidden, config.learning_rate
        self.policy = DeterministicPolicy(spec, config.hidden, generator=generator).to(device)
        self.critic = critics(spec, 2, widths, generator).to(device)
        self.value = MLP(spec.obs_dim, widths, 1, generator=generator).to(device)
        self.vae = ActionVAE(spec, config.vae_hidden, generator).to(device)
        self.policy_target, self.critic_target = target_copy(self.policy), target_copy(self.critic)
        learned: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "value": self.value,
            "vae": self.vae,
        }
        self.modules = learned | {
            "policy_target": self.policy_target,
            "critic_target": self.critic_target,
        }
        self.optimisers = {
            name: adam(m.parameters(), config.vae_learning_rate if name == "vae" else rate)
            for name, m in learned.items()
        }
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.policy.normaliser
        )

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch with the draws of the target action, of the logged action's code (two) and of
        the policy's (two)."""
        shape = (5, len(batch.obs), self.spec.action_dim)
        return batch._replace(noise=torch.randn(shape, generator=generator, device=self.device))

    def update(self, batch: Batch, count: int = 0) -> Metrics:
        """One step of critics, state value, VAE and, when due, policy and targets, in that order.
        Advantages are over the state value before its step."""
        assert batch.noise is not None
        c, normalise = self.config, self.policy.normaliser
        obs, next_obs = normalise(batch.obs), normalise(batch.next_obs)
        with torch.no_grad():
            noise = (batch.noise[0] * c.policy_noise).clamp(-c.noise_clip, c.noise_clip)
            next_action = (self.policy_target.unit(batch.next_obs) + noise).clamp(-1, 1)
            next_q = q_values(self.critic_target, next_obs, next_action)
            target = td3_target(batch.reward, batch.discount, next_q)
        metrics = self.regression.step(batch, target)
        with torch.no_grad():
            present_q = q_values(self.critic, next_obs, next_action)
            present = td3_target(batch.reward, batch.discount, present_q)
        value = self.value(obs)[:, 0]
        value_loss = (value - torch.minimum(target, present)).square().mean()
        descend(self.optimisers["value"], value_loss)
        value = value.detach()
        with torch.no_grad():
            q = q_values(self.critic, obs, batch.action)[0]
        metrics |= self.update_vae(batch, obs, c.vae_weight * (q > value))
        if count % c.policy_every == 0:
            metrics |= self.update_policy(batch, obs, q, value)
            polyak_update(self.critic_target, self.critic, c.tau)
            polyak_update(self.policy_target, self.policy, c.tau)
        return metrics | {"value/loss": value_loss.detach()}

    def update_vae(self, batch: Batch, obs: Tensor, chosen: Tensor) -> Metrics:
        """A step of the VAE on the batch's actions with the weights `chosen` [B]."""
        assert batch.noise is not None
        noise = torch.cat([batch.noise[1], batch.noise[2]], -1)
        reconstruction, mean, log_std = self.vae(obs, batch.action, noise)
        loss = vae_loss(reconstruction, batch.action, mean, log_std, chosen, self.config.kl_weight)
        descend(self.optimisers["vae"], loss)
        return {"vae/loss": loss.detach(), "vae/chosen": (chosen > 0).to(loss.dtype).mean()}

    def update_policy(self, batch: Batch, obs: Tensor, q: Tensor, value: Tensor) -> Metrics:
        """A step of the policy; `q` [B] are the logged actions' values, `value` [B] the states'."""
        assert batch.noise is not None
        c = self.config
        action = self.policy.unit(batch.obs)
        noise = torch.cat([batch.noise[3], batch.noise[4]], -1)
        proposal = self.vae(obs, action if c.through_proposal else action.detach(), noise)[0]
        if not c.through_proposal:
            proposal = proposal.detach()
        with torch.no_grad():
            proposal_q = q_values(self.critic, obs, proposal)[0]
        target, on = guide(batch.action, q, proposal, proposal_q, value)
        own_q = self.critic.member(torch.cat([obs, action], -1), 0)[:, 0]
        loss, metrics = actor_loss(own_q, action, target, c.regularisation * on, c.alpha)
        descend(self.optimisers["policy"], loss)
        chosen = (proposal_q >= q).to(on.dtype).mean()
        return metrics | {"actor/regularised": on.mean(), "actor/proposed": chosen}


class A2PR(Agent[Batch]):
    """TD3 with a regularisation towards actions that have an advantage.

    Formula:

        critics      as TD3+BC; y the same target, y' that of the present critics
        value        L = mean (V(s) - min(y, y'))^2
        VAE          L = mean 1(Q_1(s, a) > V(s)) (decode(s, z) - a)^2 + 0.5 KL(N(z) || N(0, 1))
        policy       L = -lambda mean Q_1(s, pi(s)) + w mean m (pi(s) - t)^2
                     lambda = alpha / mean |Q_1(s, pi(s))|, p = decode(s, encode(s, pi(s)))
                     t = p where Q_1(s, p) >= Q_1(s, a), else a
                     m = 1 where Q_1(s, p) >= V(s) or Q_1(s, a) > V(s), else 0

    When not to use it: where the log is of one good policy: TD3+BC is the same there without three
    further networks. The authors choose alpha and the weight for each dataset, alpha up to 40; no
    table of ours says yet what it is worth at TD3+BC's. While values still fall, V, the least of
    several, lies below Q and lets nearly all actions pass: look at `vae/chosen`.
    """

    version = 1
    config: A2PRConfig

    def build(self, generator: Generator) -> tuple[AdvantageGuided, LoggedRows]:
        c = self.config
        learner = AdvantageGuided(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
