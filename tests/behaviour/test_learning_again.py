"""`learn` in several calls: experience goes on, and nothing of it is repeated."""

import copy
import dataclasses
import warnings
from pathlib import Path

import pytest
import torch

import longreach as lr
from algorithms import IQL, NEUBAY, SAC, WSRL, PolicyGradient
from experiments.settings import build_config
from mbrl.collector import CollectorConfig
from mbrl.data import load
from tests.conftest import random_dataset
from tests.small import CONFIGS

TASK = lr.make("Pendulum-v1")


def sac(warmup: int) -> SAC:
    agent = SAC(TASK.spec, build_config("sac", CONFIGS["sac"]), seed=0)
    agent.source.collection = CollectorConfig(warmup=warmup)
    return agent


def distinct(agent) -> int:
    rows = agent.source.rows.whole()
    return len(torch.unique(torch.cat([rows.obs, rows.action], 1), dim=0))


def test_the_warm_up_comes_once_and_no_row_twice(tmp_path: Path) -> None:
    whole = sac(30).learn(TASK, 80, callbacks=[])
    parts = sac(30)
    for _ in range(3):
        parts.learn(TASK, 20, callbacks=[])
    assert parts.acted == 60 and parts.updates == 30
    parts.save(tmp_path / "agent.pt")
    parts = SAC.load(tmp_path / "agent.pt").learn(TASK, 20, callbacks=[])
    assert parts.acted == 80 == distinct(parts) and parts.updates == whole.updates == 50


def test_the_first_call_is_as_it_was() -> None:
    """What a run does, too: its collector knows of no earlier call."""
    agent = sac(10)
    collector = agent.collector(TASK)
    for _ in range(5):
        collector.collect(agent)
    learned = sac(10).learn(TASK, 5, callbacks=[])
    assert torch.equal(agent.source.rows.whole().obs, learned.source.rows.whole().obs)


def test_an_agent_without_the_rows_that_it_learned_from_warns(tmp_path: Path) -> None:
    dataset = random_dataset("Pendulum-v1", 300)
    config = build_config("iql", {**CONFIGS["iql"], "normalise_obs": True})
    agent = IQL(dataset.spec, config).fit(dataset, 2, callbacks=[])
    agent.save(tmp_path / "agent.pt")
    lost = "this IQL learned from logged rows, which neither a file nor a copy"
    for again in (lr.load(tmp_path / "agent.pt"), copy.deepcopy(agent)):
        with pytest.warns(UserWarning, match=lost) as caught:
            again.collector(TASK)
        assert len(caught) == 1  # its moments are those of the rows
        again.prepare(dataset, lambda metrics: None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.learn(TASK, 3, callbacks=[])
        again.save(tmp_path / "again.pt")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert lr.load(tmp_path / "again.pt").learn(TASK, 2, callbacks=[]).acted == 5


@pytest.mark.parametrize("name", ["iql", "wsrl"])
def test_logged_rows_then_the_task_twice(name: str) -> None:
    dataset = load("pendulum/medium-replay")
    agent = {"iql": IQL, "wsrl": WSRL}[name](
        dataset.spec, build_config(name, CONFIGS[name]), seed=0
    )
    agent.fit(dataset, 2, callbacks=[])
    waits = max(agent.source.collection.frozen, agent.source.least_experience)
    before = agent.updates
    steps = waits + 5
    agent.learn(TASK, steps, callbacks=[])
    after = agent.updates
    agent.learn(TASK, 5, callbacks=[])
    each = agent.updates_per_step
    assert after - before == 5 * each and agent.updates - after == 5 * each
    rows = agent.source.rows.whole()
    new = torch.cat([rows.obs, rows.action], 1)[-(steps + 5) :]
    assert len(torch.unique(new, dim=0)) == steps + 5


def test_a_round_that_was_left_is_not_joined_to_the_next() -> None:
    agent = PolicyGradient(
        TASK.spec, build_config("policy_gradient", CONFIGS["policy_gradient"]), seed=0
    )
    limit = int(TASK.spec.max_episode_steps or 0)
    agent.learn(TASK, limit // 2, callbacks=[])
    assert agent.transitions and not agent.rounds
    agent.learn(TASK, limit, callbacks=[])
    (episodes,) = agent.rounds
    assert episodes.mask.sum(1).max() == limit


def test_whole_episodes_are_cut_where_another_call_goes_on(monkeypatch) -> None:
    """130 steps, then 270 from a new start, then 30 of each of two copies, then 10 of one: nothing
    is joined, nothing is lost but what is unfinished at the end."""
    agent = NEUBAY(TASK.spec, build_config("neubay", CONFIGS["neubay"]), seed=0)
    monkeypatch.setattr("algorithms.sources.histories.refit_due", lambda *parts: False)
    for steps, envs in ((130, 1), (270, 1), (30, 2), (10, 1)):
        collection = dataclasses.replace(agent.source.collection, envs=envs, warmup=10_000)
        agent.learn(TASK, steps, collection=collection, callbacks=[])
    lengths = [end - begin for begin, end in agent.source.recorded_rows().episodes()]
    assert lengths == [130, 200, 70, 30, 30]
    rows = agent.source.recorded_rows()
    jumps = (rows.next_obs[:-1] - rows.obs[1:]).abs().amax(1) > 1e-3
    assert jumps.nonzero().flatten().tolist() == [129, 329, 399, 429]
