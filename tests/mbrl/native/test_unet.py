"""The compiled U-Net against PyTorch's operations in double precision."""

import copy
import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mbrl.native import unet
from mbrl.native.build import library
from world_models.denoisers import TemporalUNet

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


def pair(width: int, levels: int, features: int = 5) -> tuple[TemporalUNet, TemporalUNet]:
    """A network with norms that do something, and the same in double precision."""
    draw = torch.Generator().manual_seed(width + levels)
    networks = []
    for _ in range(2):
        networks.append(TemporalUNet(features, width, levels, torch.Generator().manual_seed(0)))
    with torch.no_grad():
        for p, q in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
            p += 0.1 * torch.randn(p.shape, generator=draw)
            q.copy_(p)
    return networks[0].requires_grad_(False), networks[1].double().requires_grad_(False)


def inputs(count: int, length: int, features: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x, c = (torch.randn(*s, generator=draw) for s in ((count, length, features), (count,)))
    return x, c


@pytest.mark.parametrize("width", [8, 24, 32, 40, 64])
@pytest.mark.parametrize(
    ("levels", "length", "count"), [(1, 3, 1), (2, 7, 17), (3, 32, 33), (3, 21, 3), (3, 5, 2)]
)
def test_windows_are_those_of_double_precision(
    width: int, levels: int, length: int, count: int
) -> None:
    network, exact = pair(width, levels)
    x, c = inputs(count, length)
    assert network.is_compiled(x) and not exact.is_compiled(x.double())
    found, true = network(x, c), exact(x.double(), c.double())
    assert found.shape == x.shape
    torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=1e-4)


def test_a_window_does_not_depend_on_those_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = pair(32, 3)
    x, c = inputs(70, 8)
    # Numbers of the noise are few, and PyTorch's own rounding of them depends on their count.
    monkeypatch.setattr(network.embedding, "forward", lambda c: c[:, None] * torch.ones(32))
    for part in (p for stage in (*network.down, *network.up) for p in stage if p.noise is not None):
        monkeypatch.setattr(
            part.noise, "forward", lambda e, n=part.conv.out_channels: e[:, :1] * torch.ones(n)
        )
    whole = network(x, c)
    for some in (slice(0, 1), slice(5, 40), slice(69, 70)):
        assert torch.equal(network(x[some], c[some]), whole[some])
    wide = torch.randn(70, 8, 10)
    wide[:, :, ::2] = x
    assert torch.equal(network(wide[:, :, ::2], c), whole)  # features that lie apart
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(network(x, c), whole)


def test_weights_are_those_of_the_moment_and_gradients_are_pytorchs() -> None:
    network, _ = pair(16, 2)
    x, c = inputs(4, 8)
    before = network(x, c)
    other = copy.deepcopy(network)
    with torch.no_grad():
        network.out.bias += 1.0  # type: ignore[operator]
        torch.testing.assert_close(network(x, c), before + 1.0)
        other.parts[0].conv.weight *= 3.0
        assert not torch.equal(other(x, c), before)
        other.parts[0].conv.weight.copy_(network.parts[0].conv.weight)
    assert torch.equal(other(x, c), before)
    x.requires_grad_()
    assert not network.is_compiled(x) and network(x, c).requires_grad
    with torch.no_grad():
        assert network.is_compiled(x)
    assert not unet.computes(x.detach(), network.all, 128)  # PyTorch's convolutions are faster


def test_sizes_that_pytorch_refuses_are_refused() -> None:
    network, _ = pair(16, 3)
    x, c = inputs(4, 8)
    for wrong in (x[:, :3], x[:, :, :4]):  # too short for two halvings; a feature too few
        with pytest.raises(RuntimeError):
            network(wrong, c)
    with pytest.raises(RuntimeError):
        network(x, c[:3])
    one = network(x, c[:1])  # of one noise for all
    torch.testing.assert_close(one, network(x, c[:1].expand(4)))


@pytest.fixture
def rounded() -> Iterator[None]:
    loaded = library()
    assert loaded is not None
    kind = loaded.has_tiles()
    if not kind:
        pytest.skip("this processor has no bfloat16")
    loaded.use_tiles(ctypes.c_int64(kind))
    yield
    loaded.use_tiles(ctypes.c_int64(0))


def test_in_medium_precision_products_are_rounded(rounded: None) -> None:
    network, exact = pair(32, 3)
    x, c = inputs(20, 16)
    error = (network(x, c).double() - exact(x.double(), c.double())).abs()
    scale = float(exact(x.double(), c.double()).std())
    assert float(error.max()) > 1e-5 and float(error.mean()) < 0.02 * scale
