"""Clipped gradients against torch's own clipping, and steps without the compiled library."""

import pytest
import torch

from mbrl.native import adam as compiled
from mbrl.networks import optim
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("owned", [False, True], ids=["gradients given", "of parameters"])
def test_steps_of_pytorch_take_gradients_in_any_order(
    owned: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transposed ones, as those through `weight.t()` are, on a machine without a compiler and in
    double precision. PyTorch 2.13's fused step takes them as if they lay in the weight's order."""
    monkeypatch.setattr(compiled, "library", lambda: None)
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 5, generator=draw, dtype=dtype).requires_grad_()
    plain = weight.detach().clone().requires_grad_()
    mine = optim.adam([weight], lr=1e-2)
    other = torch.optim.Adam([plain], lr=1e-2, foreach=False, fused=False)
    for _ in range(3):
        gradient = torch.randn(5, 3, generator=draw, dtype=dtype).t()
        plain.grad = gradient.contiguous()
        if owned:
            weight.grad = gradient
            mine.step()
        else:
            optim.step(mine, [gradient])
        other.step()
    torch.testing.assert_close(weight, plain, rtol=1e-5, atol=1e-6)
