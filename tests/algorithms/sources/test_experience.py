"""Experience beside logged rows, or without them, where rows wait for later steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import longreach as lr
from algorithms import ALGORITHMS, CDSA, CQL, SAC, DiscreteCQL, ReBRAC
from experiments.settings import build_config
from mbrl.collector import CollectorConfig
from mbrl.data import load
from mbrl.errors import ConfigError
from tests.mbrl.own_environments import Corridor
from tests.small import CONFIGS, with_goals

TASK = lr.make("Pendulum-v1")


def fitted(name: str, **more: Any) -> Any:
    dataset = load("pendulum/medium-replay")
    cls = {"rebrac": ReBRAC, "cql": CQL, "cdsa": CDSA}[name]
    config = build_config(name, CONFIGS[name] | more)
    return cls(dataset.spec, config, seed=0).fit(dataset, 2, callbacks=[])


@pytest.mark.parametrize(("share", "envs"), [(0.0, 1), (0.0, 2), (0.25, 1), (0.5, 1)])
def test_updates_wait_for_as_much_experience_as_a_batch_takes(share: float, envs: int) -> None:
    """Copies of a few rows are no batch. ReBRAC's rows have the next action, so that each joins
    with the step after it."""
    agent = fitted("rebrac", batch_size=16)
    before, least = agent.updates, round((1 - share) * 16)
    collection = CollectorConfig(logged_share=share, envs=envs)
    agent.learn(TASK, least // envs, collection=collection, callbacks=[])
    assert agent.updates == before
    agent = fitted("rebrac", batch_size=16)
    agent.learn(TASK, least // envs + 5, collection=collection, callbacks=[])
    assert agent.updates - before == 5 and len(agent.source.rows) == least + 4 * envs


def test_a_small_buffer_is_not_waited_for_in_vain() -> None:
    agent = fitted("rebrac", batch_size=16)
    before = agent.updates
    agent.learn(
        TASK, 12, collection=CollectorConfig(logged_share=0.0, capacity=8, warmup=0), callbacks=[]
    )
    assert agent.updates - before == 4


def test_updates_begin_with_the_first_episode_where_logged_ones_are_left_behind() -> None:
    agent = fitted("cql", calibrated=True)
    before, limit = agent.updates, int(TASK.spec.max_episode_steps or 0)
    collection = CollectorConfig(logged_share=0.0)
    agent.learn(TASK, limit - 1, collection=collection, callbacks=[])
    assert agent.updates == before and agent.source.empty
    agent = fitted("cql", calibrated=True)
    agent.learn(TASK, limit + 1, collection=collection, callbacks=[])
    assert agent.updates - before == 2 and len(agent.source.rows) == limit


@pytest.mark.parametrize("settings", [{}, {"noise": 0.3}, {"noise": 0.0}, {"deterministic": True}])
def test_policies_without_randomness_get_noise_in_the_task(settings: dict[str, Any]) -> None:
    """A tenth of half of the range where nothing else is said; clipped to the range."""
    agent = fitted("rebrac")
    agent.source.collection = CollectorConfig(envs=2000, frozen=10_000, **settings)
    collector = agent.collector(TASK)
    obs = collector.obs
    collector.collect(agent)
    row = agent.source.waiting  # ReBRAC's rows wait for the next action
    greedy, _ = agent.act(obs)
    assert row is not None and float(row.action.abs().max()) <= 2.0
    inner = greedy.abs() < 1.0
    deviation = (row.action - greedy)[inner].std()
    expected = 0.0 if settings.get("deterministic") else 2.0 * settings.get("noise", 0.1)
    assert float(deviation) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("learner", ["td3_bc", "iql"])
def test_a_corrected_policy_gets_noise_where_the_one_below_has_none(learner: str) -> None:
    deviations = []
    for noise in (0.0, 0.1):
        agent = fitted("cdsa", learner=learner)
        logged = len(agent.source.rows)
        agent.source.collection = CollectorConfig(envs=2000, frozen=10_000, noise=noise)
        collector = agent.collector(TASK)
        greedy, _ = agent.act(collector.obs)
        collector.collect(agent)
        action = 2.0 * agent.source.rows.whole().action[logged:]  # stored in [-1, 1]
        deviations.append(float((action - greedy)[greedy.abs() < 1.0].std()))
    if learner == "td3_bc":
        assert deviations == [0.0, pytest.approx(0.2, rel=0.1)]
    else:
        assert deviations[0] == deviations[1] > 0.1


@pytest.mark.parametrize("settings", [{}, {"noise": 0.4}, {"noise": 0.0}, {"deterministic": True}])
def test_greedy_discrete_policies_get_a_share_of_uniform_actions(settings: dict[str, Any]) -> None:
    """Of two actions every other uniform one is the greedy one itself."""
    task = lr.make("CartPole-v1")
    agent = DiscreteCQL(task.spec, seed=0)
    agent.source.collection = CollectorConfig(envs=20_000, warmup=0, frozen=100_000, **settings)
    collector = agent.collector(task)
    obs = collector.obs
    collector.collect(agent)
    taken, greedy = agent.source.rows.whole().action, agent.act(obs)[0]
    share = 0.0 if settings.get("deterministic") else settings.get("noise", 0.1)
    assert float((taken != greedy).double().mean()) == pytest.approx(share / 2, rel=0.1)


def test_uniform_actions_beside_a_greedy_policy_keep_to_the_masks() -> None:
    task = lr.make(Corridor)
    agent = DiscreteCQL(task.spec, seed=0)
    agent.source.collection = CollectorConfig(envs=60, warmup=0, frozen=10_000, noise=1.0)
    agent.collector(task).collect(agent)
    rows = agent.source.rows.whole()
    assert rows.action_mask is not None and rows.action_mask.gather(1, rows.action[:, None]).all()
    assert set(rows.action[rows.action_mask.all(1)].tolist()) == {0, 1}


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 3), (3, 1)])
def test_other_numbers_of_copies_cut_what_is_unfinished(first: int, second: int) -> None:
    agent = fitted("cql", calibrated=True)
    logged = len(agent.source.rows)
    agent.learn(TASK, 4, collection=CollectorConfig(envs=first), callbacks=[])
    assert len(agent.source.rows) == logged
    agent.learn(TASK, 3, collection=CollectorConfig(envs=second), callbacks=[])
    new = agent.source.rows.whole()
    assert len(new.obs) - logged == 4 * first
    assert bool((new.discount[logged:] > 0).all())  # cut, and not ended


def test_settings_that_experience_cannot_follow_are_refused() -> None:
    agent = fitted("rebrac")
    agent.learn(TASK, 3, collection=CollectorConfig(logged_share=0.5), callbacks=[])
    agent.learn(TASK, 3, collection=CollectorConfig(logged_share=0.25), callbacks=[])
    for changed in ({"logged_share": None}, {"logged_share": 0.5, "capacity": 777}):
        with pytest.raises(ConfigError, match="gathered its experience with"):
            agent.learn(TASK, 3, collection=CollectorConfig(**changed), callbacks=[])
    left = fitted("rebrac")
    left.learn(TASK, 3, collection=CollectorConfig(logged_share=0.0), callbacks=[])
    with pytest.raises(ConfigError, match=r"logged_share is 0\.5, .* with 0\.0"):
        left.learn(TASK, 3, collection=CollectorConfig(logged_share=0.5), callbacks=[])
    plain = SAC(TASK.spec, build_config("sac", CONFIGS["sac"]), seed=0)
    plain.learn(TASK, 3, collection=CollectorConfig(capacity=500), callbacks=[])
    with pytest.raises(ConfigError, match="capacity is 600"):
        plain.learn(TASK, 3, collection=CollectorConfig(capacity=600), callbacks=[])
    assert torch.isfinite(plain.source.rows.whole().obs).all()


@pytest.mark.parametrize("name", ["gcivl", "mopo", "pgd", "neubay"])
def test_sources_around_others_refuse_them_too(name: str) -> None:
    cls = ALGORITHMS[name][0]
    spec = with_goals(TASK.spec) if cls.needs_goals else TASK.spec
    agent = cls(spec, build_config(name, CONFIGS[name]), seed=0)
    agent.source.collection = replace(agent.source.collection, capacity=5000)
    rows = getattr(agent.source, "real", agent.source)
    if name != "neubay":
        data = load("pendulum/medium-replay")
        rows.prepare(data.with_transitions(data.transitions.select(slice(0, 200))), print)
    rows.begin_experience()
    with pytest.raises(ConfigError, match="capacity is 6000"):
        agent.learn(TASK, 0, collection=replace(agent.source.collection, capacity=6000))
    agent.source.allows(agent.source.collection)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rewards_of_experience_are_in_the_units_of_the_logged_rows(scale: float) -> None:
    """IQL's source, which may normalise rewards; a row joins as it was seen, its reward scaled."""
    dataset = load("pendulum/medium-replay")
    agent = ALGORITHMS["iql"][0](dataset.spec, build_config("iql", CONFIGS["iql"]), seed=0)
    agent.fit(dataset, 1, callbacks=[])
    agent.source.reward_scale = scale
    row = dataset.transitions.select(slice(7, 8))
    agent.observe(row)
    last = agent.source.rows.batch(agent.source.rows.gather(torch.tensor([len(dataset)])))
    assert float(last.reward) == pytest.approx(scale * float(row.reward))
    assert torch.equal(last.obs, row.obs) and torch.equal(last.next_obs, row.next_obs)
