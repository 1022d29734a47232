"""The learner that TD3+BC and ReBRAC share: a deterministic policy, two critics, their targets and
the delayed updates of TD3 (Addressing Function Approximation Error in Actor-Critic Methods,
arXiv 1802.09477). What a paper adds is the policy's loss, and what it takes off the target."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithms.learners.critics import CriticRegression, critics, q_values
from mbrl.buffer import Batch
from mbrl.config import Count, Discount, NonNegative, Positive, Rate, Settings, Widths
from mbrl.native.deterministic import PolicyLoss as CompiledLoss
from mbrl.native.deterministic import PolicySteps, Targets, policy_steps
from mbrl.networks import DeterministicPolicy, adam, descend, polyak_update, target_copy
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class TD3Config(Settings):
    """The settings that TD3+BC and ReBRAC share."""

    hidden: Widths = (256, 256)  # widths of policy and critics
    learning_rate: Positive = 3e-4  # Adam, policy and critics
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    policy_noise: NonNegative = 0.2  # deviation of the target action's noise
    noise_clip: NonNegative = 0.5  # and its bound
    policy_every: Count = 2  # policy and targets are updated in every so many updates
    critic_steps: Count = 1  # steps of the critics an update, on one batch
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics


def td3_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """r + discount min_n Q_n(s', a') [B] from `next_q` [N, B]."""
    check_shapes(reward=(reward, "B"), discount=(discount, "B"), next_q=(next_q, "N B"))
    return reward + discount * next_q.min(0).values


class TD3:
    """TD3 with a `policy_loss` (from this learner, the critics' input [B, S + A] at the policy's
    action, that action and the logged one [B, A]) and, if given, a `next_penalty` [B] of the next
    action that the next value is lowered by. `compiled` is the same loss for compiled code, and
    `compiled_penalty` the weight of the squared distance that `next_penalty` is."""

    def __init__(
        self,
        spec: Spec,
        config: TD3Config,
        device: torch.device,
        generator: torch.Generator,
        policy_loss: "PolicyLoss",
        next_penalty: Callable[[Batch, Tensor], Tensor] | None = None,
        *,
        layer_norm: bool = False,
        compiled: CompiledLoss | None = None,
        compiled_penalty: float = 0.0,
    ) -> None:
        self.spec, self.config, self.device = spec, config, device
        self.policy_loss, self.next_penalty = policy_loss, next_penalty
        self.policy = DeterministicPolicy(spec, config.hidden, generator=generator).to(device)
        critic = critics(spec, 2, config.hidden, generator, layer_norm=layer_norm)
        self.critic = critic.to(device)
        self.policy_target, self.critic_target = target_copy(self.policy), target_copy(self.critic)
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "policy_target": self.policy_target,
            "critic_target": self.critic_target,
        }
        rate = config.learning_rate
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "policy": adam(self.policy.parameters(), rate),
            "critic": adam(self.critic.parameters(), rate),
        }
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.policy.normaliser
        )
        self.steps: PolicySteps | None = None
        if compiled is not None:
            optimiser = self.optimisers["policy"]
            self.steps = policy_steps(spec, self.policy, optimiser, compiled, self.critic)
        if self.steps is not None:
            noise = (config.policy_noise, config.noise_clip)
            self.targets = Targets(
                spec, self.policy_target, self.critic_target, *noise, compiled_penalty
            )

    def draw(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with the target actions' noise, one draw for each step of the critics."""
        shape = (self.config.critic_steps, len(batch.obs), self.spec.action_dim)
        noise = torch.randn(shape, generator=generator, device=self.device)
        return batch._replace(noise=noise)

    def update(self, batch: Batch, count: int) -> Metrics:
        due = count % self.config.policy_every == 0
        if self.steps is not None and self.steps.ready(batch) and self.regression.ready(batch):
            return self.compiled_update(self.steps, batch, due)
        assert batch.noise is not None
        metrics: Metrics = {}
        for noise in batch.noise:
            metrics = self.update_critic(batch, noise)
        if due:
            metrics |= self.update_policy(batch)
            polyak_update(self.policy_target, self.policy, self.config.tau)
            polyak_update(self.critic_target, self.critic, self.config.tau)
        return metrics

    def compiled_update(self, steps: PolicySteps, batch: Batch, due: bool) -> Metrics:
        """`update` in compiled code, with the policy and the targets where they are `due`."""
        assert batch.noise is not None
        metrics: Metrics = {}
        for noise in batch.noise:
            targets = self.targets(batch._replace(noise=noise[None]))
            metrics = self.regression.step(batch, targets)
        if due:
            loss, distance = steps.step(batch)
            metrics |= {"actor/loss": loss, "actor/bc": distance}
            assert self.regression.compiled is not None
            critic = self.regression.compiled.network
            self.targets.average(steps.policy, critic, self.config.tau)
        return metrics

    def update_critic(self, batch: Batch, noise: Tensor) -> Metrics:
        """A step of the critics with standard normal `noise` [B, A] of the target action."""
        c, normalise = self.config, self.policy.normaliser
        with torch.no_grad():
            noise = (noise * c.policy_noise).clamp(-c.noise_clip, c.noise_clip)
            action = (self.policy_target.unit(batch.next_obs) + noise).clamp(-1, 1)
            next_q = q_values(self.critic_target, normalise(batch.next_obs), action)
            if self.next_penalty is not None:
                next_q = next_q - self.next_penalty(batch, action)
            target = td3_target(batch.reward, batch.discount, next_q)
        return self.regression.step(batch, target)

    def update_policy(self, batch: Batch) -> Metrics:
        action = self.policy.unit(batch.obs)
        x = torch.cat([self.policy.normaliser(batch.obs), action], -1)
        loss, metrics = self.policy_loss(self, x, action, batch.action)
        descend(self.optimisers["policy"], loss)
        return metrics


PolicyLoss = Callable[[TD3, Tensor, Tensor, Tensor], tuple[Tensor, Metrics]]
