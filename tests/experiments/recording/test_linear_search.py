"""Searches over linear policies."""

import numpy as np
import pytest
import torch

from experiments.recording import behaviour, linear_search
from experiments.recording.linear_search import Search
from mbrl.errors import ConfigError
from mbrl.tasks import make
from tests.experiments.recording.test_collect import generator, ignore


@pytest.mark.parametrize(
    "search",
    [
        Search("cross-entropy", 6, 2, 16, 4, noise=0.5, step=0.1),
        Search("ars", 12, 2, 8, 4, noise=0.05, step=0.3, judge=2),
    ],
)
def test_searches_find_a_better_policy_than_none(search):
    task = make("PointMass-v0")
    result = linear_search.search(task, search, ignore)
    assert sorted(result.policies) == ["expert", "medium"]
    assert len(result.candidates) == search.iterations * search.population

    def value(weights):
        act = behaviour.policy_of(weights, task.spec, sampled=False)
        rows = behaviour.record(task, act, 1500, generator(), report=ignore)
        return float(rows.returns().mean())

    still = {**result.policies["expert"], "linear": np.zeros((2, 2))}
    assert value(result.policies["expert"]) > 0.6 * value(still)  # returns are negative
    short, long = (
        linear_search.record_candidates(
            task, result.candidates, steps, generator(), with_state=True, report=ignore
        )
        for steps in (300, 900)
    )
    assert (len(short), len(long)) == (300, 900)
    assert short.state is not None
    kept = {tuple(row) for row in long.state.tolist()}
    assert all(tuple(row) in kept for row in short.state.tolist())


def test_a_linear_policy_returns_what_a_plain_loop_gives():
    """The point mass step by step, a bonus off every reward."""
    task, draws = make("PointMass-v0"), generator()
    linear = torch.randn(5, 2, 2, generator=generator(1)).double() / 3
    norm = {"mean": np.array([0.1, -0.2]), "sd": np.array([2.0, 0.5])}
    result, seen = linear_search.linear_returns(task, linear, norm, generator(), 0.5)
    state, total = task.reset(5, draws), torch.zeros(5).double()
    for t in range(30):
        obs = task.observe(state)
        torch.testing.assert_close(seen[5 * t : 5 * t + 5], obs, rtol=1e-4, atol=1e-4)
        scaled = (obs.double() - torch.from_numpy(norm["mean"])) / torch.from_numpy(norm["sd"])
        action = torch.stack([linear[i] @ scaled[i] for i in range(5)])
        state, _, reward, _ = task.step(state, action.float().clamp(-1, 1))
        total += reward.double() - 0.5
    torch.testing.assert_close(result, total, rtol=1e-4, atol=1e-4)


def test_unknown_search_is_refused():
    with pytest.raises(ConfigError, match="known are cross-entropy and ars"):
        linear_search.search(make("PointMass-v0"), Search("nes", 1, 1, 2, 1, noise=1.0), ignore)
