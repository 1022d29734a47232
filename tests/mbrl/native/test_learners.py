"""Every learner with compiled steps against itself in PyTorch alone."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.iql import ImplicitQLearner
from experiments.settings import build_config
from mbrl.data import load
from mbrl.native.build import SWITCH, library
from tests.mbrl.native.moments import same_moments

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
DATASET = load("reacher/medium")
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {"hidden": [64, 64]}),
    "td3_bc": ("td3_bc", {"hidden": [64, 64]}),
    "td3_bc, raw observations": ("td3_bc", {"hidden": [33], "normalise_obs": False}),
    "td3_bc, much noise": ("td3_bc", {"hidden": [32], "policy_noise": 1.0}),
    "td3_bc, two critic steps": ("td3_bc", {"hidden": [32], "critic_steps": 2, "policy_every": 1}),
    "rebrac": ("rebrac", {"hidden": [32, 32], "layer_norm": False, "batch_size": 64}),
    "rebrac, heavy": (
        "rebrac",
        {"hidden": [32], "layer_norm": False, "normalise_q": False, "critic_bc": 0.5},
    ),
    "rebrac, LayerNorm": ("rebrac", {"hidden": [32, 32], "batch_size": 64}),
    "iql": ("iql", {"hidden": [64, 64]}),
    "iql, standardised": ("iql", {"hidden": [40], "normalise_obs": True, "max_weight": 1.5}),
    "awac": ("awac", {"hidden": [32, 32]}),
    "crr": ("crr", {"hidden": [32, 32], "samples": 3}),
    "cql": ("cql", {"learner": {"hidden": [32, 32], "batch_size": 64}, "samples": 3}),
}


@contextlib.contextmanager
def pytorch_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(SWITCH, "0")
    library.cache_clear()
    yield
    monkeypatch.delenv(SWITCH)
    library.cache_clear()


@pytest.mark.parametrize(("name", "values"), SETTINGS.values(), ids=SETTINGS)
def test_six_updates_are_those_of_autograd(
    name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, config = ALGORITHMS[name][0], build_config(name, values)
    ours: Any = make(DATASET.spec, config)
    ours.prepare(DATASET, lambda metrics: None)
    with pytorch_alone(monkeypatch):
        plain: Any = make(DATASET.spec, config)
        plain.prepare(DATASET, lambda metrics: None)
        with torch.no_grad():  # actions near their bounds, where the slope of tanh counts
            for policy in {"policy", "policy_target", "actor"} & plain.modules.keys():
                plain.modules[policy].net.layers[-1].weight.mul_(20.0)
        plain.update(plain.next_batch())
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    ours.updates = plain.updates
    for step in range(6):
        batch = ours.next_batch()
        mine = ours.update(batch)
        with pytorch_alone(monkeypatch):
            theirs = plain.update(batch)
        if step < 2:  # a policy may be due in every second update
            same_moments(ours, plain)
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-3, atol=1e-4, msg=key)
    for key, module in plain.modules.items():
        for field, value in module.state_dict().items():
            found = ours.modules[key].state_dict()[field]
            torch.testing.assert_close(found, value, rtol=1e-3, atol=3e-5, msg=f"{key}.{field}")


def test_the_steps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code does what these tests compare, and not PyTorch twice."""
    for name in ("bc", "td3_bc", "iql"):
        agent: Any = ALGORITHMS[name][0](DATASET.spec, build_config(name, {"hidden": [16]}))
        agent.prepare(DATASET, lambda metrics: None)
        agent.update(agent.next_batch())

        def refuse(*arguments: Any) -> None:
            raise AssertionError("autograd")

        with monkeypatch.context() as patch:
            patch.setattr(torch.autograd, "grad", refuse)
            for _ in range(2):
                agent.update(agent.next_batch())


def test_a_loss_of_a_subclass_is_not_replaced() -> None:
    """Compiled steps of IQL know its own value loss alone."""

    class Median(ImplicitQLearner):
        def value_loss(self, difference: torch.Tensor) -> torch.Tensor:
            return difference.abs().mean()

    config: Any = build_config("iql", {"hidden": [32]})
    learners = [
        kind(DATASET.spec, config, torch.device("cpu"), torch.Generator().manual_seed(0))
        for kind in (ImplicitQLearner, Median)
    ]
    assert learners[0].steps is not None and learners[1].steps is None
