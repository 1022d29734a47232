"""What a policy would have earned, from episodes of another one: importance sampling in its forms,
as functions of log-ratios, rewards and (for the doubly robust ones) given values.

All are means over episodes in some weighting, so that an interval can draw episodes anew: an
estimator takes how often each episode counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mbrl.errors import ConfigError, unknown_name
from mbrl.shapes import check_shapes

Counted = Callable[["Logged", Tensor], Tensor]


@dataclass(frozen=True)
class Logged:
    """Episodes of a behaviour policy, padded to [B, T].

    `log_ratio`: log of the target policy's probability of the action over the behaviour's; `mask`:
    steps that happened. `q` and `v`, for doubly robust estimators: values of the target policy at
    (state, action) and at the state, from any source that has not seen these episodes. `duration`:
    how long each step is (above 0), where they differ; a discount is gamma to the time before the
    step. Raises `ConfigError` for a mask that is not of bool with an episode and a step at least,
    shapes that differ and numbers that are not finite.
    """

    log_ratio: Tensor
    reward: Tensor
    mask: Tensor
    gamma: float
    q: Tensor | None = None
    v: Tensor | None = None
    duration: Tensor | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma is {self.gamma}, it must lie in [0, 1]")
        shape = tuple(self.mask.shape)
        if self.mask.dtype != torch.bool or len(shape) != 2 or 0 in shape:
            raise ConfigError(
                f"mask is of {self.mask.dtype} {shape}; give torch.bool [episodes, steps], one of "
                "each at least"
            )
        for name in ("log_ratio", "reward", "q", "v", "duration"):
            value = getattr(self, name)
            if value is None:
                continue
            if value.shape != self.mask.shape:
                raise ConfigError(
                    f"{name} is {tuple(value.shape)}, mask is {tuple(self.mask.shape)}; both must "
                    "be [episodes, steps]"
                )
            if not torch.isfinite(value[self.mask]).all():
                raise ConfigError(
                    f"{name} holds numbers that are not finite; a ratio of 0 or infinity means "
                    "that one policy never does what the other did"
                )
        if self.duration is not None and not (self.duration[self.mask] > 0).all():
            raise ConfigError(
                f"duration has {float(self.duration[self.mask].min()):g}; every step takes a time "
                "above 0"
            )

    def steps(self, name: str) -> Tensor:
        """A field in float64, 0 outside the mask."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ConfigError(
                f"doubly robust estimators need {name}; fit it first, by fitted Q evaluation say"
            )
        return torch.where(self.mask, value.double(), 0.0)

    def discounts(self) -> Tensor:
        """gamma to the time before each step [B, T]."""
        passed = self.mask.double() if self.duration is None else self.steps("duration")
        return self.gamma ** (passed.cumsum(1) - passed)

    def log_weights(self) -> Tensor:
        """Log of the product of ratios up to each step [B, T]; after the end it stays."""
        return self.steps("log_ratio").cumsum(1)


def importance_sampling(data: Logged, count: Tensor) -> Tensor:
    """[K]: mean of w_i G_i over episodes that count `count` [K, B]: unbiased, variance that grows
    with the length ("Eligibility Traces for Off-Policy Policy Evaluation", Precup et al., 2000).
    Raises `ConfigError` for weights beyond float64."""
    check_shapes(count=(count, "K B"), mask=(data.mask, "B T"))
    weight = data.log_weights()[:, -1].exp()
    return _mean(data, weight * _returns(data), count)


def weighted_importance_sampling(data: Logged, count: Tensor) -> Tensor:
    """sum_i w_i G_i / sum_i w_i: biased, consistent, never beyond the returns that were seen."""
    check_shapes(count=(count, "K B"), mask=(data.mask, "B T"))
    return _weighted_mean(data.log_weights()[:, -1:], _returns(data)[:, None], count)[:, 0]


def per_decision(data: Logged, count: Tensor) -> Tensor:
    """sum_t gamma^t mean_i w_it r_it: a reward is weighted by the actions before it only (Precup et
    al., 2000)."""
    check_shapes(count=(count, "K B"), mask=(data.mask, "B T"))
    gained = data.log_weights().exp() * data.steps("reward") * data.discounts()
    return _mean(data, gained.sum(1), count)


def weighted_per_decision(data: Logged, count: Tensor) -> Tensor:
    """sum_t gamma^t sum_i w_it r_it / sum_i w_it."""
    check_shapes(count=(count, "K B"), mask=(data.mask, "B T"))
    gained = data.steps("reward") * data.discounts()
    return _weighted_mean(data.log_weights(), gained, count).sum(1)


def doubly_robust(data: Logged, count: Tensor) -> Tensor:
    """mean_i sum_t gamma^t [w_it (r_it - q_it) + w_i,t-1 v_it]: unbiased for any q and v, and of
    less variance the better they are ("Doubly Robust Off-policy Value Evaluation for Reinforcement
    Learning", arXiv 1511.03722, equation 10, unrolled)."""
    check_shapes(count=(count, "K B"), mask=(data.mask, "B T"))
    weight = data.log_weights().exp()
    before = torch.cat([torch.ones_like(weight[:, :1]), weight[:, :-1]], 1)
    error = data.steps("reward") - data.steps("q")
    gained = (weight * error + before * data.steps("v")) * data.discounts()
    return _mean(data, gained.sum(1), count)


def weighted_doubly_robust(data: Logged, count: Tensor) -> Tensor:
    """The same with weights that sum to 1 at every step ("Data-Efficient Off-Policy Policy
    Evaluation for Reinforcement Learning", arXiv 1604.00923, section 5)."""
    check_shapes(count=(count, "K B"), mask=(data.mask, "B T"))
    log_weight = data.log_weights()
    before = torch.cat([torch.zeros_like(log_weight[:, :1]), log_weight[:, :-1]], 1)
    by_step = count.new_zeros(len(count), data.mask.shape[1])
    error, discount = data.steps("reward") - data.steps("q"), data.discounts()
    for logs, value in ((log_weight, error), (before, data.steps("v"))):
        by_step = by_step + _weighted_mean(logs, value * discount, count)
    return by_step.sum(1)


ESTIMATORS: dict[str, Counted] = {
    "importance_sampling": importance_sampling,
    "weighted_importance_sampling": weighted_importance_sampling,
    "per_decision": per_decision,
    "weighted_per_decision": weighted_per_decision,
    "doubly_robust": doubly_robust,
    "weighted_doubly_robust": weighted_doubly_robust,
}
TINY = 1e-300


class Evaluation(NamedTuple):
    """An estimate with its interval, and the share of episodes that its weights amount to."""

    value: float
    low: float
    high: float
    effective_share: float


def evaluate(
    data: Logged,
    estimator: str = "weighted_doubly_robust",
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """The estimate and an interval over episodes: the estimate plus or minus Student's
    quantile times the deviation over `draws` resamples (a resample of n varies (n - 1) / n as much
    as n new episodes would, which is undone). NaN bounds for fewer than two episodes. Raises
    `ConfigError` for weights beyond float64, except those of weighted estimators.

    Weights are heavy-tailed: where few episodes carry most of the weight, the deviation is too
    small and intervals cover less than they say; `effective_share` tells.
    """
    if estimator not in ESTIMATORS:
        raise unknown_name("estimator", estimator, ESTIMATORS)
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}, it must lie in (0, 1)")
    estimates = ESTIMATORS[estimator]
    episodes = len(data.mask)
    device = data.mask.device
    value = float(estimates(data, torch.ones(1, episodes, dtype=torch.float64, device=device)))
    log_weight = data.log_weights()[:, -1]
    share = 2 * log_weight.logsumexp(0) - (2 * log_weight).logsumexp(0) - math.log(episodes)
    low, high = interval(
        lambda count: estimates(data, count.to(device)), value, episodes, confidence, draws, seed
    )
    return Evaluation(value, low, high, float(share.exp()))


def interval(
    estimates: Callable[[Tensor], Tensor],
    value: float,
    episodes: int,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """The interval of `evaluate` around `value`; `estimates` takes how often each episode is drawn
    [draws, episodes] to the estimates [draws]."""
    from scipy import special  # here, as it takes long to import

    if episodes < 2:
        return math.nan, math.nan
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(episodes, (draws, episodes), generator=generator)
    count = torch.zeros(draws, episodes, dtype=torch.float64)
    count.scatter_add_(1, drawn, torch.ones_like(count))
    spread = float(estimates(count).std()) * math.sqrt(episodes / (episodes - 1))
    reach = float(special.stdtrit(episodes - 1, 0.5 + confidence / 2)) * spread
    return value - reach, value + reach


def _returns(data: Logged) -> Tensor:
    return (data.steps("reward") * data.discounts()).sum(1)


def _mean(data: Logged, value: Tensor, count: Tensor) -> Tensor:
    """Of what each episode contributes, `value` [B]."""
    if not bool(torch.isfinite(value).all()):
        raise ConfigError(
            f"products of ratios reach e^{float(data.log_weights().max()):.0f}, with which the "
            "estimate is beyond float64; take a weighted estimator, or shorter episodes"
        )
    return count @ value / count.sum(1)


def _weighted_mean(log_weight: Tensor, value: Tensor, count: Tensor) -> Tensor:
    """Of `value` [B, T] at each step by weights that are known up to a factor, [K, T]."""
    weight = (log_weight - log_weight.amax(0)).exp()
    mass = count @ weight
    mean = count @ (weight * value) / mass.clamp_min(TINY)
    lost = mass < TINY  # draws without the heaviest episode, beside which theirs are 0
    for step in lost.any(0).nonzero().flatten().tolist():
        drawn = count[lost[:, step]]
        logs = torch.where(drawn > 0, log_weight[:, step] + drawn.log(), -math.inf)
        mean[lost[:, step], step] = logs.softmax(1) @ value[:, step]
    return mean
