"""Shares of sources in batches, rows that are never drawn, and who may learn from them."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from experiments.settings import build_config
from mbrl.collector import CollectorConfig
from mbrl.data import from_arrays, load, save_npz
from mbrl.data.sources import with_source
from mbrl.data.writers import write
from mbrl.errors import ConfigError, DataError
from mbrl.logged_table import rows_of
from mbrl.types import Dataset
from tests.conftest import random_dataset
from tests.small import CONFIGS, OFFLINE, others_long, suited

DRAWS = 40_000


def numbered(count: int, first: int = 0, episode: int = 3) -> Dataset:
    """Rows whose observation and reward are their number, in episodes of `episode` rows."""
    number = torch.arange(first, first + count).float()
    ends = torch.arange(1, count + 1) % episode == 0
    obs, action = number[:, None], torch.linspace(-1, 1, count)[:, None]
    return from_arrays(obs, action, number, next_obs=obs + 1, terminated=ends)


def drawn(dataset: Dataset, seed: int = 0) -> torch.Tensor:
    """The numbers of the rows of `DRAWS` draws."""
    rows = rows_of(dataset.spec, dataset.transitions, 0.99, torch.device("cpu"))
    return rows.sample(DRAWS, torch.Generator().manual_seed(seed)).reward.long()


def with_columns(dataset: Dataset, **columns: torch.Tensor) -> Dataset:
    return dataset.with_transitions(replace(dataset.transitions, **columns))


def within(count: int, probability: float) -> bool:
    """Whether `count` of `DRAWS` is within four binomial standard deviations."""
    deviation = math.sqrt(DRAWS * probability * (1 - probability))
    return abs(count - DRAWS * probability) <= 4 * deviation


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0, None])
def test_shares_of_sources_and_of_their_rows(share: float | None) -> None:
    joined = with_source(numbered(6), numbered(12, 100), share)
    counts = torch.bincount(drawn(joined), minlength=112)
    expected = 12 / 18 if share is None else share
    assert within(int(counts[100:].sum()), expected)
    for row in range(6):
        assert within(int(counts[row]), (1 - expected) / 6)
    for row in range(100, 112):
        assert within(int(counts[row]), expected / 12)


def test_rows_that_are_not_kept_are_never_drawn_and_keep_their_neighbours() -> None:
    keep = torch.tensor([0, 1, 0, 0, 0, 1], dtype=torch.bool)
    joined = with_source(numbered(3), numbered(6, 100), 0.5, keep)
    counts = torch.bincount(drawn(joined), minlength=106)
    assert counts[[100, 102, 103, 104]].tolist() == [0, 0, 0, 0]
    assert within(int(counts[101]), 0.25) and within(int(counts[105]), 0.25)
    assert len(joined) == 9 and joined.transitions.episodes() == [(0, 3), (3, 6), (6, 9)]


def test_a_draw_of_exactly_0_is_no_row_of_weight_0(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = with_source(numbered(3), numbered(3, 100), 1.0)
    rows = rows_of(joined.spec, joined.transitions, 0.99, torch.device("cpu"))
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.zeros(2).double())
    assert rows.sample(2, torch.Generator()).reward.tolist() == [100, 100]


def test_three_sources() -> None:
    two = with_source(numbered(4), numbered(4, 10), 0.5)
    counts = torch.bincount(drawn(with_source(two, numbered(2, 20), 0.2)), minlength=22)
    assert within(int(counts[:4].sum()), 0.4)
    assert within(int(counts[10:14].sum()), 0.4)
    assert within(int(counts[20:].sum()), 0.2)


def test_a_third_source_whose_rows_are_drawn_as_often_as_those_of_the_first_two() -> None:
    first = with_source(numbered(6), numbered(12, 100), 0.25)
    counts = torch.bincount(drawn(with_source(first, numbered(9, 200), None)), minlength=209)
    assert within(int(counts[:6].sum()), 18 / 27 * 0.75)
    assert within(int(counts[100:112].sum()), 18 / 27 * 0.25)
    assert within(int(counts[200:].sum()), 9 / 27)


def test_an_open_episode_does_not_run_into_the_next_source() -> None:
    open_end = numbered(4)
    open_end.transitions.truncated[-1] = False
    joined = with_source(open_end, numbered(3, 10), 0.5)
    assert not open_end.transitions.truncated[-1]
    assert joined.transitions.episodes() == [(0, 3), (3, 4), (4, 7)]
    assert joined.transitions.truncated.tolist() == [False, False, False, True] + [False] * 3


@pytest.mark.parametrize("name", others_long(OFFLINE))
def test_every_learner_of_logged_rows_draws_by_the_weights(name: str) -> None:
    task = suited(name, "Pendulum-v1", "CartPole-v1")
    real, other = (random_dataset(task, 300, seed=s) for s in (0, 1))
    shift = torch.linspace(0, 1e-3, 300)  # rewards of CartPole are all equal
    other = with_columns(other, reward=other.transitions.reward + shift)
    reward = other.transitions.reward
    joined = with_source(real, other, 0.25, keep=reward > reward.median())
    joined = suited(name, joined, joined)
    agent = ALGORITHMS[name][0](joined.spec, build_config(name, CONFIGS[name]), seed=0)
    if agent.model is not None:
        with pytest.raises(ConfigError, match=r"have weights .*would be fitted to all alike"):
            agent.prepare(joined, lambda metrics: None)
        return
    agent.fit(joined, 2, callbacks=[])
    obs = [agent.source.sample(torch.Generator().manual_seed(s)).obs for s in range(100)]
    own = slice(0, joined.spec.obs_dim - len(joined.spec.goal))  # goals are new ones
    marks = (torch.cat(obs)[:, None, own] == other.transitions.obs[None, :, own]).all(-1)
    assert not marks[:, reward <= reward.median()].any()
    share, count = float(marks.any(1).float().mean()), len(marks)
    # ReCOIL draws half of its rows from the best episodes, uniformly.
    if name != "recoil":
        assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / count)


def test_the_observations_of_rows_never_drawn_do_not_count() -> None:
    real, other = (random_dataset("Pendulum-v1", 50, seed=s) for s in (0, 1))
    moved = with_columns(other, obs=other.transitions.obs + 1000)
    joined = with_source(real, moved, 0.0)
    config = build_config("td3_bc", CONFIGS["td3_bc"] | {"normalise_obs": True})
    agent = ALGORITHMS["td3_bc"][0](joined.spec, config, seed=0)
    agent.prepare(joined, lambda metrics: None)
    assert torch.allclose(
        agent.policy.normaliser.mean.double(), real.transitions.obs.double().mean(0), atol=1e-5
    )


def test_weights_do_not_follow_into_a_replay_buffer() -> None:
    joined = with_source(load("pendulum/medium"), load("pendulum/random"), 0.5)
    config = build_config("td3_bc", CONFIGS["td3_bc"])
    agent = ALGORITHMS["td3_bc"][0](joined.spec, config, seed=0)
    agent.fit(joined, 1, callbacks=[])
    for share in (None, 0.5):
        with pytest.raises(ConfigError, match="replay buffer draws all rows alike"):
            agent.learn(
                "Pendulum-v1", 3, callbacks=[], collection=CollectorConfig(logged_share=share)
            )
    agent = ALGORITHMS["td3_bc"][0](joined.spec, config, seed=0)
    agent.fit(joined, 1, callbacks=[])
    agent.learn("Pendulum-v1", 3, callbacks=[], collection=CollectorConfig(logged_share=0.0))
    assert len(agent.source.rows) == 3


def test_what_cannot_be_joined_is_refused(tmp_path: Any) -> None:
    real = numbered(3)
    with pytest.raises(ConfigError, match=r"share is 1.2, it must lie in \[0, 1\]"):
        with_source(real, numbered(3), 1.2)
    with pytest.raises(DataError, match="no row of arrays is kept"):
        with_source(real, numbered(3), 0.5, torch.zeros(3, dtype=torch.bool))
    with pytest.raises(DataError, match="differ in"):
        with_source(real, random_dataset("CartPole-v1", 20))
    joined = with_source(real, numbered(3), 0.5)
    for kind in ("npz", "rows", "csv", "minari"):
        with pytest.raises(DataError, match="have weights, which no file keeps"):
            write(joined, tmp_path / f"x.{kind}", kind)
    with pytest.raises(DataError, match="have weights"):
        save_npz(joined, tmp_path / "x.npz")
    rows = rows_of(real.spec, real.transitions, 0.9, torch.device("cpu"))
    for weight in (torch.zeros(3), torch.tensor([1.0, -1, 1]), torch.tensor([1.0, torch.inf, 1])):
        with pytest.raises(DataError, match="weights of rows must be finite"):
            rows.weigh(weight)
