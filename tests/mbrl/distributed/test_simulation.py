"""The simulated training system against closed forms and integrals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from mbrl.distributed.simulation import Clock, System, run, simulate
from mbrl.errors import ConfigError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def order_statistic(k: int, n: int, median: float, spread: float) -> float:
    """Mean of the k-th smallest of n lognormal times."""
    times = stats.lognorm(spread, scale=median)
    ranks = stats.beta(k, n + 1 - k)
    return integrate.quad(lambda u: times.ppf(u) * ranks.pdf(u), 0, 1, limit=200)[0]


@pytest.mark.parametrize("workers", [1, 3, 16, 40])
def test_without_spread(workers: int) -> None:
    """Synchronous rounds of 16 conversations, one after the other on each worker."""
    fixed = System(workers, spread=0.0)
    result = simulate(fixed, 5, rng())
    assert result.wall == pytest.approx(5 * (math.ceil(16 / workers) * 0.1 + 0.1))
    assert result.idle == pytest.approx(1 - 5 * 1.6 / (workers * result.wall))
    assert (result.rate, result.updates) == pytest.approx((80 / result.wall, 5 / result.wall))
    assert (result.staleness, result.wasted, result.deaths) == (0.0, 0.0, 0)


def test_streaming_hides_the_shorter_stage() -> None:
    """Wall is the longer stage of every round, and the other one once."""
    sampling = simulate(System(2, spread=0.0, staleness=1, update=0.3), 10, rng())
    assert sampling.wall == pytest.approx(10 * 0.8 + 0.3)
    learning = simulate(System(16, spread=0.0, staleness=1, update=0.3), 10, rng())
    assert learning.wall == pytest.approx(0.1 + 10 * 0.3)
    assert learning.staleness == pytest.approx(0.9)


@pytest.mark.parametrize("redundancy", [0, 1, 4])
def test_a_round_lasts_as_an_order_statistic(redundancy: int) -> None:
    """The fourth of 4 + r conversations to end, each on a worker of its own."""
    system = System(4 + redundancy, batch=1, redundancy=redundancy, update=0.0)
    rounds = 4000
    mean = order_statistic(4, 4 + redundancy, 0.1, 1.0)
    result = simulate(system, rounds, rng(1))
    assert result.wall / rounds == pytest.approx(mean, rel=0.05)
    taken = np.mean([order_statistic(k, 4 + redundancy, 0.1, 1.0) for k in range(1, 5)])
    assert result.taken == pytest.approx(taken, rel=0.05)
    assert result.every == pytest.approx(0.1 * math.exp(0.5), rel=0.05)


@pytest.mark.parametrize("pieces", [1, 4])
def test_deaths_cost_what_they_should(pieces: int) -> None:
    """A piece of d seconds on workers that die at rate l and are back after R takes
    (exp(l d) - 1)(1 / l + R) in the mean."""
    system = System(
        1, 1, 1, spread=0.0, median=1.0, update=0.0, pieces=pieces, death_every=0.8, restart=0.5
    )
    rounds, d = 4000, 1 / pieces
    result = simulate(system, rounds, rng(2))
    mean = pieces * (math.exp(d / 0.8) - 1) * (0.8 + 0.5)
    assert result.wall / rounds == pytest.approx(mean, rel=0.05)
    useful = rounds / result.wall
    assert result.lost == pytest.approx(1 - result.idle - useful)
    assert result.wasted == result.lost


def test_affinity() -> None:
    """Two workers, one of each kind, conversations of two pieces of 0.05 seconds: a pipeline; and
    without affinity each may be on the wrong one, four times as long."""
    pipeline = simulate(System(2, spread=0.0, pieces=2, slowdown=4.0, affinity=True), 1, rng())
    assert pipeline.wall == pytest.approx(17 * 0.05 + 0.1)
    anywhere = simulate(System(2, spread=0.0, pieces=2, slowdown=4.0), 1, rng())
    assert anywhere.wall > 1.5 * pipeline.wall
    same = simulate(System(2, spread=0.0, pieces=2), 1, rng())
    assert same.wall == pytest.approx(16 * 0.1 / 2 + 0.1)


@settings(max_examples=30)
@given(
    workers=st.integers(1, 9),
    redundancy=st.integers(0, 3),
    staleness=st.integers(0, 3),
    pieces=st.integers(1, 3),
    dies=st.booleans(),
)
def test_what_holds_for_all(
    workers: int, redundancy: int, staleness: int, pieces: int, dies: bool
) -> None:
    system = System(
        workers,
        batch=2,
        group=2,
        redundancy=redundancy,
        staleness=staleness,
        pieces=pieces,
        spread=1.0 if dies else 2.0,
        update=0.01,
        death_every=1.0 if dies else None,
    )
    clock = Clock(system, rng(3))
    while clock.rounds.version < 20:
        clock.advance()
        done = [len(group.done) for group in clock.rounds.open.values()]
        assert max(done, default=0) <= 2
    result = clock.outcome()
    assert len(clock.rounds.taken) == 20 * 4 and max(clock.rounds.ages) <= staleness
    assert 0 <= result.wasted <= 1 - result.idle <= 1 + 1e-9 and result.lost <= result.wasted
    assert (result.deaths > 0) or result.lost == 0
    # What was worked is learned from, may be, is going on, or was for nothing.
    room = result.wall * workers
    going = sum(clock.now - since for since, _, _ in clock.at.values())
    waiting = [clock.rounds.open[number] for number in clock.rounds.ready]
    pending = sum(group.spent for group in clock.rounds.open.values())
    pending -= sum(group.spent - group.useful for group in waiting)
    learned = sum(clock.rounds.taken)
    worked = (1 - result.idle) * room
    assert result.wasted * room == pytest.approx(worked - going - pending - learned, abs=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\(0, 4, 4, 1\)"):
        System(0)
    with pytest.raises(ConfigError, match="it must be even"):
        System(3, slowdown=2.0, pieces=2)
    with pytest.raises(ConfigError, match="leave slowdown at 1"):
        run(System(2, slowdown=2.0, pieces=2), 1, rng())


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_real_clock_agrees(workers: int) -> None:
    ray = pytest.importorskip("ray")
    system = System(workers, median=0.2, redundancy=1, staleness=1)
    real, simulated = run(system, 4, rng()), simulate(system, 4, rng())
    ray.shutdown()
    assert real.wall == pytest.approx(simulated.wall, rel=0.1)
    assert real.idle == pytest.approx(simulated.idle, abs=0.1)
