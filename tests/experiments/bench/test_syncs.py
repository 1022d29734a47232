"""Updates as a GPU runs them, here on the CPU: nothing in them makes the host wait, and their
operations have the same shapes every time."""

from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from experiments.bench.syncs import traced
from experiments.settings import build_config
from mbrl.native import build
from mbrl.networks import ensemble
from mbrl.types import Dataset
from tests.small import CONFIGS, suited

LEARNERS = (
    *("bc", "td3_bc", "rebrac", "iql", "awac", "crr", "cql", "sac_n", "edac", "combo", "mopo"),
    *("morel", "mobile", "ravl", "pgd", "discrete_cql", "discrete_iql", "discrete_sac_n"),
)


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The batched form of ensembles, and PyTorch's operations in place of compiled code."""
    monkeypatch.setattr(ensemble, "_fits_kernels", lambda x: False)
    monkeypatch.setenv(build.SWITCH, "0")
    build.library.cache_clear()
    yield
    build.library.cache_clear()


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.usefixtures("_as_on_a_gpu")
def test_an_update_does_not_make_the_host_wait(
    name: str, pendulum: Dataset, cartpole: Dataset
) -> None:
    data = suited(name, pendulum, cartpole)
    agent: Any = ALGORITHMS[name][0](data.spec, build_config(name, CONFIGS[name]))
    agent.fit(data, 4, callbacks=[])  # moments of the optimisers, first averages
    traces = []
    for _ in range(4):
        with traced() as trace:
            agent.update(agent.next_batch())
        traces.append(trace)
    assert not [w for t in traces for w in t.waits]
    assert len(traces[0].operations) > 10
    assert traces[0].operations == traces[2].operations  # every second update where one is delayed
    assert traces[1].operations == traces[3].operations


def test_waits_are_found() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    for wait in (
        lambda: x.sum().item(),
        lambda: float(x[0, 0]),
        lambda: bool((x > 2).any()),
        lambda: x[x > 2],
        lambda: torch.nonzero(x),
        lambda: x.masked_select(x > 2),
        lambda: x.sum().tolist(),
        lambda: x.to("meta"),
    ):
        with traced() as trace:
            wait()
        assert len(trace.waits) == 1, trace.operations
    with traced() as trace:
        (x[:, torch.tensor([0, 2])] * 2).clamp(0, 1).max()
    assert trace.waits == []
