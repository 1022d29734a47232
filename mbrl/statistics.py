"""What a table of results needs: aggregates over tasks, their intervals, and comparisons.

The replication unit is the seed; tasks are fixed. Scores are arrays [seeds, tasks], NaN where a
run is missing, or lists with one array of seeds for each task. `confidence_interval` is for
tables, the plain `stratified_bootstrap` for comparison with published intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from mbrl.errors import ConfigError, unknown_name

Scores = np.ndarray | Sequence[ArrayLike]
Statistic = Callable[[np.ndarray], Any]  # [..., seeds, tasks] to [...]


class Interval(NamedTuple):
    """An estimate with its confidence interval; `low` and `high` are NaN where there is none."""

    estimate: float
    low: float
    high: float


class Profile(NamedTuple):
    """A performance profile: `estimate`, `low` and `high` [P], one for each of `thresholds` [P]."""

    thresholds: np.ndarray
    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Comparison(NamedTuple):
    """An algorithm against the reference: `difference` of the means over tasks (positive: better
    than the reference), the same in standard deviations of a seed (`effect`, Cohen's d), and the
    p-value of no difference, alone and adjusted for all the algorithms compared."""

    difference: Interval
    effect: float
    p_value: float
    adjusted_p_value: float


def as_scores(scores: Scores) -> np.ndarray:
    """Float64 [seeds, tasks], NaN where there is no run; or [..., seeds, tasks] for a stack.

    An array [seeds] is one task; a list holds one array [seeds] for each task, of any lengths.
    Raises `ConfigError` for scores without entries, infinite ones, and tasks without any run.
    """
    if isinstance(scores, np.ndarray):
        table = np.asarray(scores, dtype=np.float64)
        table = table[:, None] if table.ndim == 1 else table
    else:
        columns = [np.asarray(column, dtype=np.float64) for column in scores]
        for task, column in enumerate(columns):
            if column.ndim != 1:
                raise ConfigError(
                    f"scores of task {task} have shape {column.shape}; a list holds one array "
                    "[seeds] for each task, a single task is a numpy array [seeds]"
                )
        table = np.full((max(map(len, columns), default=0), len(columns)), np.nan)
        for task, column in enumerate(columns):
            table[: len(column), task] = column
    if table.ndim < 2 or 0 in table.shape:
        raise ConfigError(
            f"scores have shape {table.shape}; give [seeds, tasks] with at least one of each"
        )
    if np.isinf(table).any():
        raise ConfigError("scores hold infinite values; mark a run without a score as NaN")
    empty = np.flatnonzero(np.isnan(table).all(-2).reshape(-1, table.shape[-1]).any(0))
    if len(empty):
        raise ConfigError(
            f"tasks {empty.tolist()} have no run; run them, or leave them out for all algorithms"
        )
    return table


def mean(scores: Scores) -> Any:
    """Mean over tasks of the means over seeds."""
    return _task_means(as_scores(scores)).mean(-1)


def median(scores: Scores) -> Any:
    """Median over tasks of the means over seeds."""
    return np.median(_task_means(as_scores(scores)), -1)


def iqm(scores: Scores) -> Any:
    """Interquartile mean: the mean of all runs without the lowest and the highest quarter, each
    rounded down to whole runs (Deep Reinforcement Learning at the Edge of the Statistical
    Precipice, arXiv 2108.13264).

    Runs are pooled, so a task with more runs than the others weighs more. The tables of a stack
    must lack the same runs.
    """
    from scipy import stats  # here, as it takes a second to import

    table = as_scores(scores)
    runs = table.reshape(*table.shape[:-2], -1)
    present = ~np.isnan(runs.reshape(-1, runs.shape[-1])[0])
    return stats.trim_mean(runs[..., present], 0.25, axis=-1)


def optimality_gap(scores: Scores, target: float = 100.0) -> Any:
    """How far runs fall short of `target` on average, those above it counting as there; lower is
    better (arXiv 2108.13264). 100 is the expert's normalised score."""
    return target - mean(np.minimum(as_scores(scores), target))


def confidence_interval(
    scores: Scores,
    statistic: Statistic = iqm,
    *,
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Student's t interval of `statistic` with the standard error of the stratified bootstrap.

    A resample of n seeds varies (n - 1) / n as much as n new seeds would, which is undone, and a
    deviation estimated from few seeds is itself uncertain, which the t quantile allows for, with
    Welch and Satterthwaite's degrees of freedom for the mean over tasks. The interval of one task's
    mean is the classical one. NaN where a task has a single run.

    Coverage in percent at confidence 0.95 and 3 / 5 / 10 seeds, of the plain percentile interval in
    brackets; 2,000 tables of tasks with different means and spreads, standard error 0.5:

        normal scores           1 task, mean    94 / 95 / 95   (73 / 83 / 90)
                                1 task, iqm     96 / 97 / 97   (75 / 90 / 94)
                                12 tasks, mean  95 / 95 / 96   (87 / 90 / 94)
                                12 tasks, iqm   96 / 95 / 95   (88 / 91 / 92)
                                12, median      93 / 92 / 94   (85 / 91 / 95)
        log-normal, sigma 0.8   1 task, mean    87 / 87 / 88   (67 / 77 / 84)
                                12 tasks, iqm   97 / 96 / 95   (88 / 91 / 93)
        a fifth of runs fails   1 task, mean    51 / 67 / 88   (46 / 66 / 87)
                                1 task, iqm     96 / 97 / 98   (73 / 89 / 92)

    No interval of a mean knows of failures that did not happen to be drawn.
    """
    table = _table(scores)
    values = _drawn(table, statistic, confidence, draws, seed)
    estimate = float(statistic(table))
    if values is None:
        return Interval(estimate, np.nan, np.nan)
    variances, counts = _variances_of_means(table)
    known = (variances * (counts - 1) / counts).sum()
    lost = variances.sum() / known if known > 0 else 1.0
    error = float(values.std(ddof=1) * np.sqrt(lost))
    return _student(estimate, error, _degrees(variances, counts), confidence)


def stratified_bootstrap(
    scores: Scores,
    statistic: Statistic = iqm,
    *,
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of `statistic` over resamples of the seeds, drawn with replacement and
    independently for each task (arXiv 2108.13264; what rliable prints). NaN where a task has a
    single run.

    Too narrow for few seeds, see `confidence_interval`.
    """
    table = _table(scores)
    values = _drawn(table, statistic, confidence, draws, seed)
    estimate = float(statistic(table))
    if values is None:
        return Interval(estimate, np.nan, np.nan)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(estimate, float(low), float(high))


def performance_profile(
    scores: Scores, thresholds: ArrayLike, *, confidence: float = 0.95
) -> Profile:
    """Share of runs that score above each of `thresholds` [P], mean over tasks, with a pointwise
    band (arXiv 2108.13264). NaN bands where a task has a single run.

    The share p of n runs has the bootstrap variance p (1 - p) / n; here p counts half a run more
    on either side, since n runs beyond a threshold do not prove that all would be. Coverage at
    confidence 0.95 and 3 to 10 seeds: 94 to 97 % for 12 tasks (percentile bootstrap: 85 to 93 %),
    75 to 100 % for one task (0 to 97 %).
    """
    _check_confidence(confidence)
    table, levels = _table(scores), np.asarray(thresholds, dtype=np.float64)
    if levels.ndim != 1 or levels.size == 0 or not np.isfinite(levels).all():
        raise ConfigError(f"thresholds are {levels.tolist()}; give [P] finite numbers")
    counts = (~np.isnan(table)).sum(0)
    above = (table > levels[:, None, None]).sum(1)
    estimate = (above / counts).mean(1)
    if counts.min() < 2:
        nothing = np.full_like(estimate, np.nan)
        return Profile(levels, estimate, nothing, nothing)
    share = (above + 0.5) / (counts + 1)
    error = np.sqrt((share * (1 - share) / counts).sum(1)) / len(counts)
    half = special.ndtri((1 + confidence) / 2) * error
    return Profile(levels, estimate, np.maximum(estimate - half, 0), np.minimum(estimate + half, 1))


def probability_of_improvement(a: Scores, b: Scores, *, confidence: float = 0.95) -> Interval:
    """Probability that a run of algorithm `a` scores above one of `b` on the same task, ties
    counting half: Mann and Whitney's U / (n m), mean over tasks (arXiv 2108.13264).

    The interval is Student's t with DeLong's variance of each task's U. A task where one algorithm
    wins every comparison shows no variance; it gets the largest that its probability p allows,
    p (1 - p) / min(n, m), half a comparison from the edge. NaN where a task has a single run.
    Coverage at confidence 0.95 and 3 to 10 seeds: 93 to 100 % for 12 tasks; 73 to 100 % for one
    task, lowest near p = 0.85 (percentile bootstrap: 92 to 95 and 56 to 94 %).
    """
    _check_confidence(confidence)
    first, second = _same_tasks({"a": a, "b": b}).values()
    shares, variances, counts = [], [], []
    for x, y in zip(_runs(first), _runs(second), strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        shares.append(wins.mean())
        counts += wins.shape
        if min(wins.shape) < 2:
            variances += [np.nan, np.nan]
        elif shares[-1] in (0.0, 1.0):
            edge = 0.5 / (wins.size + 1)
            variances += [edge * (1 - edge) / min(wins.shape) / 2] * 2
        else:
            variances += [w.var(ddof=1) / len(w) for w in (wins.mean(1), wins.mean(0))]
    error = float(np.sqrt(np.sum(variances))) / len(shares)
    degrees = _degrees(np.array(variances), np.array(counts))
    estimate, low, high = _student(float(np.mean(shares)), error, degrees, confidence)
    return Interval(estimate, float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1)))


def paired_comparison(
    scores: Mapping[str, Scores], reference: str, *, confidence: float = 0.95
) -> dict[str, Comparison]:
    """Every other algorithm of `scores` against `reference`, paired by task, in their order.

    The tested quantity is the mean over tasks of the difference of mean scores, with Welch's t
    test stratified by task: a task's variance is the sum of both algorithms' variances over seeds,
    degrees of freedom are Welch and Satterthwaite's. So only seeds count as replication: the
    statement is about these tasks, and numbers of seeds may differ. Runs of two algorithms are not
    paired by seed: they share little but the number, and where they share more the test errs on the
    safe side. A rank test over (task, seed) pairs would take tasks for replications of each other,
    one over task means needs many tasks. Under no difference p < 0.05 came up in 3 to 5 % of tables
    with 3 to 10 seeds and 1 or 12 tasks (2 to 5 % for log-normal scores, sigma 0.8).

    p-values are adjusted by Holm's method. They and the intervals are NaN where a task has a single
    run, p-values and effects also where all seeds score the same. Raises `ConfigError` for an
    unknown reference or different numbers of tasks.
    """
    _check_confidence(confidence)
    if reference not in scores:
        raise unknown_name("reference algorithm", reference, scores)
    tables = _same_tasks(scores)
    base = tables.pop(reference)
    base_variances, base_counts = _variances_of_means(base)
    differences, effects, p_values = [], [], []
    for table in tables.values():
        variances, counts = _variances_of_means(table)
        both = np.concatenate([variances, base_variances])
        error = float(np.sqrt(both.sum())) / base.shape[1]
        all_counts = np.concatenate([counts, base_counts])
        degrees = _degrees(both, all_counts)
        difference = float(mean(table) - mean(base))
        differences.append(_student(difference, error, degrees, confidence))
        deviation = np.sqrt((both * all_counts).mean())
        effects.append(float(difference / deviation) if deviation > 0 else np.nan)
        t = abs(difference) / error if error > 0 else np.nan
        p_values.append(float(2 * special.stdtr(degrees, -t)))
    rows = zip(differences, effects, p_values, holm(p_values).tolist(), strict=True)
    return {name: Comparison(*row) for name, row in zip(tables, rows, strict=True)}


def detectable_difference(
    deviation: float, pairs: int, *, confidence: float = 0.95, power: float = 0.8
) -> float:
    """The smallest true mean difference of `pairs` of runs (3 or more) that the two-sided paired t
    test at that confidence finds with the probability `power`, where differences of single pairs
    have the standard deviation `deviation`: by the noncentral t distribution; 0 for a power that
    the test has without any. Raises `ConfigError` for fewer pairs, a power outside (0, 1) or a
    negative deviation."""
    _check_confidence(confidence)
    if pairs < 3 or not 0 < power < 1:
        raise ConfigError(
            f"pairs is {pairs} (3 or more), power {power} (between 0 and 1, such as 0.8)"
        )
    if deviation < 0:
        raise ConfigError(f"deviation is {deviation}; give one of 0 or above")
    if power <= 1 - confidence:
        return 0.0
    degrees = pairs - 1
    edge = special.stdtrit(degrees, (1 + confidence) / 2)

    def missed(shift: float) -> float:
        wrong_side = special.nctdtr(degrees, shift, -edge)  # NaN where it is too small for it
        detected = np.nan_to_num(wrong_side) + 1 - special.nctdtr(degrees, shift, edge)
        return float(detected - power)

    above = 1.0
    while missed(above) < 0:
        above *= 1.5
    return deviation * float(optimize.brentq(missed, 0.0, above)) / float(np.sqrt(pairs))


def holm(p_values: ArrayLike) -> np.ndarray:
    """p-values [K] adjusted for K tests by Holm's step-down method (A Simple Sequentially Rejective
    Multiple Test Procedure, 1979). NaN stays and does not count as a test."""
    p = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted = p.copy()
    adjusted[order] = np.maximum.accumulate(factors * p[order]).clip(max=1.0)
    return adjusted


def rank_correlation(x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Spearman's rank correlation of `x` and `y` [N] with Fisher's interval, its standard error
    sqrt((1 + r^2 / 2) / (N - 3)) after Bonett and Wright (Sample Size Requirements for Estimating
    Pearson, Kendall and Spearman Correlations, 2000).

    A perfect order is taken as half way to the next lower correlation, so that it has an interval
    too. Coverage at confidence 0.95, normal pairs: 95 to 99 % for N = 5 to 20. The limits are NaN
    for N < 4, all three numbers where `x` or `y` is constant.
    """
    _check_confidence(confidence)
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise ConfigError(f"x and y have shapes {a.shape} and {b.shape}; both must be [N], N >= 2")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ConfigError("x and y must be finite; leave out the pairs that lack a value")
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return Interval(np.nan, np.nan, np.nan)
    from scipy import stats  # here, as it takes a second to import

    n, r = len(a), float(stats.spearmanr(a, b).statistic)
    if n < 4:
        return Interval(r, np.nan, np.nan)
    inner = float(np.clip(r, -1 + 6 / (n * (n * n - 1)), 1 - 6 / (n * (n * n - 1))))
    half = special.ndtri((1 + confidence) / 2) * np.sqrt((1 + inner**2 / 2) / (n - 3))
    low, high = np.tanh(np.arctanh(inner) + half * np.array([-1.0, 1.0]))
    return Interval(r, min(r, float(low)), max(r, float(high)))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}, it must lie in (0, 1), such as 0.95")


def _table(scores: Scores) -> np.ndarray:
    table = as_scores(scores)
    if table.ndim != 2:
        raise ConfigError(f"scores have shape {table.shape}; an interval needs [seeds, tasks]")
    return table


def _same_tasks(scores: Mapping[str, Scores]) -> dict[str, np.ndarray]:
    tables = {name: _table(values) for name, values in scores.items()}
    tasks = {name: table.shape[1] for name, table in tables.items()}
    if len(set(tasks.values())) != 1:
        raise ConfigError(f"numbers of tasks differ: {tasks}; give all algorithms the same tasks")
    return tables


def _runs(table: np.ndarray) -> list[np.ndarray]:
    """The runs that there are, task by task."""
    return [column[~np.isnan(column)] for column in table.T]


def _task_means(table: np.ndarray) -> np.ndarray:
    present = ~np.isnan(table)
    means: np.ndarray = np.where(present, table, 0.0).sum(-2) / present.sum(-2)
    return means


def _variances_of_means(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimated variance of each task's mean (NaN for a single run) and its number of runs."""
    runs = _runs(table)
    # Of equal runs 0: their mean may be rounded.
    variances = [r.var(ddof=1) / len(r) * (np.ptp(r) > 0) if len(r) > 1 else np.nan for r in runs]
    return np.array(variances), np.array([len(r) for r in runs])


def _degrees(variances: np.ndarray, counts: np.ndarray) -> float:
    """Degrees of freedom of a sum of estimated variances, after Welch and Satterthwaite."""
    if variances.sum() == 0:
        return np.inf
    return float(variances.sum() ** 2 / (variances**2 / np.maximum(counts - 1, 1)).sum())


def _student(estimate: float, error: float, degrees: float, confidence: float) -> Interval:
    half = float(special.stdtrit(degrees, (1 + confidence) / 2)) * error
    return Interval(estimate, estimate - half, estimate + half)


def _drawn(
    table: np.ndarray, statistic: Statistic, confidence: float, draws: int, seed: int
) -> np.ndarray | None:
    """`statistic` of `draws` resamples; None where a task has a single run."""
    _check_confidence(confidence)
    if draws < 2:
        raise ConfigError(f"draws is {draws}, it must be at least 2; 2,000 or more are useful")
    counts = (~np.isnan(table)).sum(0)
    if counts.min() < 2:
        return None
    # The runs that there are come first, so that an index below a task's count is one of them.
    order = np.argsort(np.isnan(table), axis=0, kind="stable")
    packed = np.take_along_axis(table, order, 0)
    index = np.random.default_rng(seed).integers(0, counts, size=(draws, *table.shape))
    drawn = packed[index, np.arange(len(counts))]
    drawn[:, np.isnan(packed)] = np.nan
    values = np.asarray(statistic(drawn))
    if values.shape != (draws,):
        raise ConfigError(
            f"statistic gives shape {values.shape} for a stack of {draws} tables; it must reduce "
            "the last two axes, as mbrl.statistics.iqm does"
        )
    return values
