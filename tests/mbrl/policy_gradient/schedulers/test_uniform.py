"""Uniform passes, wide groups, templates, and BroRL's mass balance against the softmax itself."""

import pytest
import torch
from torch import Tensor

from mbrl.errors import ConfigError
from mbrl.policy_gradient.schedulers import Pool
from mbrl.policy_gradient.schedulers.uniform import (
    BroRL,
    BroRLConfig,
    Epochs,
    Uniform,
    mass_balance,
    templates,
)
from tests.mbrl.policy_gradient.schedulers.simulated import generator


def test_every_prompt_comes_once_in_a_pass() -> None:
    one, g = Uniform(Pool(12), 16, 4), generator()
    rounds = [one.request(g) for _ in range(6)]
    assert all(r.rollouts.tolist() == [4] * 4 for r in rounds)
    for half in (rounds[:3], rounds[3:]):
        assert sorted(torch.cat([r.prompts for r in half]).tolist()) == list(range(12))


def test_a_round_has_no_prompt_twice_at_the_end_of_a_pass() -> None:
    epochs, g = Epochs(7), generator()
    taken = [epochs.take(5, g) for _ in range(70)]
    assert all(len(ids.unique()) == 5 for ids in taken)
    counts = torch.bincount(torch.cat(taken))
    assert int(counts.min()) == int(counts.max()) == 50


def test_a_pool_smaller_than_a_round_is_answered_again() -> None:
    request = Uniform(Pool(3), 21, 3).request(generator())
    assert request.prompts.tolist() == [0, 1, 2] and request.total == 21
    assert int(request.rollouts.max()) - int(request.rollouts.min()) == 3


def test_wide_groups_cost_the_same() -> None:
    one = BroRL(Pool(100), 512, 16, BroRLConfig(factor=8))
    request = one.request(generator())
    assert request.rollouts.tolist() == [128] * 4
    assert one.rate_scale == pytest.approx(8**0.5)


def logits_step(probs: Tensor, right: Tensor, sampled: Tensor, rate: float) -> Tensor:
    """Right mass after a gradient step on the logits by autograd, minus that before."""
    z = probs.log().requires_grad_()
    reward = torch.where(right, 1.0, -1.0).double()
    objective = (torch.softmax(z, -1) * reward * sampled).sum()
    (gradient,) = torch.autograd.grad(objective, z)
    after = torch.softmax(z.detach() + rate * gradient, -1)
    return ((after - probs) * right).sum()


def test_mass_balance_is_the_step_on_the_softmax() -> None:
    g = generator()
    for _ in range(50):
        probs = torch.softmax(2 * torch.randn(12, generator=g, dtype=torch.float64), 0)
        right = torch.rand(12, generator=g) < 0.4
        sampled = torch.rand(12, generator=g) < 0.5
        inside, outside = mass_balance(probs, right, sampled)
        exact = logits_step(probs, right, sampled, 1e-5) / 1e-5
        assert float(inside + outside) == pytest.approx(float(exact), rel=1e-3, abs=1e-7)
        assert float(inside) >= 0
    with pytest.raises(ValueError, match="three alike"):
        mass_balance(probs, right[:3], sampled)


def test_right_mass_grows_almost_surely_as_groups_grow() -> None:
    """Eight likely right answers beside 4000 unlikely ones, nine in ten of them right: a small
    group that misses the likely ones takes mass from them. The sign of the step in 400 draws."""
    g = generator(7)
    probs = torch.cat([torch.full((8,), 0.01), torch.full((4000,), 0.92 / 4000)]).double()
    right = torch.cat([torch.ones(8, dtype=torch.bool), torch.rand(4000, generator=g) < 0.9])
    signs, parts = [], []
    for size in (4, 16, 64, 512):
        draws = torch.multinomial(probs.expand(400, -1), size, replacement=True, generator=g)
        sampled = torch.zeros(400, 4008, dtype=torch.bool).scatter_(1, draws, True)
        inside, outside = mass_balance(probs.expand(400, -1), right.expand(400, -1), sampled)
        signs.append(float((inside + outside > 0).double().mean()))
        parts.append(float((outside.abs() / inside).mean()))
        if size == 4:
            loss = logits_step(probs, right, sampled[inside + outside < 0][0], 1.0)
            assert float(loss) < 0
    assert signs[0] < 0.7 and signs[1] < 0.9 and signs == sorted(signs) and signs[3] == 1.0
    # The part of what was not sampled fades beside that of what was.
    assert parts[3] < 0.05 < 0.5 < parts[0]


def test_templates_are_drawn_evenly() -> None:
    drawn = templates(3000, 3, generator())
    share = torch.bincount(drawn, minlength=3) / 3000
    assert share.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert templates(4, 3, generator(), rollouts=5).shape == (4, 5)
    with pytest.raises(ConfigError, match="0 templates"):
        templates(4, 0, generator())
