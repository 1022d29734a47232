"""Discounted returns beside logged rows and experience, for Cal-QL."""

from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from algorithms import CQL
from algorithms.cql import calibrated_values, conservative_gap
from algorithms.sources.episode_rows import EpisodeRows
from experiments.settings import build_config
from mbrl.collector import CollectorConfig
from mbrl.data import load
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Dataset, Spec, Transitions
from tests.algorithms.continued import continued
from tests.small import CONFIGS

SPEC = Spec("line", 1, 1, None, (-1.0,), (1.0,), 5)


def steps(rewards: list[float], at: int, *, terminated: bool) -> list[Transitions]:
    """One step after another of an episode, states counted on from `at`."""
    rows = []
    for k, reward in enumerate(rewards):
        last = torch.tensor([k == len(rewards) - 1])
        rows.append(
            Transitions(
                torch.tensor([[at + k + 0.0]]), torch.zeros(1, 1), torch.tensor([reward]),
                torch.tensor([[at + k + 1.0]]), last & terminated, last & (not terminated),
            )
        )  # fmt: skip
    return rows


def begun() -> EpisodeRows:
    """With one logged row, at state 99."""
    source = EpisodeRows(SPEC, 0.5, 4, torch.device("cpu"))
    source.prepare(Dataset(steps([8.0], 99, terminated=True)[0], SPEC), lambda metrics: None)
    return source


def returns(source: EpisodeRows) -> dict[float, float]:
    rows = source.rows.whole()
    assert rows.to_go is not None
    return dict(zip(rows.obs[:, 0].tolist(), rows.to_go.tolist(), strict=True))


def test_experience_joins_by_episodes_with_its_returns() -> None:
    source = begun()
    episode = steps([4.0, 2.0, 8.0], 0, terminated=True)
    for row in episode[:2]:
        source.observe(row, 0)
    assert returns(source) == {99.0: 8.0}
    source.observe(episode[2], 0)
    assert returns(source) == {99.0: 8.0, 0.0: 4 + 0.5 * (2 + 0.5 * 8), 1.0: 6.0, 2.0: 8.0}
    assert source.unfinished == []
    for row in steps([1.0, 1.0], 10, terminated=False):
        source.observe(row, 0)
    assert returns(source)[11.0] == 1 + 0.5 * 2  # cut: the mean of 1 for ever is 1 / (1 - 0.5)


def test_copies_end_apart() -> None:
    """Of two copies one has two episodes while the other has one."""
    source = begun()
    short = [*steps([1.0, 2.0], 0, terminated=True), *steps([4.0, 8.0], 20, terminated=True)]
    long = steps([1.0, 1.0, 1.0, 1.0], 40, terminated=True)
    for a, b in zip(short, long, strict=True):
        both = [torch.cat([getattr(a, n), getattr(b, n)]) for n in (
            "obs", "action", "reward", "next_obs", "terminated", "truncated",
        )]  # fmt: skip
        source.observe(Transitions(*both), 0)
    wanted = {99.0: 8.0, 0.0: 2.0, 1.0: 2.0, 20.0: 8.0, 21.0: 8.0}
    wanted |= {40.0: 1.875, 41.0: 1.75, 42.0: 1.5, 43.0: 1.0}
    assert returns(source) == wanted


def test_an_episode_that_another_collector_left_is_cut() -> None:
    source = begun()
    source.observe(steps([2.0, 2.0], 0, terminated=True)[0], 0)
    source.observe(steps([4.0], 50, terminated=True)[0], 0)
    assert returns(source) == {99.0: 8.0, 0.0: 2 + 0.5 * 4, 50.0: 4.0}


def test_values_below_the_return_give_no_gradient() -> None:
    """Of six sampled values the first two are of uniform actions."""
    q = torch.full((2, 6, 3), -1000.0, dtype=torch.double, requires_grad=True)
    to_go = torch.tensor([0.0, -2000.0, 0.0], dtype=torch.double)
    density = torch.zeros(6, 3, dtype=torch.double)
    gap = conservative_gap(calibrated_values(q, to_go), density, torch.zeros(2, 3).double(), 1.0)
    (slope,) = torch.autograd.grad(gap.sum(), q)
    assert (slope[:, 2:, [0, 2]] == 0).all() and (slope[:, :, 1] > 0).all()


def agent(name: str, **values: Any) -> CQL:
    data = load(name)
    config = build_config("cql", CONFIGS["cql"] | {"calibrated": True} | values)
    return CQL(data.spec, config, seed=0).fit(data, 3, callbacks=[])


@pytest.mark.parametrize(("name", "acts"), [("hopper/medium", True), ("pendulum/medium", False)])
def test_calibration_acts_where_returns_are_above_the_values(name: str, acts: bool) -> None:
    """Values begin near 0; returns are above 0 on Hopper and below it on Pendulum."""
    agents = [agent(name, calibrated=on, threshold=None) for on in (False, True)]
    weights = [next(iter(a.learner.critic.parameters())) for a in agents]
    assert torch.equal(*weights) is not acts


def test_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    own, task = agent("pendulum/medium"), make("Pendulum-v1")
    own.source.collection = CollectorConfig(envs=2, logged_share=0.5)
    again = continued(own, task, tmp_path / "agent.pt", own.step + 205, own.step + 405)
    assert len(again.source.rows) == 800 and len(again.source.unfinished) == 5
    saved = algorithms.load(tmp_path / "agent.pt")
    assert len(saved.source.rows) == 400 and len(saved.source.unfinished) == 5


def test_it_needs_logged_rows() -> None:
    config = build_config("cql", CONFIGS["cql"] | {"calibrated": True})
    fresh = CQL(make("Pendulum-v1").spec, config, seed=0)
    with pytest.raises(ConfigError, match="there must be logged rows first"):
        fresh.learn("Pendulum-v1", 1, callbacks=[])
