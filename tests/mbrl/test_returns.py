"""Discounted returns, by closed forms."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from mbrl import returns
from mbrl.returns import endless_return, returns_at, returns_to_go
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


def test_returns_are_those_of_a_filter_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy's filter, run backwards from what an episode ends with; at some rows alone, too."""
    draw = torch.Generator().manual_seed(0)
    reward, obs = torch.randn(23, generator=draw), torch.zeros(23, 1)
    terminated, truncated = torch.zeros(2, 23, dtype=torch.bool)
    terminated[[0, 6]] = truncated[17] = True
    rows = Transitions(obs, obs, reward, obs, terminated, truncated)
    endless = float(reward.double().mean()) / 0.1
    expected = []
    for first, stop, end in ((0, 1, 0.0), (1, 7, 0.0), (7, 18, endless), (18, 23, endless)):
        backwards = reward[first:stop].double().numpy()[::-1]
        expected.append(lfilter([1.0], [1.0, -0.9], backwards, zi=[0.9 * end])[0][::-1])
    for block in (4, 65_536):
        monkeypatch.setattr(returns, "BLOCK", block)
        found = returns_to_go(rows, 0.9)
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-12)
        some = np.array([0, 5, 6, 17, 18, 22])
        assert np.array_equal(returns_at(rows, 0.9, some), found[some])
