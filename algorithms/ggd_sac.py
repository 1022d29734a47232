"""SAC whose critics take temporal-difference errors for draws of a generalised Gaussian of learned
shape: Generalized Gaussian Temporal Difference Error for Uncertainty-aware Reinforcement Learning
(arXiv 2408.02295). The formulas are those of a description, compared afterwards with the authors'
code (ait-lab/ggtde, ea36916).

Differences from that code, of which `form` "released" takes away the first four: weights multiply
the likelihood, where it adds a tenth of weighted absolute errors to it; |e|^beta, where it has
beta |e|; beta over its mean in the batch, where it is over the sum of a row's critics; shapes
clipped to [0.2, 4]; one target for all critics, where it has two groups of five and the minimum of
the two for each of the five; and, unless `variance_of` is "errors", the unbiased variance of the
target critics, where it has that of the critics.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from algorithms.learners import generalised_gaussian
from algorithms.learners.distributional_critic import (
    DistributionalActorCritic,
    DistributionalConfig,
)
from algorithms.learners.dropout import Dropped
from algorithms.sources.logged import LoggedRows
from mbrl.agent import Agent
from mbrl.buffer import Batch
from mbrl.collector import CollectorConfig
from mbrl.config import Count, Positive, Rate
from mbrl.errors import ConfigError
from mbrl.training import Metrics


@dataclass(frozen=True)
class GGDSACLearnerConfig(DistributionalConfig):
    """Settings of the learner."""

    critics: Count = 2  # the least of their means is the value
    form: Literal["paper", "released"] = "paper"  # the loss of the description; of their code
    error_scale: Positive = 1.0  # errors are divided by it: the scale that a shape is about
    inverse_variance: bool = True  # weigh rows by an inverse variance over the critics
    variance_of: Literal["targets", "errors"] = "targets"  # of target critics; of errors
    effective_share: Rate = 0.5  # least effective number of rows, as a share of the batch
    uncertainty_weight: Positive = 0.1  # "released": of the weighted absolute errors
    log_kurtosis: bool = False  # excess kurtosis of the learned shapes and of the batch's errors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inverse_variance and self.critics < 2:
            raise ConfigError(
                f"inverse_variance with critics {self.critics}: a variance needs at least two "
                "critics; raise critics, or set inverse_variance to False"
            )


@dataclass(frozen=True)
class GGDSACConfig(CollectorConfig):
    """Settings of SAC with a generalised Gaussian's loss."""

    learner: GGDSACLearnerConfig = field(default_factory=GGDSACLearnerConfig)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


def least_mean(outputs: Tensor) -> Tensor:
    """min_n Q_n [B] of the critics' outputs [N, B, 2]."""
    return outputs[..., 0].min(0).values


def kurtoses(error: Tensor, beta: Tensor) -> Metrics:
    """Excess kurtosis, the mean over rows and critics of that of the learned shapes [N, B], and the
    mean over critics of that of the batch's errors [N, B]. The second also holds how much rows
    differ from each other, so it may be the larger of the two where every shape is right."""
    return {
        "critic/shape_kurtosis": generalised_gaussian.shape_kurtosis(beta).mean(),
        "critic/error_kurtosis": generalised_gaussian.sample_kurtosis(error, 1).mean(),
    }


class GGDSAC(Agent[Batch | Dropped]):
    """SAC with generalised Gaussian errors.

    Formula:

        critics      y = r + gamma (min_n Q'_n(s', a') - alpha log pi(a'|s')), a' ~ pi(s')
                     L = sum_n mean w b_n (|e_n|^beta_n - log beta_n + log Gamma(1 / beta_n))
                     e_n = (Q_n(s, a) - y) / c, beta_n = softplus of a second output at (s, a)
                     b_n = beta_n over its mean, w = 1 / (v + xi), v the variance over n of
                     gamma Q'_n(s', a'), or that of e_n times ((N + 1) / (N - 1) + kappa / N)^-1,
                     kappa its excess kurtosis over n; xi the least that keeps enough rows effective
        released     L = 1/2 mean sum_n [b_n (beta_n |e_n| - log beta_n + log Gamma(1 / beta_n))
                     + u w |e_n|], b_n = beta_n over its sum over n, w of sum 1
        policy       as SAC
        temperature  as SAC

    When not to use it: where rewards have no known scale: beta measures the scale of an error, not
    its tail, until errors are near 1: after 5,000 steps of Pendulum online (seeds 0 and 1) it ends
    at -22.5 and 53.4, with `form` "released" at 60.7 and 97.3, with `error_scale` 30 (seed 0) at
    94.3, SAC at 97.7. Without noise it has nothing to model.
    `variance_of` "errors" with fewer than four critics: their kurtosis is then a constant.
    """

    version = 1
    config: GGDSACConfig

    def build(self, generator: Generator) -> tuple[DistributionalActorCritic, LoggedRows]:
        c = self.config.learner
        learner = DistributionalActorCritic(
            self.spec, c, self.device, generator, least_mean, self.critic_loss
        )
        source = LoggedRows(self.spec, c.gamma, c.batch_size, self.device, collection=self.config)
        return learner, source

    def critic_loss(
        self, outputs: Tensor, target: Tensor, following: Tensor
    ) -> tuple[Tensor, Metrics]:
        c, weight = self.config.learner, None
        error = (outputs[..., 0] - target) / c.error_scale
        if c.inverse_variance:
            if c.variance_of == "errors":
                variance = generalised_gaussian.error_variance(error.detach())
            else:
                variance = following.var(0, correction=1)
            weight = generalised_gaussian.inverse_variance_weights(variance, c.effective_share)
        if c.form == "released":
            beta = F.softplus(outputs[..., 1])
            loss = generalised_gaussian.released_loss(error, beta, weight, c.uncertainty_weight)
        else:
            beta = generalised_gaussian.shape(outputs[..., 1])
            pairs = zip(error, beta, strict=True)
            loss = torch.stack([generalised_gaussian.loss(*p, weight) for p in pairs]).sum()
        metrics = {"critic/loss": loss.detach(), "critic/shape": beta.detach().mean()}
        if c.log_kurtosis:
            metrics |= kurtoses(error.detach(), beta.detach())
        return loss, metrics
