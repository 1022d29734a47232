"""The value of a policy from logged rounds of a contextual bandit, whose logging policy wrote down
the probability of what it did.

With w = pi(a|x) / pi_b(a|x) of the logged action, q an estimate of its mean reward and v that of
the policy at x, each round contributes

    dm         v
    ipw        w r                        (Horvitz and Thompson, 1952)
    snipw      w r / mean(w)              (Swaminathan and Joachims, 2015)
    dr         v + w (r - q)              (arXiv 1103.4601)
    sndr       v + w (r - q) / mean(w)
    switch_dr  v + w (r - q) [w <= l]     (arXiv 1612.01205)
    dr_os      v + l w / (w^2 + l) (r - q)  (arXiv 1907.09623, optimistic shrinkage)

and the estimate is the mean of the contributions. `slope` chooses l of the last two from the data
alone (arXiv 2002.07729 with the constant of "Improved Estimator Selection for Off-Policy
Evaluation", Tucker and Lee, 2021).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient.off_policy_evaluation import Evaluation

Array = NDArray[np.float64]
LIMITS = (10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10_000.0, math.inf)


@dataclass(frozen=True)
class LoggedDecisions:
    """Logged rounds, [N] each, kept as float64. `reward`; `weight`: the policy's probability of the
    logged action over the logging policy's; `q`, `v`: estimates, from other rounds, of the mean
    reward of the logged action and of the policy there (zeros: without any). Raises `ConfigError`
    for shapes that differ, for numbers that are not finite, and for negative weights."""

    reward: Array
    weight: Array
    q: Array
    v: Array

    def __post_init__(self) -> None:
        for name in ("reward", "weight", "q", "v"):
            # In small whole numbers 0 - 1 is 255.
            value = np.asarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, value)
            if value.shape != self.reward.shape or value.ndim != 1 or len(value) == 0:
                raise ConfigError(
                    f"{name} is {value.shape}, reward is {self.reward.shape}; all must be [N] with "
                    "a round at least"
                )
            if not np.isfinite(value).all():
                raise ConfigError(
                    f"{name} has numbers that are not finite; a logged action with probability 0 "
                    "cannot have happened"
                )
        if (self.weight < 0).any():
            raise ConfigError("a weight is negative; it is a ratio of probabilities")


def _dm(rounds: LoggedDecisions, limit: float) -> Array:
    return rounds.v


def _ipw(rounds: LoggedDecisions, limit: float) -> Array:
    return rounds.weight * rounds.reward


def _snipw(rounds: LoggedDecisions, limit: float) -> Array:
    return _self_normalised(rounds.weight, rounds.reward)


def _dr(rounds: LoggedDecisions, limit: float) -> Array:
    return rounds.v + rounds.weight * (rounds.reward - rounds.q)


def _sndr(rounds: LoggedDecisions, limit: float) -> Array:
    return rounds.v + _self_normalised(rounds.weight, rounds.reward - rounds.q)


def _self_normalised(weight: Array, value: Array) -> Array:
    """What each round adds to sum w x / sum w, to first order: with this mean, and the deviation of
    a quotient, whose denominator varies too."""
    relative = weight / float(weight.mean())
    mean = float((relative * value).mean())
    return mean + relative * (value - mean)


def _switch_dr(rounds: LoggedDecisions, limit: float) -> Array:
    kept = rounds.weight * (rounds.weight <= limit)
    return rounds.v + kept * (rounds.reward - rounds.q)


def _dr_os(rounds: LoggedDecisions, limit: float) -> Array:
    if math.isinf(limit):
        return _dr(rounds, limit)
    shrunk = limit * rounds.weight / (rounds.weight**2 + limit)
    return rounds.v + shrunk * (rounds.reward - rounds.q)


ESTIMATORS: dict[str, Callable[[LoggedDecisions, float], Array]] = {
    "dm": _dm, "ipw": _ipw, "snipw": _snipw, "dr": _dr, "sndr": _sndr, "switch_dr": _switch_dr,
    "dr_os": _dr_os,
}  # fmt: skip
SELF_NORMALISED = ("snipw", "sndr")
LIMITED = ("switch_dr", "dr_os")  # those with a limit to choose


def evaluate(
    rounds: LoggedDecisions,
    estimator: str = "dr",
    *,
    limits: Sequence[float] = LIMITS,
    confidence: float = 0.95,
) -> Evaluation:
    """The estimate with Student's interval over rounds; where the weights of few rounds are most of
    their sum (`effective_share`), intervals cover less than they say. Those of dm, switch_dr and
    dr_os say nothing of bias, which a wrong `q` leaves in them at any number of rounds: to hold the
    true value take the interval of dr. An estimator with a limit has
    it chosen among `limits` by `slope`, which raises for a single round. Raises `ConfigError` for
    an unknown one, a confidence outside (0, 1), and a self-normalised one where all weights are
    0."""
    if estimator not in ESTIMATORS:
        raise unknown_name("estimator", estimator, ESTIMATORS)
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}; it lies between 0 and 1, such as 0.95")
    if estimator in SELF_NORMALISED and not (rounds.weight > 0).any():
        raise ConfigError(
            f"estimator {estimator} divides by the sum of the weights, and all are 0: the policy "
            "never takes what was logged; take dm, or data in which it could have"
        )
    limit: float = slope(rounds, estimator, limits) if estimator in LIMITED else math.inf
    gained = ESTIMATORS[estimator](rounds, limit)
    mean, n = float(gained.mean()), len(gained)
    reach = math.nan
    if n > 1:
        quantile = float(special.stdtrit(n - 1, 0.5 + confidence / 2))
        reach = quantile * float(gained.std(ddof=1)) / math.sqrt(n)
    w = rounds.weight
    share = float(w.sum() ** 2 / max(float((w**2).sum()), 1e-300) / n)
    return Evaluation(mean, mean - reach, mean + reach, share)


def slope(
    rounds: LoggedDecisions, estimator: str, limits: Sequence[float] = LIMITS, delta: float = 0.1
) -> float:
    """The limit with the least variance whose estimates agree with all of larger variance: from the
    widest interval to the narrowest, the last one whose centre lies within its own half-width plus
    (sqrt(6) - 1) times that of each one before. Raises `ConfigError` for limits that are not
    above 0 and for a single round."""
    if not limits or any(not limit > 0 for limit in limits):
        raise ConfigError(f"limits is {list(limits)}; give one at least, all above 0")
    if len(rounds.reward) < 2:
        raise ConfigError(
            f"estimator {estimator} chooses its limit by the spread over rounds, and 1 round has "
            "none; give 2 or more, or take dr"
        )
    factor = math.sqrt(6) - 1
    centres, widths = [], []
    for limit in limits:
        gained = ESTIMATORS[estimator](rounds, limit)
        centres.append(float(gained.mean()))
        quantile = float(stats.t.ppf(1 - delta, len(gained) - 1))
        widths.append(quantile * float(gained.std(ddof=1)) / math.sqrt(len(gained)))
    order = np.argsort(widths)[::-1]
    for place, k in enumerate(order):
        before = order[:place]
        if any(abs(centres[j] - centres[k]) > widths[k] + factor * widths[j] for j in before):
            return float(limits[order[place - 1]])
    return float(limits[order[-1]])


def logistic_regression(
    features: Array, outcome: Array, inverse_penalty: float = 1.0
) -> Callable[[Array], Array]:
    """Probability of an outcome (0 or 1, [N]) from `features` [N, D]: the minimum of |w|^2 / 2 +
    `inverse_penalty` times the sum of the log-losses, without a penalty on the intercept. Raises
    `ConfigError` for other outcomes, features that are not finite and no `inverse_penalty` above
    0."""
    features, outcome = np.asarray(features, np.float64), np.asarray(outcome)
    if outcome.shape != features.shape[:1] or features.ndim != 2:
        raise ConfigError(
            f"features are {features.shape}, outcome is {outcome.shape}; give [N, D] and [N]"
        )
    if not np.isfinite(features).all():
        row = int((~np.isfinite(features).all(1)).argmax())
        raise ConfigError(f"the features of row {row} are not finite; fill in what is missing")
    if not 0 < inverse_penalty < math.inf:
        raise ConfigError(f"inverse_penalty is {inverse_penalty}; give a finite one above 0")
    if others := sorted({*np.unique(outcome).tolist()} - {0, 1}):
        raise ConfigError(f"outcome has {others[0]}; give 0 or 1 for each row (False or True)")
    # In deviations from the mean: the minimum is the same, and steps reach it in any unit.
    centre = features.mean(0)
    scale = np.where(np.ptp(features, 0) > 0, features.std(0), 1.0)
    x = np.column_stack([(features - centre) / scale, np.ones(len(features))])
    penalty = np.append(1 / (inverse_penalty * scale**2), 0.0)
    sign = 2.0 * outcome.astype(np.float64) - 1.0

    def loss(weights: Array) -> tuple[float, Array]:
        margin = sign * (x @ weights)
        penalised = penalty * weights
        value = 0.5 * float(penalised @ weights) + float(np.logaddexp(0, -margin).sum())
        return value, penalised - x.T @ (sign * special.expit(-margin))

    fit = optimize.minimize(
        loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B",
        options={"maxiter": 10_000, "gtol": 1e-6, "ftol": 1e-14, "maxls": 50},
    )  # fmt: skip

    def probability(features: Array) -> Array:
        logits: Array = (features - centre) / scale @ fit.x[:-1] + fit.x[-1]
        result: Array = special.expit(logits)
        return result

    return probability
