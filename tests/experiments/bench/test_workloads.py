"""The workloads of `bench`."""

import pytest

from experiments.bench import workloads as bench_workloads


def test_products_of_the_large_ensemble_are_counted():
    """Eight members of two layers 16 wide at 256 rows each: forward, and the gradients of weights
    and of every layer's input but the first; a held-out row is judged once in ten updates."""
    work = bench_workloads.WORKLOADS["ensemble_128"].work
    inputs, outputs = 17 + 6, 2 * (17 + 1)
    first, others = inputs * 16, 16 * 16 + 16 * outputs
    expected = 2e-9 * 8 * 256 * (2 * first + 3 * others)
    assert work is not None and work(True) == pytest.approx(expected, rel=1e-3)
