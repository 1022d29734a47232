"""FamO2O: Train Once, Get a Family: State-Adaptive Balances for Offline-to-Online Reinforcement
Learning (arXiv 2310.17966), on IQL.

Read in the authors' code (LeapLabTHU/FamO2O, jax_iql): the order of the steps, the code of the
balance in sines and cosines, uniform balances on logged data and sampled ones in the task, the
greedy balance for acting, the target critics in both losses. Differences: the balance policy's
deviation depends on the state; no dropout; a row's weight is that of its own balance, as in the
paper (theirs multiplies [B] by [B, 1] and so averages the weights of all balances of the batch:
no row is weighed by the one that its policy reads); actions that follow from balances are cut at
the bounds; the temperature's loss is of its logarithm; in the task balances come from the balance
policy after its step (theirs: before it).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from algorithms.iql import expectile_loss, policy_loss
from algorithms.learners.critics import CriticRegression, critics, q_values
from algorithms.learners.soft_actor_critic import actor_loss, temperature_loss
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import (
    Count,
    Discount,
    Finite,
    Fraction,
    NonNegative,
    Positive,
    Rate,
    Settings,
    Widths,
)
from mbrl.errors import ConfigError
from mbrl.networks import (
    MLP,
    ActionScale,
    Normaliser,
    SquashedGaussianPolicy,
    TanhMeanGaussianPolicy,
    adam,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class FamO2OConfig(Settings):
    """Settings of FamO2O. The range of balances is the class default of the authors' code; their
    AntMaze runs have 8 to 14 with an expectile of 0.9."""

    lowest: NonNegative = 1.0  # range of beta, the temperature of the advantage weights
    highest: NonNegative = 5.0  # its other end
    code: Count = 6  # numbers that beta is coded in, an even count
    code_base: Positive = 10_000.0  # how much slower the last angle of the code is than the first
    target_entropy: Finite = -0.5  # of the balance policy
    alpha: Positive = 1.0  # its first temperature
    expectile: Fraction = 0.7  # tau of the value regression
    max_weight: Positive = 100.0  # upper bound of the advantage weights
    hidden: Widths = (256, 256)  # widths of all networks
    learning_rate: Positive = 3e-4  # Adam
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics
    normalise_rewards: bool = False  # times 1000 / range of returns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lowest > self.highest:
            raise ConfigError(
                f"lowest is {self.lowest}, it must not lie above highest ({self.highest})"
            )
        if self.code % 2:
            raise ConfigError(f"code is {self.code}, it must be even: sines and cosines")


def balance_code(balance: Tensor, size: int, base: float) -> Tensor:
    """[..., 1] to [..., size]: sin and cos of beta / base^(2i / size), i = 0 .. size / 2 - 1, in
    turn."""
    scale = base ** (torch.arange(0, size, 2, device=balance.device) / size)
    angle = balance / scale
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


class FamilyPolicy(nn.Module):
    """pi(a|s, beta), Gaussian around a tanh mean, and pi_h(beta|s), which chooses beta."""

    __call__: Callable[..., Tensor]

    def __init__(self, spec: Spec, config: FamO2OConfig, generator: Generator) -> None:
        super().__init__()
        self.config = config
        self.normaliser = Normaliser(spec.obs_dim)
        wide = replace(spec, obs_dim=spec.obs_dim + config.code)
        self.universal = TanhMeanGaussianPolicy(wide, config.hidden, generator=generator)
        one = replace(spec, action_dim=1, action_low=(-1.0,), action_high=(1.0,))
        self.balance = SquashedGaussianPolicy(one, config.hidden, generator=generator)

    @property
    def scale(self) -> ActionScale:
        """Between [-1, 1] and the task's bounds."""
        return self.universal.scale

    def in_range(self, unit: Tensor) -> Tensor:
        """Balances for numbers in [-1, 1]."""
        low, high = self.config.lowest, self.config.highest
        return low + (high - low) * (unit + 1) / 2

    def with_balance(self, obs: Tensor, balance: Tensor) -> Tensor:
        """What the universal policy reads at raw `obs` [..., S] with `balance` [..., 1]."""
        code = balance_code(balance, self.config.code, self.config.code_base)
        return torch.cat([self.normaliser(obs), code], -1)

    def chosen(self, obs: Tensor) -> Tensor:
        """The greedy balance [..., 1] at raw `obs` [..., S]."""
        mean, _ = self.balance.distribution(self.normaliser(obs))
        return self.in_range(torch.tanh(mean))

    def sampled(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Balances [B, 1] for standard normal `noise` [B, 1], and the log-density [B] of what they
        are mapped from."""
        unit, log_prob = self.balance.sample(self.normaliser(obs), noise)
        return self.in_range(unit), log_prob

    def explore(self, obs: Tensor, generator: Generator | None) -> Tensor:
        """A sampled action in the task's units, with the greedy balance."""
        return self.universal.explore(self.with_balance(obs, self.chosen(obs)), generator)

    def forward(self, obs: Tensor) -> Tensor:
        """The greedy action in the task's units, with the greedy balance."""
        action: Tensor = self.universal(self.with_balance(obs, self.chosen(obs)))
        return action

    def at(self, obs: Tensor, balance: float) -> Tensor:
        """The greedy action in the task's units with the same `balance` in every state."""
        same = torch.full_like(obs[..., :1], balance)
        action: Tensor = self.universal(self.with_balance(obs, same))
        return action


class FamilyLearner:
    """IQL's value and critics, a policy for every balance and one that chooses the balance."""

    def __init__(
        self, spec: Spec, config: FamO2OConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config, self.device, self.action_dim = config, device, spec.action_dim
        self.offline = True  # whether it learns from logged data alone; the agent sets it
        self.policy = FamilyPolicy(spec, config, generator).to(device)
        self.critic = critics(spec, 2, config.hidden, generator).to(device)
        self.value = MLP(spec.obs_dim, config.hidden, 1, generator=generator).to(device)
        self.critic_target = target_copy(self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(float(config.alpha)).log().to(device))
        temperature = nn.ParameterDict({"log_alpha": self.log_alpha})
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "value": self.value,
            "critic_target": self.critic_target,
            "temperature": temperature,
        }
        rate = config.learning_rate
        self.optimisers: dict[str, torch.optim.Optimizer] = {
            "policy": adam(self.policy.universal.parameters(), rate),
            "balance": adam(self.policy.balance.parameters(), rate),
            "critic": adam(self.critic.parameters(), rate),
            "value": adam(self.value.parameters(), rate),
            "temperature": adam([self.log_alpha], rate),
        }
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.policy.normaliser, scale=0.5
        )

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch with draws of an action (first) and of two balances a state (first column of
        the others)."""
        shape = (3, len(batch.obs), self.action_dim)
        noise = torch.randn(shape, generator=generator, device=self.device)
        return batch._replace(noise=noise)

    def update(self, batch: Batch, count: int) -> Metrics:
        """One step of value, balance policy, its temperature, policy and critics, in that order."""
        assert batch.noise is not None
        c, normalise = self.config, self.policy.normaliser
        obs, next_obs = normalise(batch.obs), normalise(batch.next_obs)
        with torch.no_grad():
            q = q_values(self.critic_target, obs, batch.action).min(0).values
        value_loss = expectile_loss(q - self.value(obs)[:, 0], c.expectile)
        descend(self.optimisers["value"], value_loss)
        metrics = {"value/loss": value_loss.detach()} | self.update_balance(batch)
        with torch.no_grad():
            advantage = q - self.value(obs)[:, 0]
            next_value = self.value(next_obs)[:, 0]
        metrics |= self.update_policy(batch, advantage)
        metrics |= self.regression.step(batch, batch.reward + batch.discount * next_value)
        polyak_update(self.critic_target, self.critic, c.tau)
        return metrics

    def update_balance(self, batch: Batch) -> Metrics:
        """A step of the balance policy towards the values of the actions that follow from its
        balances, and of its temperature."""
        assert batch.noise is not None
        balance, log_prob = self.policy.sampled(batch.obs, batch.noise[1, :, :1])
        inputs = self.policy.with_balance(batch.obs, balance)
        action, _ = self.policy.universal.sample(inputs, batch.noise[0])
        value = q_values(self.critic_target, self.policy.normaliser(batch.obs), action)
        alpha = self.log_alpha.detach().exp()
        loss, _ = actor_loss(log_prob, value.min(0).values, alpha)
        descend(self.optimisers["balance"], loss)
        descend(
            self.optimisers["temperature"],
            temperature_loss(self.log_alpha, log_prob, self.config.target_entropy),
        )
        return {
            "balance/loss": loss.detach(),
            "balance/mean": balance.detach().mean(),
            "balance/spread": balance.detach().std(),
            "balance/alpha": alpha,
        }

    def update_policy(self, batch: Batch, advantage: Tensor) -> Metrics:
        """A step of the policy at balances that are uniform or, in the task, the balance
        policy's."""
        assert batch.noise is not None
        noise = batch.noise[2, :, :1]
        with torch.no_grad():
            if self.offline:
                # The error function makes a standard normal draw uniform in (-1, 1).
                balance = self.policy.in_range(torch.erf(noise * 2**-0.5))
            else:
                balance, _ = self.policy.sampled(batch.obs, noise)
        inputs = self.policy.with_balance(batch.obs, balance)
        log_prob = self.policy.universal.log_prob(inputs, batch.action)
        scaled = balance[:, 0] * advantage
        loss, metrics = policy_loss(log_prob, scaled, 1.0, self.config.max_weight)
        descend(self.optimisers["policy"], loss)
        return metrics


class FamO2O(Agent[Batch]):
    """IQL for every balance between improving and cloning, and a policy of balances.

    Formula:

        value, critics   as IQL
        policy           L = -mean min(exp(beta u), bound) log pi(a|s, beta), beta uniform in its
                         range on logged data, beta ~ pi_h(s) in the task; u as IQL
        balance          L = mean (alpha log pi_h(beta|s) - min_n Q'_n(s, a)), beta ~ pi_h(s),
                         a ~ pi(s, beta); gradients reach pi_h alone

    When not to use it: where one temperature suits all states: it is then IQL with one network
    more. The range of balances has to suit the scale of advantages, as IQL's temperature has.
    """

    version = 1
    config: FamO2OConfig

    def build(self, generator: Generator) -> tuple[FamilyLearner, LoggedRows]:
        c = self.config
        learner = FamilyLearner(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
