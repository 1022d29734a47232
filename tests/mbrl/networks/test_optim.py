"""Clipped gradients against torch's own clipping."""

import pytest
import torch

from mbrl.networks.optim import clipped


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_the_norm_is_clipped_as_torch_clips_it(most: float) -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=draw) for shape in ((3, 4), (4,), (2, 1, 5))]
    parameters = [torch.nn.Parameter(torch.zeros(g.shape)) for g in gradients]
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(parameters, most)
    for p, got in zip(parameters, clipped(gradients, most), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(got, p.grad)


def test_what_is_not_a_number_becomes_0_and_gradients_stay_as_they_were() -> None:
    shared = torch.tensor([3.0, float("nan"), float("inf"), -float("inf"), 4.0])
    first, second = clipped([shared, shared], 1.0)
    expected = torch.tensor([3.0, 0.0, 0.0, 0.0, 4.0]) / 50**0.5
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, expected)
    assert shared.isnan().sum() == 1
