"""When a classifier should name one label, several or none: conformal sets, thresholds chosen on
rows kept aside, and thresholds learned by policy gradients."""

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

from algorithms.conformal import (
    AbstentionConfig,
    Decisions,
    Thresholds,
    conformal_quantile,
    cost,
    decide,
    expected_coverage,
    label_scores,
    learn_thresholds,
    risk_coverage,
    thresholds,
)
from algorithms.language.measures.locate import scored
from experiments.reports import figures
from experiments.runs import language as language_run
from experiments.runs.study import shared_jobs
from experiments.studies import Outcome, label_sets, language_training
from mbrl import config as configs
from mbrl.errors import unknown_name

VERSION = 1
DEFAULTS: dict[str, Any] = {
    "set": "digits",  # of label_sets, or language: a language model's answers
    "method": "argmax",  # of METHODS
    "alpha": 0.1,  # miscoverage of method conformal
    "config": {},  # of the learned policy, over the authors' values
    "most_rows": 4000,  # of the set
    "train": 0.1,  # share of the rows for the classifier; the rest is split evenly in four
    "splits": 200,  # of calibration and test rows, for the guarantee
}
# Remainders by a language model, of problems of three difficulties that it solves well to badly.
LANGUAGE = language_training.DEFAULTS | {"task": "modular", "until": 0.35}
METHODS = ("argmax", "conformal", "grid", "learned", "leaking")
REMAINDERS = 19  # of divisors up to 19
AT_ONCE = 2048  # answers
GRID = 21  # thresholds on each axis, of the least scores on the validation rows
POINTS = 20  # of a curve


class Parts(NamedTuple):
    """Class probabilities [N, K] and labels [N] of four disjoint parts of the rows."""

    calibration: tuple[np.ndarray, np.ndarray]
    policy: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """On test rows: `cost` (`algorithms.conformal.cost`), `abstains`, `size` of what is named and
    `covered`, the share of answers that hold the label, both over rows that are answered, and
    `accuracy` of the likeliest label there; `rank`: the area under the risk-coverage curve of the
    largest probability. `exact` is the mean coverage of conformal sets (alpha) over splits of
    calibration and test rows less its exact expectation."""
    method = settings["method"]
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    config = configs.from_dict(AbstentionConfig, settings["config"])
    parts = split(settings, seed, folder)
    probability, label = parts.test
    decisions = choose(parts, settings, config, seed)
    answered = decisions.kind < 2
    right = probability.argmax(1) == label
    share, risk = risk_coverage(probability.max(1), right)
    values = {
        "cost": cost(decisions, config),
        "abstains": float(1 - answered.mean()),
        "size": _mean(decisions.size[answered]),
        "covered": _mean(decisions.hit[answered]),
        "accuracy": _mean((right | ((decisions.size == 0) & decisions.hit))[answered]),
        "rank": float(risk.mean()),
        "exact": guarantee(parts, settings["alpha"], settings["splits"], seed),
    }
    curves = {"answered": [1 - values["abstains"]], "risk": [1 - values["accuracy"]]}
    if method == "argmax":
        at = np.unique(np.linspace(len(share) // POINTS, len(share) - 1, POINTS).astype(int))
        curves = {"answered": share[at].round(4).tolist(), "risk": risk[at].round(4).tolist()}
    return Outcome({k: float(f"{v:.6g}") for k, v in values.items()}, curves)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def needs(settings: dict[str, Any], seed: int, home: Path) -> dict[str, Path]:
    if settings["set"] != "language":
        return {}
    return {"start": language_training.warm_start(LANGUAGE, seed, home)}


def split(settings: dict[str, Any], seed: int, folder: Path) -> Parts:
    """The parts, with the probabilities of a classifier fitted to other rows."""
    if settings["set"] == "language":
        probability, label = answers(settings["most_rows"], seed, folder)
        blocks = np.array_split(np.arange(len(label)), 4)
        return Parts(*((probability[b], label[b]) for b in blocks))
    features, label = label_sets.read(settings["set"])
    order = np.random.default_rng(seed).permutation(len(label))[: settings["most_rows"]]
    features, label = features[order], label[order]
    first = int(settings["train"] * len(label))
    classes = int(label.max()) + 1
    probability = softmax_regression(features[:first], label[:first], classes)(features)
    blocks = np.array_split(np.arange(first, len(label)), 4)
    return Parts(*((probability[b], label[b]) for b in blocks))


def answers(count: int, seed: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Of `count` problems that the model was not shown: the probability [N, K] of every remainder
    among all, each said and ended, and the right one [N]."""
    start = shared_jobs(folder).get("start") or language_training.warm_start(LANGUAGE, seed, folder)
    agent = language_run.load(language_training.finished(start))
    rng = random.Random(f"abstention {seed}")
    levels = [rng.choice(agent.levels) for _ in range(count)]
    problems = [agent.task.problem(level, rng, held_out=True) for level in levels]
    label = np.array([int(problem.facts["answer"]) for problem in problems])
    said = [agent.codec.turn(str(k)) for k in range(REMAINDERS)]
    pairs = [(agent.codec.opening(p.prompt), turn) for p in problems for turn in said]
    each = scored(agent.model, pairs, 1.0, agent.codec.pad, AT_ONCE)
    logits = np.array([float(log_prob.sum()) for log_prob in each]).reshape(count, REMAINDERS)
    return special.softmax(logits, 1), label


def softmax_regression(features: np.ndarray, label: np.ndarray, classes: int) -> Any:
    """Class probabilities from features [N, D]: the least |W|^2 / 2 plus the sum of log-losses,
    without a penalty on the intercepts."""
    x = np.column_stack([features, np.ones(len(features))])
    right = np.eye(classes)[label]
    penalised = np.ones(x.shape[1])
    penalised[-1] = 0.0

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(x.shape[1], classes)
        logits = x @ weights
        kept = penalised[:, None] * weights
        value = 0.5 * (kept * weights).sum()
        value += (special.logsumexp(logits, 1) - (logits * right).sum(1)).sum()
        return float(value), (kept + x.T @ (special.softmax(logits, 1) - right)).ravel()

    start = np.zeros(x.shape[1] * classes)
    weights = optimize.minimize(loss, start, jac=True, method="L-BFGS-B").x.reshape(-1, classes)

    def probability(features: np.ndarray) -> np.ndarray:
        result: np.ndarray = special.softmax(features @ weights[:-1] + weights[-1], 1)
        return result

    return probability


def choose(
    parts: Parts, settings: dict[str, Any], config: AbstentionConfig, seed: int
) -> Decisions:
    """The decisions of a method on the test rows."""
    method, (probability, label) = settings["method"], parts.test
    rng = np.random.default_rng((seed, 1))
    scores = true_scores(*parts.calibration)
    if method == "argmax":
        return decide(probability, label, Thresholds(math.inf, math.inf), math.inf, rng)
    if method == "conformal":
        at = Thresholds(-math.inf, conformal_quantile(scores, settings["alpha"]))
        return never_none(probability, label, at.abstain)
    if method == "grid":
        at = best_thresholds(*parts.validation, config)
        return decide(probability, label, at, math.inf, rng)
    learned_on = parts.test if method == "leaking" else parts.policy
    alpha, beta = learn_thresholds(scores, *learned_on, config, seed)
    decisions = decide(probability, label, thresholds(scores, alpha, beta), config.sharpness, rng)
    if method == "leaking":  # as the authors' script counts: nothing named is right and covered
        none = decisions.kind == 2
        return Decisions(np.where(none, 1, decisions.kind), decisions.size, decisions.hit | none)
    return decisions


def never_none(probability: np.ndarray, label: np.ndarray, threshold: float) -> Decisions:
    """The conformal set at every row, which may be empty."""
    members = label_scores(probability) <= threshold
    hit = members[np.arange(len(label)), label]
    return Decisions(np.ones(len(label), dtype=int), members.sum(1), hit)


def true_scores(probability: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The score of each row's own label."""
    scores: np.ndarray = label_scores(probability)[np.arange(len(label)), label]
    return scores


def best_thresholds(
    probability: np.ndarray, label: np.ndarray, config: AbstentionConfig
) -> Thresholds:
    """The pair of least cost on these rows, among quantiles of their least scores."""
    least = label_scores(probability).min(1)
    levels = [*np.quantile(least, np.linspace(0, 1, GRID - 1)), math.inf]
    rng = np.random.default_rng(0)
    pairs = [Thresholds(low, high) for high in levels for low in levels if low <= high]
    costs = [cost(decide(probability, label, at, math.inf, rng), config) for at in pairs]
    return pairs[int(np.argmin(costs))]


def guarantee(parts: Parts, alpha: float, splits: int, seed: int) -> float:
    """Mean coverage less its exact expectation, over splits of calibration and test rows."""
    scores = np.concatenate([true_scores(*parts.calibration), true_scores(*parts.test)])
    count, rng = len(parts.calibration[1]), np.random.default_rng((seed, 2))
    covered = []
    for _ in range(splits):
        drawn = rng.permutation(scores)
        at = conformal_quantile(drawn[:count], alpha)
        covered.append(float((drawn[count:] <= at).mean()))
    return float(np.mean(covered)) - expected_coverage(count, alpha)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """The share of wrong likeliest labels among answered rows, against the share answered."""
    path = folder / f"abstention{suffix}.png"
    lines = figures.by_label(rows, figures.column("answered"), figures.column("risk"))
    figures.curves(lines, "share answered", "share wrong of these", path)
    return [path]
