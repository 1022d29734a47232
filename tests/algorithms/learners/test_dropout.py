"""Dropout's masks by their values and moments, and passes under them against an enumeration of all
masks."""

import itertools

import numpy as np
import pytest
import torch

from algorithms.learners.dropout import draw_masks, masked_outputs, masked_pass, masked_sample
from mbrl.networks import EnsembleMLP, SquashedGaussianPolicy
from mbrl.types import Spec

D = torch.float64


def test_masks_are_0_or_of_mean_1() -> None:
    generator = torch.Generator().manual_seed(0)
    wide, narrow = draw_masks((3, 2, 50), (64, 5), 0.25, generator)
    assert wide.shape == (3, 2, 50, 64) and narrow.shape == (3, 2, 50, 5)
    assert sorted(wide.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert float(wide.mean()) == pytest.approx(1.0, abs=0.02)  # five deviations of its mean
    assert (wide[0] != wide[1]).any() and (wide[:, 0] != wide[:, 1]).any()
    before = generator.get_state()
    assert draw_masks((3, 2, 50), (64, 5), 0.0, generator) == ()
    assert torch.equal(before, generator.get_state())


def test_mean_and_variance_over_all_masks() -> None:
    """Of one hidden layer: the mean of the output is the one without dropout, the variance
    p / (1 - p) sum (w h)^2; each network under its own mask."""
    generator, rate = torch.Generator().manual_seed(1), 0.3
    w1, w2 = (torch.randn(2, 3, 4, generator=generator, dtype=D) for _ in range(2))
    w2, b1 = w2[:, :1].transpose(1, 2), torch.randn(2, 1, 4, generator=generator, dtype=D)
    b2, x = torch.randn(2, 1, 1, generator=generator, dtype=D), torch.ones(1, 3, dtype=D)
    mean, square = np.zeros(2), np.zeros(2)
    for kept in itertools.product((0, 1), repeat=4):
        chance = np.prod([1 - rate if k else rate for k in kept])
        mask = torch.tensor(kept, dtype=D) / (1 - rate)
        own = torch.stack([mask, mask.flip(0)])[:, None]
        out = masked_pass([w1, w2], [b1, b2], x, [own])[:, 0, 0].numpy()
        mean, square = mean + chance * out, square + chance * out**2
    for n in range(2):
        hidden = np.maximum(np.ones(3) @ w1[n].numpy() + b1[n, 0].numpy(), 0)
        terms = w2[n, :, 0].numpy() * hidden
        assert mean[n] == pytest.approx(terms.sum() + float(b2[n]))
        spread = rate / (1 - rate) * (terms**2).sum()
        assert square[n] - mean[n] ** 2 == pytest.approx(spread)


def test_masks_of_ones_change_nothing() -> None:
    critic = EnsembleMLP(2, 3, (8, 8), 2, generator=torch.Generator().manual_seed(0))
    x, ones = torch.randn(5, 3), [torch.ones(2, 5, 8)] * 2
    assert torch.allclose(masked_outputs(critic, x, ones), critic(x), atol=1e-6)
    spec = Spec("small", 3, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    policy = SquashedGaussianPolicy(spec, (8, 8), generator=torch.Generator().manual_seed(0))
    policy.normaliser.fit(3 + 2 * torch.randn(50, 3))
    with torch.no_grad():
        policy.net.layers[-1].bias[2:] = torch.tensor([-9.0, 5.0])  # beyond the bounds
    noise = 0.1 * torch.randn(5, 2)
    for got, plain in zip(
        masked_sample(policy, x, noise, [torch.ones(1, 5, 8)] * 2),
        policy.sample(x, noise),
        strict=True,
    ):
        assert torch.allclose(got, plain, atol=1e-5)
