"""The compiled Gaussian likelihood and its gradients against scipy and PyTorch in double
precision."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mbrl.native import likelihood, passes
from mbrl.native.build import library
from world_models.ensemble_network import EnsembleConfig, EnsembleNetwork, nll_gradients

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


def made(size: int, **settings: Any) -> tuple[EnsembleNetwork, Tensor, Tensor, list[Tensor]]:
    """A network of targets of `size` numbers whose outputs pass both bounds, a batch, and the
    parameters in the order of an optimiser."""
    draw = torch.Generator().manual_seed(size)
    values = {"members": 3, "elites": 3, "hidden": (8, 20), "log_variance_min": -3.0}
    config = EnsembleConfig(**(values | {"weight_decay": (0.0,)} | settings))
    network = EnsembleNetwork(4, size, 3, config, draw)
    with torch.no_grad():
        for p in (*network.mlp.parameters(), network.low, network.high):
            p.add_(0.3 * torch.randn(p.shape, generator=draw))
        network.mlp.weights[-1].mul_(8.0)
        if network.linear is not None:
            network.linear.normal_(generator=draw)
    parameters = [p for p in network.parameters() if p.requires_grad]
    x, y = torch.randn(3, 9, 4, generator=draw), 3 * torch.randn(3, 9, size, generator=draw)
    return network, x, y, parameters[::-1]


@pytest.mark.parametrize("size", [1, 16, 21])
def test_it_is_twice_scipys_without_its_constant(size: int) -> None:
    network, x, y, parameters = made(size)
    out = network.mlp(x).detach().double().numpy()
    mean, raw = out[..., :size], out[..., size:]
    low, high = (bound.detach().double().numpy() for bound in (network.low, network.high))
    capped = high - np.logaddexp(0, high - raw)
    deviation = np.exp((low + np.logaddexp(0, capped - low)) / 2)
    exact = -2 * stats.norm.logpdf(y.double().numpy(), mean, deviation) - np.log(2 * np.pi)
    bounds = network.config.bound_weight * (high - low).sum()
    value, _ = nll_gradients(network, x, y, parameters)
    assert float(value) == pytest.approx(exact.mean((1, 2)).sum() + bounds, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"log_variance_bounds": "fixed", "layer_norm": True, "activation": "leaky_relu"},
        {"target": "residual", "activation": "gelu"},
        {"activation": "relu", "layer_norm": True, "hidden": (33,)},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [2, 35])
def test_gradients_are_those_of_double_precision(size: int, settings: dict[str, Any]) -> None:
    network, x, y, parameters = made(size, **settings)
    assert passes.computes(x, network.mlp.weights, network.mlp.activation)
    value, got = nll_gradients(network, x, y, parameters)
    double = copy.deepcopy(network).double()
    assert not passes.computes(x.double(), double.mlp.weights, double.mlp.activation)
    same = [p for p in double.parameters() if p.requires_grad][::-1]
    exact, wanted = nll_gradients(double, x.double(), y.double(), same)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)
    assert len(got) == len(wanted) == len(parameters) > 4
    for mine, theirs in zip(got, wanted, strict=True):
        scale = float(theirs.abs().max()) + 1e-6
        torch.testing.assert_close(mine.double() / scale, theirs / scale, rtol=0, atol=2e-5)


def test_values_that_are_no_numbers_stay_so() -> None:
    network, x, y, _ = made(2)
    mlp = network.mlp
    known = [*mlp.weights, *mlp.biases]
    x[1, 4] = float("nan")
    bounds = (network.low, network.high)
    value, _ = likelihood.gradients(x, y, known, len(mlp.weights), mlp.activation, bounds)
    assert value.isnan()
