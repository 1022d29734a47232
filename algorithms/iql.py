"""IQL: Offline Reinforcement Learning with Implicit Q-Learning (arXiv 2110.06169).

Differences: no dropout. The order value, policy, critic is the authors'; advantages and next values
are of the value before its step, as in CORL (theirs: after it).
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from algorithms.learners.advantage_weighted import (
    cosine_rate,
    exponential_weight,
    weighted_cloning,
)
from algorithms.learners.critics import CriticRegression, critics, q_values
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.config import (
    Count,
    CountOrZero,
    Discount,
    Fraction,
    NonNegative,
    Positive,
    Rate,
    Settings,
    Widths,
)
from mbrl.native import implicit
from mbrl.native.implicit import ImplicitSteps
from mbrl.networks import (
    MLP,
    CategoricalPolicy,
    TanhMeanGaussianPolicy,
    adam,
    descend,
    polyak_update,
    target_copy,
)
from mbrl.shapes import check_shapes
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class IQLConfig(Settings):
    """Settings of IQL; the defaults are the paper's for locomotion."""

    expectile: Fraction = 0.7  # tau of the value regression
    temperature: NonNegative = 3.0  # beta of the advantage weights
    max_weight: Positive = 100.0  # their upper bound
    hidden: Widths = (256, 256)  # widths of all networks
    learning_rate: Positive = 3e-4  # Adam
    decay_steps: CountOrZero = 1_000_000  # the actor's rate falls to 0 on a cosine; 0: constant
    gamma: Discount = 0.99  # discount factor
    tau: Rate = 0.005  # rate of the target average
    batch_size: Count = 256  # rows an update
    normalise_obs: bool = False  # standardise observations with the data's statistics
    normalise_rewards: bool = False  # times 1000 / range of returns; the authors' for locomotion


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Mean of |expectile - 1(u < 0)| u^2 over `difference` u [B] (eq. 4)."""
    weight = torch.where(difference < 0, 1.0 - expectile, expectile)
    return (weight * difference.square()).mean()


def policy_loss(
    log_prob: Tensor, advantage: Tensor, temperature: float, max_weight: float
) -> tuple[Tensor, Metrics]:
    """-mean min(exp(beta A), bound) log pi(a|s), all [B] (eq. 7)."""
    check_shapes(log_prob=(log_prob, "B"), advantage=(advantage, "B"))
    return weighted_cloning(log_prob, exponential_weight(advantage, temperature, max_weight))


class ImplicitQLearner:
    """Value by expectile regression, policy by weighted cloning, critics on the values. `policy` is
    a Gaussian around a tanh mean or, for discrete actions, categorical."""

    def __init__(
        self, spec: Spec, config: IQLConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config = config
        self.offline = True  # online the policy's rate is constant, as in the authors' fine-tuning
        hidden, rate = config.hidden, config.learning_rate
        kind = CategoricalPolicy if spec.discrete else TanhMeanGaussianPolicy
        self.policy: CategoricalPolicy | TanhMeanGaussianPolicy = kind(
            spec, hidden, generator=generator
        ).to(device)
        self.critic = critics(spec, 2, hidden, generator).to(device)
        self.value = MLP(spec.obs_dim, hidden, 1, generator=generator).to(device)
        self.critic_target = target_copy(self.critic)
        learned: dict[str, nn.Module] = {
            "policy": self.policy,
            "critic": self.critic,
            "value": self.value,
        }
        self.modules = learned | {"critic_target": self.critic_target}
        self.optimisers = {name: adam(m.parameters(), rate) for name, m in learned.items()}
        self.regression = CriticRegression(
            spec, self.critic, self.optimisers["critic"], self.policy.normaliser, scale=0.5
        )
        self.steps: ImplicitSteps | None = None
        # Compiled code knows this value loss alone, not one that a subclass puts in its place.
        own_loss = type(self).value_loss is ImplicitQLearner.value_loss
        if own_loss and implicit.computes(self.value, self.policy, self.critic):
            assert isinstance(self.policy, TanhMeanGaussianPolicy)
            self.steps = ImplicitSteps(
                spec,
                (self.value, self.optimisers["value"]),
                (self.policy, self.optimisers["policy"]),
                self.critic_target,
                expectile=config.expectile,
                temperature=config.temperature,
                max_weight=config.max_weight,
            )

    def draw(self, batch: Batch, generator: Generator) -> Batch:
        """The batch as it is: updates draw nothing."""
        return batch

    def update(self, batch: Batch, count: int) -> Metrics:
        """One step of value, policy and critics, in that order."""
        c, normalise = self.config, self.policy.normaliser
        self.optimisers["policy"].param_groups[0]["lr"] = (
            cosine_rate(c.learning_rate, c.decay_steps, count) if self.offline else c.learning_rate
        )
        steps, regression = self.steps, self.regression
        if steps is not None and steps.ready(batch) and regression.ready(batch):
            return self.compiled_update(steps, batch)
        obs, next_obs = normalise(batch.obs), normalise(batch.next_obs)
        with torch.no_grad():
            next_value = self.value(next_obs)[:, 0]
            q_target = q_values(self.critic_target, obs, batch.action).min(0).values
        value = self.value(obs)[:, 0]
        advantage = (q_target - value).detach()
        value_loss = self.value_loss(q_target - value)
        descend(self.optimisers["value"], value_loss)

        if isinstance(self.policy, CategoricalPolicy):
            log_prob = self.policy.log_prob(batch.obs, batch.action, batch.action_mask)
        else:
            log_prob = self.policy.log_prob(batch.obs, batch.action)
        loss, metrics = policy_loss(log_prob, advantage, c.temperature, c.max_weight)
        descend(self.optimisers["policy"], loss)

        metrics |= regression.step(batch, batch.reward + batch.discount * next_value)
        polyak_update(self.critic_target, self.critic, c.tau)
        return metrics | {"value/loss": value_loss.detach()}

    def compiled_update(self, steps: ImplicitSteps, batch: Batch) -> Metrics:
        """`update` in compiled code."""
        target, metrics = steps.step(batch)
        value_loss, loss, weight = metrics
        critics = self.regression.step(batch, target)
        assert self.regression.compiled is not None
        steps.average(self.regression.compiled.network, self.config.tau)
        return critics | {"value/loss": value_loss, "actor/loss": loss, "actor/weight": weight}

    def value_loss(self, difference: Tensor) -> Tensor:
        """The loss of the state value from `difference` [B] of target critics and value."""
        return expectile_loss(difference, self.config.expectile)


class IQL(Agent[Batch]):
    """Implicit Q-learning.

    Formula:

        value        L = mean |tau - 1(u < 0)| u^2, u = min_n Q'_n(s, a) - V(s)
        policy       L = -mean min(exp(beta u), bound) log pi(a|s)
        critics      L = sum_n mean (Q_n(s, a) - r - gamma V(s'))^2 / 2

    When not to use it: where data cover the task and there is time: it never values an action that
    was not logged, and in the table classic value ensembles and model-based methods end higher on
    Pendulum's random and medium-replay data. It is the first to try elsewhere.
    """

    version = 1
    config: IQLConfig

    def build(self, generator: Generator) -> tuple[ImplicitQLearner, LoggedRows]:
        c = self.config
        learner = ImplicitQLearner(self.spec, c, self.device, generator)
        return learner, LoggedRows.of(self.spec, c, self.device)
