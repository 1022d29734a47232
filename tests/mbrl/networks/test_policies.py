"""The map between [-1, 1] and the task's bounds."""

import pytest
import torch

from mbrl.buffer import action_range
from mbrl.errors import ConfigError
from mbrl.networks import ActionScale
from mbrl.types import Spec


def spec_between(low: torch.Tensor, high: torch.Tensor) -> Spec:
    return Spec("any", 1, len(low), None, tuple(low.tolist()), tuple(high.tolist()), 10)


@pytest.mark.parametrize("offset", [0.0, 1.0, 100.0])
def test_no_action_is_mapped_beyond_the_bounds(offset: float) -> None:
    """Of the plain (high + low) / 2 and (high - low) / 2 every fourth pair passes a bound."""
    generator = torch.Generator().manual_seed(0)
    one = offset * torch.randn(4000, generator=generator)
    other = one + torch.randn(4000, generator=generator)
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    wide = high - low > 0.01
    low, high = low[wide], high[wide]
    scale = ActionScale(spec_between(low, high))
    for unit in (-1.0, -0.999999, 0.3, 1.0):
        action = scale.to_task(torch.full_like(low, unit))
        assert (action >= low).all() and (action <= high).all()
    near = {"rtol": 1e-5, "atol": 1e-4 * offset}
    torch.testing.assert_close(scale.to_task(torch.ones_like(low)), high, **near)
    torch.testing.assert_close(scale.to_task(-torch.ones_like(low)), low, **near)
    centre, half = action_range(spec_between(low, high), "cpu")
    assert torch.equal(centre, scale.centre) and torch.equal(half, scale.half_range)


def test_bounds_that_32_bits_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="32 bits hold too few numbers"):
        Spec("any", 1, 1, None, (100_000.0,), (100_000.1,), 10)
    Spec("any", 1, 1, None, (100_000.0,), (100_001.0,), 10)
