"""Discounted returns, by closed forms."""

import numpy as np
import pytest
import torch

from mbrl.returns import endless_return, returns_to_go
from mbrl.types import Transitions


def cut_rows(durations: list[float]) -> Transitions:
    """An episode of reward 1 that is cut after its last row."""
    n = len(durations)
    end = torch.arange(n) == n - 1
    obs = torch.zeros(n, 1)
    return Transitions(
        obs, obs, torch.ones(n), obs, end & ~end, end, duration=torch.tensor(durations)
    )


def test_a_cut_goes_on_with_steps_as_long_as_the_logged_ones() -> None:
    """1 every four hours for ever is worth 1 / (1 - 0.9 ** 4), from every row."""
    rows = cut_rows([4.0, 4.0, 4.0])
    worth = 1 / (1 - 0.9**4)
    assert endless_return(rows, 0.9) == pytest.approx(worth)
    np.testing.assert_allclose(returns_to_go(rows, 0.9), worth)


def test_lengths_that_differ_are_drawn_again() -> None:
    """1 and 3 hours in turn by chance: V = 1 + (0.9 + 0.9 ** 3) / 2 V, by simulation, too."""
    rows = cut_rows([1.0, 3.0])
    spans = np.random.default_rng(0).choice([1.0, 3.0], size=(20_000, 150))
    begun = np.concatenate([np.zeros((len(spans), 1)), np.cumsum(spans, 1)[:, :-1]], 1)
    assert endless_return(rows, 0.9) == pytest.approx((0.9**begun).sum(1).mean(), rel=0.01)
