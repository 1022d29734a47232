"""Rows that an agent has, and others that it is then given."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from algorithms import ALGORITHMS
from algorithms.evaluation.valuation import ValuationConfig, value_policy
from experiments.settings import build_config
from mbrl import checkpoint
from mbrl.errors import ConfigError
from mbrl.logged_rules import with_bounds_of
from mbrl.types import Dataset
from tests.conftest import random_dataset
from tests.small import CONFIGS


def built(name: str, data: Dataset) -> Any:
    return ALGORITHMS[name][0](data.spec, build_config(name, CONFIGS[name]), seed=0)


@pytest.mark.parametrize("name", ["iql", "mbpo", "neubay", "pgd", "recoil"])
def test_other_rows_than_before_are_refused(name: str, tmp_path: Path) -> None:
    one, other = (random_dataset("Pendulum-v1", 400, seed) for seed in (0, 1))
    agent = built(name, one).fit(one, 2, callbacks=[])
    agent.fit(random_dataset("Pendulum-v1", 400, 0), 2, callbacks=[])  # read again
    for data in (other, random_dataset("Pendulum-v1", 600, 0)):
        with pytest.raises(ConfigError, match="has 400 rows of another dataset"):
            agent.fit(data, 2, callbacks=[])
    agent.save(tmp_path / "agent.pt")
    for again in (algorithms.load(tmp_path / "agent.pt"), copy.deepcopy(agent)):
        with pytest.raises(ConfigError, match=f"this {type(agent).__name__} learned from another"):
            again.fit(other, 2, callbacks=[])
        again.fit(one, 2, callbacks=[])
        assert again.source.logged == 400 and again.step == 6


def test_a_file_of_before_takes_any_rows(tmp_path: Path) -> None:
    """Releases before did not write which rows an agent learned from."""
    one, other = (random_dataset("Pendulum-v1", 400, seed) for seed in (0, 1))
    built("iql", one).fit(one, 2, callbacks=[]).save(tmp_path / "agent.pt")
    content = checkpoint.load(tmp_path / "agent.pt")
    del content["state"]["rows_mark"]
    checkpoint.save(tmp_path / "agent.pt", content)
    assert algorithms.load(tmp_path / "agent.pt").fit(other, 2, callbacks=[]).step == 4


def test_rows_that_are_refused_leave_room_for_others() -> None:
    data = random_dataset("Pendulum-v1", 400)
    rows = data.transitions
    still = replace(data, transitions=replace(rows, reward=torch.zeros(400)))
    config = build_config("iql", {**CONFIGS["iql"], "normalise_rewards": True})
    agent = ALGORITHMS["iql"][0](data.spec, config)
    with pytest.raises(ConfigError, match="normalise_rewards"):
        agent.fit(still, 2, callbacks=[])
    assert agent.fit(data, 2, callbacks=[]).step == 2


@pytest.mark.parametrize("changed", ["reward", "next_obs", "terminated", "weight"])
def test_one_other_column_makes_another_dataset(changed: str) -> None:
    data = random_dataset("Pendulum-v1", 400, 0)
    agent = built("iql", data).fit(data, 2, callbacks=[])
    rows = data.transitions
    values = {
        "reward": torch.cat([rows.reward[:200], -rows.reward[200:201], rows.reward[201:]]),
        "next_obs": rows.next_obs + 1.0,
        "terminated": rows.truncated,
        "weight": torch.ones(400),
    }
    other = replace(data, transitions=replace(rows, **{changed: values[changed]}))
    with pytest.raises(ConfigError, match="has 400 rows of another dataset"):
        agent.fit(other, 2, callbacks=[])


def test_experience_alone_takes_no_dataset_in() -> None:
    data = random_dataset("Pendulum-v1", 300)
    agent = built("sac", data).learn("Pendulum-v1", 30, callbacks=[])
    with pytest.raises(ConfigError, match="has experience of its own and would not see the 300"):
        agent.fit(data, 2, callbacks=[])
    logged = built("iql", data).fit(data, 2, callbacks=[])
    logged.learn("Pendulum-v1", 30, callbacks=[])
    logged.fit(data, 2, callbacks=[])  # the same rows, which are there, and those of the task
    assert logged.step == 34


def test_bounds_of_a_log_are_those_of_the_agent_unless_actions_go_beyond() -> None:
    data = random_dataset("Pendulum-v1", 300)
    wide = replace(data, spec=replace(data.spec, action_low=(-40.0,), action_high=(40.0,)))
    assert with_bounds_of(data.spec, wide).spec == data.spec
    most = float(data.transitions.action.max())
    narrow = replace(data.spec, action_high=(1.0,))
    assert with_bounds_of(narrow, data).spec.action_high == (most,)
    assert with_bounds_of(narrow, data).spec.action_low == (-2.0,)
    least = float(data.transitions.action.min())
    narrow = replace(data.spec, action_low=(-1.0,))
    assert with_bounds_of(narrow, data).spec.action_low == (least,)
    agent = built("bc", data).fit(data, 2, callbacks=[])
    settings = ValuationConfig(steps=10, dice_steps=0, hidden=(8,))
    values = [value_policy(agent, d, settings).estimates[0].value for d in (data, wide)]
    assert values[0] == values[1]
