"""The workloads of `bench`."""

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from experiments.bench import workloads
from mbrl.native.build import SWITCH, library


def test_products_of_the_large_ensemble_are_those_that_pytorch_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A held-out row is judged once in ten updates: a share below 1e-3."""
    workload = workloads.WORKLOADS["ensemble_128"]
    monkeypatch.setenv(SWITCH, "0")
    library.cache_clear()
    step, updates = workload.build(True, tmp_path)
    with FlopCounterMode(display=False) as counter:
        step()
    monkeypatch.undo()
    library.cache_clear()
    assert workload.work is not None
    assert workload.work(True) == pytest.approx(
        1e-9 * counter.get_total_flops() / updates, rel=1e-3
    )
