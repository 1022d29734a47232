"""Trackers against closed forms, and that their state survives."""

import numpy as np
import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient.measures.trackers import (
    QuantileTracker,
    SuccessTracker,
    one_more,
    shrinkage,
)


def test_one_step_is_the_gradient_of_the_pinball_loss() -> None:
    tracker = QuantileTracker((0.25, 0.75), rate=0.5)
    first = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(tracker.update(first), [1.0, 3.0])
    # One of four below 1, three of four below 3: nothing moves; then all below.
    np.testing.assert_allclose(tracker.update(np.array([0.0, 1.0, 2.0, 9.0])), [1.0, 3.0])
    np.testing.assert_allclose(tracker.update(np.array([-1.0])), [1 - 0.375, 3 - 0.125])


def test_tracked_quantiles_converge_to_those_of_the_stream() -> None:
    generator, tracker = np.random.default_rng(0), QuantileTracker((0.2, 0.8), rate=0.02)
    tracker.update(np.array([5.0]))
    found = [tracker.update(generator.normal(size=64)) for _ in range(4000)]
    normal = 0.8416212335729143  # the 0.8 quantile of the standard normal law
    np.testing.assert_allclose(np.mean(found[2000:], 0), [-normal, normal], atol=0.01)


def test_a_prompt_forgets_at_its_discount() -> None:
    tracker = SuccessTracker(discount=0.8, prior=0.25, strength=4.0)
    assert tracker.value(3) == 0.25
    rewards = [1.0, 0.0, 1.0, 0.5]
    for r in rewards:
        tracker.update(3, r)
    kept = [0.8 ** (len(rewards) - 1 - i) for i in range(len(rewards))]
    right = 0.8**4 * 1.0 + sum(k * r for k, r in zip(kept, rewards, strict=True))
    wrong = 0.8**4 * 3.0 + sum(k * (1 - r) for k, r in zip(kept, rewards, strict=True))
    assert tracker.value(3) == pytest.approx(right / (right + wrong))
    assert tracker.value(4) == 0.25


def test_state_survives() -> None:
    one, two = QuantileTracker(), QuantileTracker()
    two.load_state_dict(one.state_dict())
    one.update(np.arange(9.0))
    two.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.update(np.ones(3)), two.update(np.ones(3)))
    with pytest.raises(ConfigError, match="levels"):
        QuantileTracker((0.5,)).load_state_dict(one.state_dict())
    kept, other = SuccessTracker(), SuccessTracker()
    kept.update(1, 1.0)
    other.load_state_dict(kept.state_dict())
    assert other.value(1) == kept.value(1) != other.value(2)


def test_settings_out_of_range_are_refused() -> None:
    for levels in ((), (0.0, 0.5), (1.0,)):
        with pytest.raises(ConfigError):
            QuantileTracker(levels)
    for settings in ({"discount": 0.0}, {"prior": 1.0}, {"strength": 0.0}):
        with pytest.raises(ConfigError):
            SuccessTracker(**settings)


def test_the_weight_of_a_prior_makes_the_squared_error_least() -> None:
    prior, size = 0.3, 8
    variance = 0.25 / size
    for mean in (0.3, 0.4, 0.5, 0.75):
        bias = max((mean - prior) ** 2 - variance, 0)
        errors = {w: w**2 * bias + (1 - w) ** 2 * variance for w in np.linspace(0, 1, 1001)}
        best = min(errors, key=lambda w, e=errors: e[w])
        args = (torch.tensor(prior), torch.tensor(mean), torch.tensor(float(size)))
        assert float(shrinkage(*args)) == pytest.approx(best, abs=1e-3)


def test_one_more_answer_is_worth_nothing_within_the_noise_of_the_mean() -> None:
    prior, size = torch.tensor(0.5), torch.tensor(16.0)
    for mean, out in ((0.5 + 0.99 / 8, False), (0.5 + 1.01 / 8, True)):
        assert (float(shrinkage(prior, torch.tensor(mean), size)) < 1) is out
        assert (float(one_more(prior, torch.tensor(mean), size)) > 0) is out
    # Beside a prior without any worth it is what it takes off the variance of the mean.
    far = float(one_more(torch.tensor(-1e6), torch.tensor(0.5), size))
    assert far == pytest.approx(0.25 / 16 - 0.25 / 17, rel=1e-4)
