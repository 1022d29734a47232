"""STAC: stochastic actor-critic, pessimistic by the temporal aleatoric uncertainty of one critic
(arXiv 2601.00737). The authors' repository (ugurcanozalp/stochastic-actor-critic, aab3847) holds
settings and results but not the algorithm: the formulas are reconstructed from its description.

Differences: log-deviations are clipped.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Generator, Tensor

from algorithms.learners.distributional_critic import (
    DistributionalActorCritic,
    DistributionalConfig,
)
from algorithms.learners.dropout import Dropped
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.collector import CollectorConfig
from mbrl.config import Count, Finite, Fraction, NonNegative, Probability
from mbrl.errors import ConfigError
from mbrl.shapes import check_shapes
from mbrl.training import Metrics


@dataclass(frozen=True)
class STACLearnerConfig(DistributionalConfig):
    """Settings of the learner. The authors' results take the best `pessimism` of 0, 0.125, 0.25,
    0.375 and 0.5 for each task (0.25 is the middle of them) and of dropout in neither network, in
    one of them and in both, at a rate of 0.01."""

    critics: Count = 1  # the least of their values, if there are more
    pessimism: NonNegative = 0.25  # beta, deviations that a value is lowered by
    weighting: Probability = 0.0  # of the loss by sigma^2 to this power, held; 0: the likelihood
    log_std_min: Finite = -5.0  # bounds of the log-deviation
    log_std_max: Finite = 8.0
    dropout: Literal["none", "policy", "critic", "both"] = "none"  # networks with it, in updates
    dropout_rate: Fraction = 0.01  # share of hidden units that it sets to 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_std_min >= self.log_std_max:
            raise ConfigError(
                f"log_std_min is {self.log_std_min}; it must lie below log_std_max "
                f"({self.log_std_max})"
            )


@dataclass(frozen=True)
class STACConfig(CollectorConfig):
    """Settings of STAC."""

    learner: STACLearnerConfig = field(default_factory=STACLearnerConfig)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


def dropout_rates(config: STACLearnerConfig) -> tuple[float, float]:
    """Those of the policy and of the critics."""
    policy, critic = (config.dropout in (name, "both") for name in ("policy", "critic"))
    return policy * config.dropout_rate, critic * config.dropout_rate


def pessimistic_value(mean: Tensor, log_std: Tensor, pessimism: float) -> Tensor:
    """The least over critics of mu - beta sigma, [B] from [N, B]."""
    check_shapes(mean=(mean, "N B"), log_std=(log_std, "N B"))
    return (mean - pessimism * log_std.exp()).min(0).values


def gaussian_loss(mean: Tensor, log_std: Tensor, target: Tensor, weighting: float) -> Tensor:
    """Sum over critics of the mean negative log-likelihood log sigma + (y - mu)^2 / (2 sigma^2) +
    log(2 pi) / 2 of `target` [B] under N(mu, sigma^2) [N, B], each row times sigma^(2 weighting),
    which takes no gradient ("On the Pitfalls of Heteroscedastic Uncertainty Estimation with
    Probabilistic Neural Networks", arXiv 2203.09168)."""
    check_shapes(mean=(mean, "N B"), log_std=(log_std, "N B"), target=(target, "B"))
    error = (target - mean) * (-log_std).exp()
    loss = log_std + 0.5 * error.square() + 0.5 * math.log(2 * math.pi)
    if weighting > 0:
        loss = loss * (2 * weighting * log_std.detach()).exp()
    return loss.mean(1).sum()


class STAC(Agent[Batch | Dropped]):
    """Soft actor-critic with one distributional critic.

    Formula:

        critic       y = r + gamma (mu'(s', a') - beta sigma'(s', a') - alpha log pi(a'|s'))
                     L = mean log sigma(s, a) + (y - mu(s, a))^2 / (2 sigma(s, a)^2), a' ~ pi(s')
        policy       L = mean (alpha log pi(a|s) - mu(s, a) + beta sigma(s, a)), a ~ pi(s)
        temperature  as SAC
        dropout      h <- h m / (1 - p) in hidden layers of pi, of mu and sigma or of all,
                     m ~ Bernoulli(1 - p) anew in each pass of an update

    sigma is the deviation of the one-step target, not of the return.

    When not to use it: where nothing is random: sigma then measures what the critic has not fitted
    yet, and one critic with beta 0 has no pessimism. Where values are in the hundreds the plain
    likelihood learns slowly, since errors count by 1 / sigma^2: after 5,000 steps of Pendulum
    online (seed 0) it ends at -13.0, with `weighting` 1 at 97.7, where SAC does. On logged data
    alone the spread of a target says nothing about actions that nobody took.

    Which passes have dropout was not found for STAC: here, as in Dropout Q-Functions (arXiv
    2110.02034), all those of an update have, the target's among them, and acting has none.
    """

    version = 1
    config: STACConfig

    def build(self, generator: Generator) -> tuple[DistributionalActorCritic, LoggedRows]:
        c = self.config.learner
        learner = DistributionalActorCritic(
            self.spec, c, self.device, generator, self.value, self.critic_loss, dropout_rates(c)
        )
        source = LoggedRows(self.spec, c.gamma, c.batch_size, self.device, collection=self.config)
        return learner, source

    def parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma [N, B] of the critics' outputs [N, B, 2]."""
        c = self.config.learner
        return outputs[..., 0], outputs[..., 1].clamp(c.log_std_min, c.log_std_max)

    def value(self, outputs: Tensor) -> Tensor:
        return pessimistic_value(*self.parts(outputs), self.config.learner.pessimism)

    def critic_loss(
        self, outputs: Tensor, target: Tensor, following: Tensor
    ) -> tuple[Tensor, Metrics]:
        mean, log_std = self.parts(outputs)
        loss = gaussian_loss(mean, log_std, target, self.config.learner.weighting)
        spread = log_std.detach().exp().mean()
        return loss, {"critic/loss": loss.detach(), "critic/std": spread}
