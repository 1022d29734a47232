"""Statistics against recorded outputs of rliable (`recorded/make_rliable.py`), scipy, loops by
hand, and the coverage of the intervals by simulation."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mbrl import statistics as st
from mbrl.errors import ConfigError

RECORDED = json.loads((Path(__file__).parent / "recorded" / "rliable.json").read_text())
A, B = (np.array(RECORDED["scores"][name]) for name in "ab")
STATISTICS = {f.__name__: f for f in (st.iqm, st.mean, st.median, st.optimality_gap)}
RAGGED = [[1.0, 3.0, 8.0], [2.0, 6.0], [5.0, 5.0, 7.0, 9.0]]
TRIALS = 1_000


@pytest.mark.parametrize("name", STATISTICS)
def test_aggregates_are_those_of_rliable(name: str) -> None:
    for key, scores in (("a", A), ("b", B)):
        assert STATISTICS[name](scores) == pytest.approx(RECORDED["aggregates"][key][name])


@pytest.mark.parametrize("name", STATISTICS)
def test_bootstrap_interval_is_that_of_rliable(name: str) -> None:
    """Both are Monte Carlo; a limit's own error is about 0.01 of the width at 20,000 draws, and the
    median's bootstrap distribution has gaps near a limit."""
    for key, scores in (("a", A), ("b", B)):
        low, high = RECORDED["intervals"][key][name]
        got = st.stratified_bootstrap(scores, STATISTICS[name], draws=20_000)
        assert got.estimate == pytest.approx(RECORDED["aggregates"][key][name])
        assert got[1:] == pytest.approx((low, high), abs=0.04 * (high - low))


def test_profile_is_that_of_rliable() -> None:
    """The band is wider than the percentile one, which is too narrow for few seeds, and has a width
    where all runs are on one side."""
    got = st.performance_profile(A, RECORDED["thresholds"])
    assert got.estimate.tolist() == pytest.approx(RECORDED["profile"])
    widths = got.high - got.low
    for width, (low, high) in zip(widths, RECORDED["profile_band"], strict=True):
        assert 0.9 * (high - low) <= width <= 1.4 * (high - low) + 0.05
    assert (got.low >= 0).all() and (got.high <= 1).all()


def test_probability_of_improvement_is_that_of_rliable() -> None:
    got = st.probability_of_improvement(B, A)
    low, high = RECORDED["improvement_interval"]
    assert got.estimate == pytest.approx(RECORDED["improvement_of_b"])
    assert got[1:] == pytest.approx((low, high), abs=0.2 * (high - low))


def test_missing_runs_are_left_out() -> None:
    """Lists and NaN say the same; each number is that of a loop over the runs there are."""
    table = st.as_scores(RAGGED)
    assert table.shape == (4, 3) and np.isnan(table).sum() == 3
    moved = table[::-1].copy()
    runs = sorted(itertools.chain(*RAGGED))
    for scores in (RAGGED, table, moved):
        assert st.mean(scores) == pytest.approx((4.0 + 4.0 + 6.5) / 3)
        assert st.median(scores) == pytest.approx(4.0)
        assert st.iqm(scores) == pytest.approx(np.mean(runs[2:-2]))
        assert st.optimality_gap(scores, target=6.0) == pytest.approx(
            6.0 - np.mean([(1 + 3 + 6) / 3, (2 + 6) / 2, (5 + 5 + 6 + 6) / 4])
        )
        profile = st.performance_profile(scores, [2.0, 5.0])
        assert profile.estimate.tolist() == pytest.approx([13 / 18, (1 / 3 + 1 / 2 + 1 / 2) / 3])
        assert st.stratified_bootstrap(scores, draws=500)[0] == pytest.approx(np.mean(runs[2:-2]))
    assert st.mean(np.array([1.0, 2.0, 6.0])) == pytest.approx(3.0)


def test_resamples_against_a_loop() -> None:
    """The mean of ragged tasks: every combination of resampled task means, weighted equally."""
    means = [[np.mean(c) for c in itertools.product(runs, repeat=len(runs))] for runs in RAGGED]
    every = [sum(m) / 3 for m in itertools.product(*means)]
    low, high = np.quantile(every, [0.05, 0.95])
    got = st.stratified_bootstrap(RAGGED, st.mean, confidence=0.9, draws=40_000)
    assert got[1:] == pytest.approx((low, high), abs=0.06)
    again = [st.confidence_interval(RAGGED, st.mean, seed=seed) for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


def test_one_tasks_interval_is_students() -> None:
    scores = np.array([3.0, 9.0, 4.0, 8.0, 1.0])
    expected = stats.t.interval(0.9, 4, scores.mean(), stats.sem(scores))
    got = st.confidence_interval(scores, st.mean, confidence=0.9, draws=100_000)
    assert got[1:] == pytest.approx(expected, abs=0.03)


def test_no_interval_from_a_single_seed() -> None:
    alone = [[1.0, 2.0, 4.0], [3.0]]
    for got in (st.confidence_interval(alone), st.stratified_bootstrap(alone, st.mean)):
        assert np.isfinite(got.estimate) and np.isnan(got[1:]).all()
    profile = st.performance_profile(alone, [1.5])
    assert profile.estimate[0] == pytest.approx(5 / 6) and np.isnan(profile.low).all()
    better = st.probability_of_improvement(alone, RAGGED[:2])
    assert better.estimate == pytest.approx((3.5 / 9 + 0.5) / 2) and np.isnan(better[1:]).all()
    row = st.paired_comparison({"x": alone, "y": RAGGED[:2]}, "y")["x"]
    assert (
        np.isfinite(row.difference.estimate) and np.isnan([row.p_value, *row.difference[1:]]).all()
    )
    same = st.confidence_interval(np.full((3, 2), 7.0))
    assert same == (7.0, 7.0, 7.0)


def covers(interval: st.Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def normal_scores(generator: np.random.Generator, seeds: int, tasks: int) -> np.ndarray:
    """Tasks of different level and spread, together symmetric around 50."""
    level = np.linspace(20, 80, tasks) if tasks > 1 else np.array([50.0])
    spread = 5 + 0.5 * abs(level - 50)
    return level + spread * generator.standard_normal((seeds, tasks))


@pytest.mark.parametrize(
    ("seeds", "tasks"),
    [(3, 1), *(pytest.param(5, tasks, marks=pytest.mark.long) for tasks in (1, 12))],
)
def test_confidence_interval_covers(seeds: int, tasks: int) -> None:
    """1,000 tables of few seeds: the mean and the IQM are inside 92 to 98 times in a hundred; the
    percentile bootstrap of so few seeds falls short."""
    generator = np.random.default_rng(seeds + tasks)
    hits = np.zeros(3)
    for trial in range(TRIALS):
        scores = normal_scores(generator, seeds, tasks)
        hits += [
            covers(st.confidence_interval(scores, st.mean, draws=200, seed=trial), 50),
            covers(st.confidence_interval(scores, st.iqm, draws=200, seed=trial), 50),
            covers(st.stratified_bootstrap(scores, st.mean, draws=200, seed=trial), 50),
        ]
    assert (hits[:2] >= 920).all() and (hits[:2] <= 980).all()
    assert hits[2] < 920


@pytest.mark.long
def test_stratified_bootstrap_covers_with_thirty_seeds() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(TRIALS):
        scores = normal_scores(generator, 30, 4)
        hits += covers(st.stratified_bootstrap(scores, st.mean, draws=500, seed=trial), 50)
    assert 920 <= hits <= 980


def test_other_intervals_cover() -> None:
    """Profile and probability of improvement at 5 seeds and 12 tasks, rank correlation of 10."""
    generator = np.random.default_rng(3)
    levels = np.linspace(20, 80, 12)
    spread = 5 + 0.5 * abs(levels - 50)
    share = stats.norm.sf((45 - levels) / spread).mean()
    wins = stats.norm.cdf(8 / (np.sqrt(2) * spread)).mean()
    rank = 6 / np.pi * np.arcsin(0.7 / 2)
    hits = np.zeros(3)
    for _ in range(TRIALS):
        a, b = normal_scores(generator, 5, 12), normal_scores(generator, 5, 12) + 8
        x, noise = generator.standard_normal((2, 10))
        y = 0.7 * x + np.sqrt(1 - 0.7**2) * noise
        profile = st.performance_profile(a, [45.0])
        hits += [
            bool(profile.low[0] <= share <= profile.high[0]),
            covers(st.probability_of_improvement(b, a), wins),
            covers(st.rank_correlation(x, y), rank),
        ]
    assert (hits >= 920).all() and (hits <= 985).all()


def test_improvement_by_hand() -> None:
    got = st.probability_of_improvement([[1.0, 4.0, 4.0]], [[4.0, 0.0]])
    assert got.estimate == pytest.approx((0 + 1 + 0.5 + 1 + 0.5 + 1) / 6)
    always = st.probability_of_improvement(np.arange(5) + 10.0, np.arange(5) + 0.0)
    assert always.estimate == 1.0 and always.high == 1.0 and 0.7 < always.low < 0.95
    never = st.probability_of_improvement(np.arange(5) + 0.0, np.arange(5) + 10.0)
    assert never == pytest.approx((0.0, 0.0, 1 - always.low))


def test_comparison_of_one_task_is_welchs() -> None:
    scores = {"base": [[3.0, 5.0, 4.0, 8.0]], "new": [[9.0, 7.0, 12.0]], "other": [[4.0, 6.0, 5.0]]}
    got = st.paired_comparison(scores, "base")
    assert list(got) == ["new", "other"]
    for name, row in got.items():
        expected = stats.ttest_ind(scores[name][0], scores["base"][0], equal_var=False)
        assert row.p_value == pytest.approx(expected.pvalue)
        assert row.difference[1:] == pytest.approx(expected.confidence_interval(0.95))
        spreads = [np.var(scores[k][0], ddof=1) for k in (name, "base")]
        assert row.effect == pytest.approx(row.difference.estimate / np.sqrt(np.mean(spreads)))
    assert got["new"].adjusted_p_value == pytest.approx(min(1, 2 * got["new"].p_value))


def test_comparison_counts_seeds_as_replication() -> None:
    """Against a permutation of the runs within each task, which needs no distribution; and a
    difference between tasks alone is no evidence."""
    generator = np.random.default_rng(2)
    a, b = normal_scores(generator, 5, 6), normal_scores(generator, 5, 6) + 5
    row = st.paired_comparison({"a": a, "b": b}, "a")["b"]
    both = np.concatenate([a, b])
    order = generator.random((20_000, *both.shape)).argsort(1)
    mixed = np.take_along_axis(both[None], order, 1)
    differences = abs(mixed[:, 5:].mean((1, 2)) - mixed[:, :5].mean((1, 2)))
    permuted = (differences >= abs(row.difference.estimate)).mean()
    assert row.p_value == pytest.approx(permuted, abs=0.02)
    assert row.difference.estimate == pytest.approx(b.mean() - a.mean())


def test_holm_by_hand() -> None:
    got = st.holm([0.04, 0.01, np.nan, 0.03, 0.9])
    assert got.tolist() == pytest.approx([0.09, 0.04, np.nan, 0.09, 0.9], nan_ok=True)
    assert st.holm([0.6, 0.7]).tolist() == [1.0, 1.0]


def test_rank_correlation() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 1.0, 4.0, 3.0, 6.0, 6.0]
    got = st.rank_correlation(x, y)
    assert got.estimate == pytest.approx(stats.spearmanr(x, y).statistic)
    assert got.low < got.estimate < got.high
    perfect = st.rank_correlation(x, np.square(x))
    assert perfect.estimate == perfect.high == pytest.approx(1.0) and 0.3 < perfect.low < 1.0
    opposite = st.rank_correlation(x, np.negative(x))
    assert opposite == pytest.approx((-1.0, -1.0, -perfect.low))
    assert np.isnan(st.rank_correlation(x, np.ones(6))).all()
    assert st.rank_correlation([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.mean([]), "at least one of each"),
        (lambda: st.iqm(np.zeros((0, 3))), "at least one of each"),
        (lambda: st.mean([[1.0], []]), r"tasks \[1\] have no run"),
        (lambda: st.mean([1.0, 2.0]), "numpy array"),
        (lambda: st.iqm(np.array([[1.0, np.inf]])), "infinite"),
        (lambda: st.confidence_interval(A, np.mean), "last two axes"),
        (lambda: st.stratified_bootstrap(A, confidence=95), "confidence is 95"),
        (lambda: st.stratified_bootstrap(A, draws=1), "draws is 1"),
        (lambda: st.stratified_bootstrap(np.zeros((2, 3, 4))), "needs"),
        (lambda: st.performance_profile(A, []), "finite numbers"),
        (lambda: st.probability_of_improvement(A, B[:, :3]), "same tasks"),
        (lambda: st.paired_comparison({"edac": A}, "edca"), "did you mean 'edac'"),
        (lambda: st.rank_correlation([1.0, 2.0], [1.0]), "shapes"),
        (lambda: st.rank_correlation([1.0, np.nan], [1.0, 2.0]), "finite"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(("pairs", "effect"), [(10, 0.996), (20, 0.660), (30, 0.530)])
def test_detectable_differences_are_those_of_power_tables(pairs: int, effect: float) -> None:
    """Effects of the paired t test with power 0.8 at 5 %, two-sided, as published tables have
    them."""
    assert st.detectable_difference(2.0, pairs) == pytest.approx(2.0 * effect, abs=0.004)
    assert st.detectable_difference(1.0, 3) > st.detectable_difference(1.0, 4)
    with pytest.raises(ConfigError, match="3 or more"):
        st.detectable_difference(1.0, 2)


def test_detectable_differences_of_sure_tests() -> None:
    """Against the test itself; by symmetry a power of 5 % at 95 % is had without a difference."""
    found = st.detectable_difference(2.0, 3, confidence=0.95, power=0.999)
    draws = np.random.default_rng(0).normal(found, 2.0, (100_000, 3))
    t = draws.mean(1) / draws.std(1, ddof=1) * 3**0.5
    assert (abs(t) > 4.30265).mean() == pytest.approx(0.999, abs=4e-4)
    assert st.detectable_difference(1.0, 3, confidence=0.9999, power=0.8) > found
    assert st.detectable_difference(1.0, 3, power=0.05) == 0.0
    with pytest.raises(ConfigError, match="deviation is -1"):
        st.detectable_difference(-1.0, 3)


def test_equal_seeds_say_nothing_however_their_mean_is_rounded() -> None:
    tables = {name: np.full((3, 2), value) for name, value in (("a", 0.1), ("b", 0.7))}
    row = st.paired_comparison(tables, "a")["b"]
    assert np.isnan([row.p_value, row.adjusted_p_value, row.effect]).all()
    assert row.difference.low == row.difference.high == pytest.approx(0.6)
