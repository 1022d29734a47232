"""Compiled draws from chosen members against numpy in double precision."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, leaky_relu, relu, silu

from mbrl.native.build import library
from world_models.ensemble_network import EnsembleConfig, EnsembleNetwork

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
ACTIVATIONS: dict[str, Any] = {
    "relu": relu,
    "leaky_relu": leaky_relu,
    "tanh": torch.tanh,
    "silu": silu,
    "gelu": gelu,
}


def made(size: int, rows: int, **settings: Any) -> tuple[EnsembleNetwork, Tensor, Tensor, Tensor]:
    """A network of three members whose outputs pass both bounds; inputs, members, noise."""
    draw = torch.Generator().manual_seed(size)
    values = {"members": 3, "elites": 3, "hidden": (8, 20), "log_variance_min": -3.0}
    config = EnsembleConfig(**(values | {"weight_decay": (0.0,)} | settings))
    network = EnsembleNetwork(4, size, 3, config, draw).requires_grad_(False)
    for p in (*network.mlp.parameters(), network.low, network.high):
        p.add_(0.3 * torch.randn(p.shape, generator=draw))
    network.mlp.weights[-1].mul_(8.0)
    if network.linear is not None:
        network.linear.normal_(generator=draw)
    x, noise = torch.randn(rows, 4, generator=draw), torch.randn(rows, size, generator=draw)
    # few rows of the first member, none of the second where there are few in all
    member = torch.randint(9, (rows,), generator=draw).div(3, rounding_mode="floor").clamp(max=2)
    return network, x, torch.where(member == 1, 2 * (rows < 20), member), noise


def exact(network: EnsembleNetwork, x: Tensor, e: int, noise: Tensor) -> np.ndarray:
    """The draws of member `e` for all rows, bounds by two softplus as the paper has them."""
    mlp, h = network.mlp, x.double()
    for layer, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        h = h @ weight[e].double() + bias[e].double()
        if layer < len(mlp.weights) - 1:
            if mlp.layer_norm:
                scale, shift = mlp.scales[layer][e].double(), mlp.shifts[layer][e].double()
                h = layer_norm(h, h.shape[-1:]) * scale + shift
            h = ACTIVATIONS[mlp.activation](h)
    size = network.out_dim
    low, high = (bound.double().numpy() for bound in (network.low, network.high))
    capped = high - np.logaddexp(0, high - h[:, size:].numpy())
    spread = np.exp((low + np.logaddexp(0, capped - low)) / 2)
    mean = h[:, :size].numpy()
    if network.linear is not None:
        inputs = np.c_[x.double().numpy(), np.ones(len(x))]
        mean = mean + inputs @ network.linear.double().numpy()
    return np.asarray(mean + spread * noise.double().numpy())


@pytest.mark.parametrize("rows", [1, 7, 700])
@pytest.mark.parametrize("size", [1, 16, 21])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layer_norm": True, "activation": "leaky_relu"},
        {"target": "residual", "activation": "gelu"},
        {"activation": "relu", "hidden": (33,)},
        {"activation": "tanh", "layer_norm": True},
    ],
    ids=str,
)
def test_draws_are_those_of_the_chosen_members(
    settings: dict[str, Any], size: int, rows: int
) -> None:
    network, x, member, noise = made(size, rows, **settings)
    got = network.draws(x, member, noise)
    assert got is not None
    right = np.stack([exact(network, x, e, noise) for e in range(3)])
    np.testing.assert_allclose(got, right[member, np.arange(rows)], rtol=2e-4, atol=2e-5)


def test_a_row_does_not_depend_on_the_others() -> None:
    network, x, member, noise = made(5, 600)
    together = network.draws(x, member, noise)
    assert together is not None
    some = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:77]
    for rows in (some, some[:1], some[20:23]):
        assert torch.equal(network.draws(x[rows], member[rows], noise[rows]), together[rows])


def test_what_is_no_number_stays_so_in_its_row() -> None:
    network, x, member, noise = made(3, 40)
    clean = network.draws(x, member, noise)
    x[7, 2] = float("nan")
    got = network.draws(x, member, noise)
    assert got is not None and clean is not None
    assert got[7].isnan().all()
    rest = torch.arange(40) != 7
    assert torch.equal(got[rest], clean[rest])


@pytest.mark.parametrize("wrong", [-1, 3])
def test_members_that_there_are_not(wrong: int) -> None:
    network, x, member, noise = made(2, 9)
    member[4] = wrong
    with pytest.raises(IndexError, match=rf"member\[4\] is {wrong}, the ensemble has 0 to 2"):
        network.draws(x, member, noise)


def test_what_it_does_not_take_is_left_to_pytorch() -> None:
    network, x, member, noise = made(2, 9)
    for other in (
        (x.double(), member, noise),
        (x[:, :3], member, noise),
        (x, member[:8], noise),
        (x, member.int(), noise),
        (x, member, noise[:, :1]),
        (x[:0], member[:0], noise[:0]),
    ):
        assert network.draws(*other) is None
