"""The learner of agents with memory: separate recurrent encoders of actor and critic, a squashed
Gaussian head, an ensemble of critic heads (REDQ), trained on tapes of whole episodes."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.learners.soft_actor_critic import value_memory
from mbrl.config import (
    Count,
    Discount,
    Finite,
    Positive,
    Probability,
    Rate,
    Settings,
    Several,
    Widths,
)
from mbrl.errors import ConfigError
from mbrl.native.adam import Adam
from mbrl.networks import ActionScale, EnsembleMLP, descend, polyak_update, target_copy
from mbrl.networks.policies import squashed_log_prob
from mbrl.networks.recurrent import (
    MemoryEncoder,
    NormedLayer,
    normed_network,
    uniform_initialisation,
)
from mbrl.sequences import Tape
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec

LOG_STD = (-5.0, 2.0)  # bounds of the actor's log-deviation


@dataclass(frozen=True)
class MemoryConfig(Settings):
    """The encoder of histories."""

    kind: Literal["lru", "gru", "none"] = "lru"  # none: a Markov agent, of the observation alone
    width: Count = 256  # features of a position
    layers: Count = 2  # recurrent layers
    states: Count = 128  # complex numbers that an LRU layer remembers


@dataclass(frozen=True)
class RecurrentLearnerConfig(Settings):
    """Settings of the learner; the defaults are those of NEUBAY's code for locomotion."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)
    hidden: Widths = (256, 256)  # widths of the heads
    critics: Count = 10  # heads on one critic encoder
    target_min_of: Count = 2  # random target heads whose minimum is bootstrapped
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    tape: Several = 2048  # positions an update
    real_weight: Probability = 0.05  # kappa: weight of recorded steps against imagined ones
    encoder_lr: Positive = 1e-5  # Adam, both encoders
    head_lr: Positive = 1e-4  # Adam, both heads
    actor_decay: Count | None = None  # updates over which the actor's rates fall to 0 as a cosine
    alpha: Positive = 0.2  # (initial) temperature
    learn_alpha: bool = True  # adapt it towards the target entropy
    alpha_lr: Positive = 1e-4  # Adam, log temperature
    target_entropy: Finite | None = None  # None: minus the number of action dimensions
    huber: Positive = 1.0  # Huber threshold of the critic loss
    clip: Positive = 1000.0  # largest gradient norm

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_min_of > self.critics:
            raise ConfigError(
                f"target_min_of is {self.target_min_of}, it must lie in 1..{self.critics} (critics)"
            )


def step_weights(mask: Tensor, real: Tensor, real_weight: float) -> Tensor:
    """Weights [T] such that their sum with a loss is kappa times its mean over recorded steps plus
    1 - kappa times that over imagined ones. A kind that is absent counts nothing."""
    check_shapes(mask=(mask, "T"), real=(real, "T"))
    recorded, imagined = (mask & real).float(), (mask & ~real).float()
    share = recorded * (real_weight / recorded.sum().clamp_min(1.0))
    return share + imagined * ((1.0 - real_weight) / imagined.sum().clamp_min(1.0))


def bootstrapped(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """y_t = r_t + discount_t V_{t+1} [T] of a tape, from the values `next_value` [T] at its own
    positions; the last entry means nothing."""
    check_shapes(reward=(reward, "T"), discount=(discount, "T"), next_value=(next_value, "T"))
    return reward + discount * next_value.roll(-1)


def critic_loss(q: Tensor, target: Tensor, weights: Tensor, huber: float) -> Tensor:
    """Weighted Huber error, mean over heads, of `q` [N, T] against `target` [T]."""
    check_shapes(q=(q, "N T"), target=(target, "T"), weights=(weights, "T"))
    error = F.huber_loss(q, target.expand_as(q), reduction="none", delta=huber)
    return (error.mean(0) * weights).sum()


class RecurrentPolicy(nn.Module):
    """A squashed Gaussian over actions given the history so far. What it carries from step to step
    [B, M] is its memory, the last action in [-1, 1], and the reward that followed."""

    def __init__(
        self, spec: Spec, config: RecurrentLearnerConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.spec, self.scale = spec, ActionScale(spec)
        self.encoder = encoder(spec, config.memory, generator)
        layers: list[nn.Module] = []
        fan_in = config.memory.width
        for fan_out in config.hidden:
            layers.append(NormedLayer(fan_in, fan_out, generator))
            fan_in = fan_out
        last = nn.Linear(fan_in, 2 * spec.action_dim)
        uniform_initialisation(last, generator)
        self.head = nn.Sequential(*layers, last)

    @property
    def carried_size(self) -> int:
        return self.encoder.state_size + self.spec.action_dim + 1

    def distribution(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-deviation [..., A] before the squash, from features of the history."""
        mean, log_std = normed_network(self.head, features).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    @torch.no_grad()
    def step(
        self,
        obs: Tensor,
        state: Tensor | None,
        generator: torch.Generator | None,
        *,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Actions [B, A] in the task's units, and what to carry on; zeros begin an episode."""
        if state is None:
            state = obs.new_zeros(len(obs), self.carried_size)
        size = self.encoder.state_size
        x = torch.cat([obs, state[:, size:]], -1)
        features, memory = self.encoder.step(x, state[:, :size])
        mean, log_std = self.distribution(features)
        if not deterministic:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
            mean = mean + log_std.exp() * noise
        action = torch.tanh(mean)
        # torch.export takes the len of a tensor for fixed, and its shape for free.
        unknown = obs.new_zeros(obs.shape[0], 1)
        return self.scale.to_task(action), torch.cat([memory, action, unknown], 1)

    def observe_reward(self, state: Tensor, reward: Tensor, action: Tensor | None = None) -> Tensor:
        """The carried state with the step's `reward` [B] in it, and with `action` [B, A], in the
        task's units, in place of the policy's own."""
        memory, own, _ = state.split([self.encoder.state_size, self.spec.action_dim, 1], 1)
        taken = own if action is None else self.scale.to_unit(action.to(state))
        return self.carried(memory, taken, reward.to(state))

    def carried(self, memory: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        """What is carried [B, M] after `action` [B, A] in [-1, 1] and its `reward` [B]."""
        return torch.cat([memory, action, reward[:, None]], 1)

    def log_prob_along(
        self, obs: Tensor, action: Tensor, reward: Tensor, bound: float = 1.0 - 1e-6
    ) -> Tensor:
        """log pi(a_t | history) [B, L] of stored actions [B, L, A] in [-1, 1] along sequences of
        raw `obs` [B, L, S] and `reward` [B, L], all with an empty memory at their first step;
        differentiable. Actions at the very bounds are moved inside."""
        pre = torch.atanh(action.clamp(-bound, bound))
        memory = obs.new_zeros(len(obs), self.encoder.state_size)
        before = obs.new_zeros(len(obs), self.spec.action_dim + 1)
        log_probs = []
        for t in range(obs.shape[1]):
            features, memory = self.encoder.step(torch.cat([obs[:, t], before], -1), memory)
            mean, log_std = self.distribution(features)
            log_probs.append(
                squashed_log_prob(pre[:, t], (pre[:, t] - mean) / log_std.exp(), log_std)
            )
            before = torch.cat([action[:, t], reward[:, t, None]], -1)
        return torch.stack(log_probs, 1)

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action at the first step of an episode; `step` goes on from there."""
        return self.step(obs, None, None)[0]

    def explore(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """A sampled action at the first step of an episode."""
        return self.step(obs, None, generator, deterministic=False)[0]


class RecurrentCritic(nn.Module):
    """Values Q_n(h, a) of histories and actions: one encoder, N heads."""

    def __init__(
        self, spec: Spec, config: RecurrentLearnerConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = encoder(spec, config.memory, generator)
        self.heads = EnsembleMLP(
            config.critics,
            config.memory.width + spec.action_dim,
            config.hidden,
            1,
            activation="leaky_relu",
            layer_norm=True,
            generator=generator,
        )
        small_heads(self.heads, generator)

    def values(self, features: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """[N, T] of all heads, or [M, T] of those named."""
        x = torch.cat([features, action], -1)
        out = self.heads(x) if members is None else self.heads.chosen(x, members)
        return out[..., 0]

    def of_action(self, features: Tensor, action: Tensor) -> Tensor:
        """`values` of all heads, whose gradient stops at the heads' parameters."""
        fixed = {name: p.detach() for name, p in self.heads.named_parameters()}
        x = torch.cat([features, action], -1)
        out: Tensor = torch.func.functional_call(self.heads, fixed, (x,))
        return out[..., 0]


def encoder(spec: Spec, config: MemoryConfig, generator: torch.Generator) -> MemoryEncoder:
    before = 0 if config.kind == "none" else spec.action_dim + 1  # last action and reward
    return MemoryEncoder(
        spec.obs_dim + before,
        config.width,
        kind=config.kind,
        layers=config.layers,
        states=config.states,
        generator=generator,
    )


@torch.no_grad()
def small_heads(heads: EnsembleMLP, generator: torch.Generator) -> None:
    """Last layers uniform in +-3e-3, biases 0, so that values begin near 0."""
    last = heads.weights[-1]
    last.copy_((torch.rand(last.shape, generator=generator) * 2 - 1) * 3e-3)
    heads.biases[-1].zero_()


class RecurrentActorCritic:
    """Networks, targets, optimisers and the update; a component that algorithms own."""

    def __init__(
        self,
        spec: Spec,
        config: RecurrentLearnerConfig,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.spec, self.config = spec, config
        self.policy = RecurrentPolicy(spec, config, generator).to(device)
        self.critic = RecurrentCritic(spec, config, generator).to(device)
        self.target = target_copy(self.critic)
        log_alpha = torch.tensor(math.log(config.alpha), dtype=torch.float32)
        self.log_alpha = nn.Parameter(log_alpha.to(device))
        self.remembered = torch.zeros(2, device=device)  # see `value_memory`
        self.offline = True  # online the actor's rates are constant
        entropy = config.target_entropy
        self.target_entropy = -float(spec.action_dim) if entropy is None else entropy
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "target": self.target,
            "temperature": nn.ParameterDict({"log_alpha": self.log_alpha}),
        }
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "policy": self._adam(self.policy.encoder, self.policy.head),
            "critic": self._adam(self.critic.encoder, self.critic.heads),
            "alpha": Adam([self.log_alpha], lr=config.alpha_lr, fused=True),
        }

    def _adam(self, encoder: nn.Module, heads: nn.Module) -> torch.optim.Optimizer:
        groups = [
            {"params": list(encoder.parameters()), "lr": self.config.encoder_lr},
            {"params": list(heads.parameters()), "lr": self.config.head_lr},
        ]
        return Adam(groups, fused=True)

    def draw(self, tape: Tape, generator: torch.Generator) -> Tape:
        """The tape with the random draws an update needs."""
        device, c = tape.x.device, self.config
        shape = (2, len(tape.x), self.spec.action_dim)
        noise = torch.randn(shape, generator=generator, device=device)
        order = torch.randperm(c.critics, generator=generator, device=device)
        return tape._replace(noise=noise, subset=order[: c.target_min_of])

    def set_rates(self, step: int) -> None:
        """The actor's learning rates at update `step`."""
        if self.config.actor_decay is None:
            return
        share = min(1.0, step / self.config.actor_decay) if self.offline else 0.0
        factor = 0.5 * (1.0 + math.cos(math.pi * share))
        rates = (self.config.encoder_lr, self.config.head_lr)
        for group, rate in zip(self.optimisers["policy"].param_groups, rates, strict=True):
            group["lr"] = factor * rate

    def update(self, tape: Tape, count: int = 0) -> Metrics:
        """One step of temperature, actor, critics and target, in that order, at the rates of update
        `count`."""
        c = self.config
        self.set_rates(count)
        weights = step_weights(tape.mask, tape.real, c.real_weight)
        features = self.critic.encoder(tape.x, tape.first)
        metrics = self.update_policy(tape, weights, features.detach())
        metrics |= self.update_critic(tape, weights, features, self.value_target(tape))
        polyak_update(self.target, self.critic, c.tau)
        self.remembered.copy_(value_memory(self, metrics))
        return metrics

    def update_policy(self, tape: Tape, weights: Tensor, features: Tensor) -> Metrics:
        """`features` [T, width] are those of the critic's encoder."""
        assert tape.noise is not None
        c = self.config
        action, log_prob = self.sample(tape, tape.noise[0])
        if c.learn_alpha:
            gap = (log_prob.detach() + self.target_entropy) * weights
            descend(self.optimisers["alpha"], -self.log_alpha * gap.sum())
        alpha = self.log_alpha.detach().exp()
        value = self.critic.of_action(features, action).mean(0)
        loss = ((alpha * log_prob - value) * weights).sum()
        descend(self.optimisers["policy"], loss, c.clip)
        return {
            "actor/loss": loss.detach(),
            "actor/entropy": -(log_prob.detach() * weights).sum() / weights.sum().clamp_min(1e-12),
            "actor/alpha": alpha,
        }

    def sample(self, tape: Tape, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions [T, A] in [-1, 1] at every position, and their log pi [T]."""
        features = self.policy.encoder(tape.x, tape.first)
        mean, log_std = self.policy.distribution(features)
        pre = mean + log_std.exp() * noise
        return torch.tanh(pre), squashed_log_prob(pre, noise, log_std)

    @torch.no_grad()
    def value_target(self, tape: Tape) -> Tensor:
        """y_t [T]: the next position's least value of the chosen target heads, less alpha log pi,
        with a fresh action of the policy there."""
        assert tape.noise is not None
        action, log_prob = self.sample(tape, tape.noise[1])
        features = self.target.encoder(tape.x, tape.first)
        value = self.target.values(features, action, tape.subset).min(0).values
        value = value - self.log_alpha.exp() * log_prob
        return bootstrapped(tape.reward, tape.discount, value)

    def update_critic(
        self, tape: Tape, weights: Tensor, features: Tensor, target: Tensor
    ) -> Metrics:
        q = self.critic.values(features, tape.action)
        loss = critic_loss(q, target, weights, self.config.huber)
        descend(self.optimisers["critic"], loss, self.config.clip)
        share, level = weights / weights.sum().clamp_min(1e-12), q.detach()
        return {
            "critic/loss": loss.detach(),
            "critic/q_mean": (level.mean(0) * share).sum(),
            "critic/q_spread": (level.std(0, correction=0) * share).sum(),
            "critic/target": (target * share).sum(),
        }
