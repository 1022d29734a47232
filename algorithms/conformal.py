"""Conformal prediction with abstention: split conformal sets, and "Learning Conformal Abstention
Policies" (arXiv 2502.06884), which learns two thresholds by policy gradients. Its formulas follow
the authors' script (sinatayebati/vlm-uncertainty).

Differences: thresholds are learned on rows of their own. The script learns them with the test
rows' labels, counts an abstention as a covered and correct answer, and adds 30 % of the true
label's probability to a confidence; none of these is done here. Coverage is that of the rows that
are answered.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mbrl.config import Count, Fraction, NonNegative, Positive, Settings
from mbrl.errors import ConfigError, DataError
from mbrl.native.adam import Adam

Array = np.ndarray


def conformal_quantile(scores: Array, alpha: float) -> float:
    """The threshold under which a new score lies with probability at least 1 - `alpha`, if it is
    exchangeable with `scores` [n]: the ceil((n + 1)(1 - alpha))-th smallest, infinite where that is
    more than n. Raises `ConfigError` for an alpha outside (0, 1), `DataError` without scores, for
    other shapes, and for a score that is no number."""
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}, it must lie in (0, 1)")
    if len(scores) == 0:
        raise DataError("there are no calibration scores; keep some rows with labels aside")
    if np.ndim(scores) != 1 or np.isnan(scores).any():
        raise DataError(
            f"scores of shape {np.shape(scores)}, {int(np.isnan(scores).sum())} of them NaN; give "
            "one number a row: the score of its true label"
        )
    # Rounding must not lift a whole number to the next one: (9 + 1)(1 - 0.1) is 9.
    rank = math.ceil(round((len(scores) + 1) * (1 - alpha), 9))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def expected_coverage(count: int, alpha: float) -> float:
    """The exact mean coverage of `conformal_quantile` over draws of `count` calibration rows, where
    scores have no ties: rank / (count + 1), which lies in [1 - alpha, 1 - alpha + 1 / (count +
    1))."""
    return min(math.ceil(round((count + 1) * (1 - alpha), 9)) / (count + 1), 1.0)


def label_scores(probability: Array) -> Array:
    """1 - p(y|x) of every label, from class probabilities [N, K] (LAC). Raises `DataError` for rows
    that are no probabilities, such as logits."""
    p = np.asarray(probability)
    if p.ndim != 2 or not ((p >= 0).all() and np.allclose(p.sum(1), 1.0, atol=1e-3)):
        raise DataError(
            f"probabilities of shape {p.shape}; each row [K] must be at least 0 and sum to 1 (of "
            "logits the softmax)"
        )
    return 1 - p


class Thresholds(NamedTuple):
    """Least scores under which one label is named, and above which nothing is."""

    predict: float
    abstain: float


@dataclass(frozen=True)
class AbstentionConfig(Settings):
    """Settings of the learned abstention policy: the authors' values."""

    hidden: Count = 64
    learning_rate: Positive = 1e-3
    epochs: Count = 200
    step: Positive = 0.005  # change of alpha and beta for an action of 1
    start: tuple[Fraction, Fraction] = (0.85, 0.025)  # alpha and beta
    alpha_range: tuple[Fraction, Fraction] = (0.75, 0.9)  # predict: the quantile of level 1 - alpha
    beta_range: tuple[Fraction, Fraction] = (0.01, 0.05)  # abstain: that of level 1 - beta
    sharpness: Positive = 5.0  # of the shares; infinite: thresholds
    set_cost: NonNegative = 0.3  # of a label in a set
    abstention_cost: NonNegative = 0.3
    coverage_gain: NonNegative = 0.4  # of a row that is answered
    entropy_gain: NonNegative = 0.2  # of the three mean shares
    single_cost: NonNegative = 0.5  # of the share of single answers above 0.8


def decision_shares(least: Array, at: Thresholds, sharpness: float) -> Array:
    """Probabilities [N, 3] of naming one label, a set, or nothing, from the least score over labels
    [N]: sigmoid(s (t_predict - least)), the rest, sigmoid(s (least - t_abstain)), normalised where
    the rest would be negative. Infinite `sharpness`: 0 or 1 by the thresholds."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = _sigmoid(sharpness, at.predict - least)
        nothing = _sigmoid(sharpness, least - at.abstain)
    rest = np.clip(1 - single - nothing, 0.0, None)
    shares = np.stack([single, rest, nothing], 1)
    return np.asarray(shares / shares.sum(1, keepdims=True))


def _sigmoid(sharpness: float, x: Array) -> Array:
    if math.isinf(sharpness):
        return (x > 0).astype(np.float64)
    return np.asarray(1 / (1 + np.exp(-sharpness * x)))


class Decisions(NamedTuple):
    """What is done at each of N rows: 0 names one label, 1 the set, 2 nothing; the number of labels
    named, and whether the true one is among them (false for nothing)."""

    kind: Array
    size: Array
    hit: Array


def decide(
    probability: Array, label: Array, at: Thresholds, sharpness: float, rng: np.random.Generator
) -> Decisions:
    """Draw a decision for each row. The set holds the labels whose score is at most the threshold
    of abstention, and the likeliest one always."""
    scores = label_scores(probability)
    shares = decision_shares(scores.min(1), at, sharpness)
    draw = rng.random(len(label))[:, None]
    kind = (draw > shares.cumsum(1)[:, :2]).sum(1)
    top = probability.argmax(1)
    members = scores <= at.abstain
    members[np.arange(len(label)), top] = True
    size = np.where(kind == 0, 1, np.where(kind == 1, members.sum(1), 0))
    inside = members[np.arange(len(label)), label]
    hit = np.where(kind == 0, top == label, np.where(kind == 1, inside, False))
    return Decisions(kind, size, hit)


def cost(decisions: Decisions, config: AbstentionConfig) -> float:
    """Mean of error + set_cost size + abstention_cost abstention - coverage_gain answered: the
    authors' cost without its terms that shape the search. An abstention is no error."""
    answered = decisions.kind < 2
    each = (answered & ~decisions.hit) + config.set_cost * decisions.size
    each = each + np.where(answered, -config.coverage_gain, config.abstention_cost)
    return float(each.mean())


def shaped_cost(decisions: Decisions, config: AbstentionConfig) -> float:
    """The cost that the policy is trained on."""
    shares = np.bincount(decisions.kind, minlength=3) / len(decisions.kind)
    entropy = -float((shares * np.log(np.maximum(shares, 1e-12))).sum())
    above = max(0.0, float(shares[0]) - 0.8)
    return cost(decisions, config) - config.entropy_gain * entropy + config.single_cost * above


def learn_thresholds(
    calibration: Array,
    probability: Array,
    label: Array,
    config: AbstentionConfig,
    seed: int = 0,
) -> tuple[float, float]:
    """REINFORCE over (alpha, beta): a Gaussian policy of both moves them by `step` times its
    action, and is paid minus the shaped cost on the rows `probability` [N, K], `label` [N], whose
    thresholds come from the `calibration` scores. Returns the last alpha and beta.

    Formula:

        thresholds  t_predict, t_abstain = quantiles of the scores of levels 1 - alpha, 1 - beta
        decision    one label, a set or nothing by `decision_shares`
        update      (alpha, beta) += step a, a ~ N(m(alpha, beta), s(alpha, beta))
        gradient    (cost - mean of the costs so far) grad log N(a)

    When not to use it: a grid over two thresholds on the same rows finds as good ones, and says how
    sure it is.
    """
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(2, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 4))
    optimiser = Adam(network.parameters(), lr=config.learning_rate)
    state = torch.tensor(config.start, dtype=torch.float64)
    low, high = torch.tensor([config.alpha_range, config.beta_range], dtype=torch.float64).T
    total = 0.0
    for epoch in range(config.epochs):
        mean, log_std = network(state.float()).chunk(2)
        std = log_std.clamp(-5.0, 2.0).exp()
        action = (mean + std * torch.randn(2, generator=generator)).detach()
        state = (state + config.step * action).clamp(low, high)
        alpha, beta = state.tolist()
        at = thresholds(calibration, alpha, beta)
        paid = shaped_cost(decide(probability, label, at, config.sharpness, rng), config)
        baseline = total / epoch if epoch else paid
        total += paid
        log_p: Tensor = -((action - mean) / std).square() / 2 - std.log()
        optimiser.zero_grad()
        ((paid - baseline) * log_p.sum()).backward()
        optimiser.step()
    return float(state[0]), float(state[1])


def thresholds(calibration: Array, alpha: float, beta: float) -> Thresholds:
    """The thresholds of `alpha` (predict) and `beta` (abstain): conformal quantiles of the scores
    of true labels, so that the set of all labels below the second one covers 1 - beta."""
    return Thresholds(conformal_quantile(calibration, alpha), conformal_quantile(calibration, beta))


def risk_coverage(confidence: Array, right: Array) -> tuple[Array, Array]:
    """Shares of rows answered [N], most confident first, and the share of wrong answers among them
    [N]."""
    # As floats: minus a small whole number without a sign is a large one.
    order = np.argsort(-np.asarray(confidence, np.float64), kind="stable")
    right = np.asarray(right, dtype=bool)
    count = np.arange(1, len(right) + 1)
    return count / len(right), np.cumsum(~right[order]) / count
