"""What an agent asks of its arguments, and that it can be copied and leaves torch's own random
numbers alone."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import BC, IQL, BCConfig, IQLConfig
from mbrl.data import load
from mbrl.errors import ConfigError
from mbrl.types import Dataset

SMALL = IQLConfig(hidden=(8,), batch_size=16)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("pendulum/medium")


def agent(data: Dataset, **values: Any) -> IQL:
    return IQL(data.spec, SMALL, **values)


def test_arguments_of_another_kind_are_refused_with_the_fix(data: Dataset) -> None:
    for build, words in (
        (lambda: IQL("Pendulum-v1"), "got 'Pendulum-v1'; give dataset.spec"),  # type: ignore[arg-type]
        (lambda: IQL(data), "got a Dataset"),  # type: ignore[arg-type]
        (lambda: IQL(data.spec, {"gamma": 0.9}), r"give IQLConfig\(...\)"),
        (lambda: IQL(data.spec, BCConfig()), "IQLConfig"),
        (lambda: agent(data, seed="a"), "seed is 'a'"),
        (lambda: agent(data, seed=-1), "seed is -1"),
        (lambda: agent(data).fit("pendulum/medium", 2), "mbrl.data.load"),  # type: ignore[arg-type]
        (lambda: agent(data).fit(data, 2.5), "steps is 2.5"),  # type: ignore[arg-type]
        (lambda: agent(data).fit(data, -1), "0 or more"),
    ):
        with pytest.raises(ConfigError, match=words):
            build()


def test_data_with_other_names_are_refused(data: Dataset) -> None:
    def named(**names: tuple[str, ...]) -> Dataset:
        return replace(data, spec=replace(data.spec, **names))

    one, other = named(obs_names=("x", "y", "v")), named(obs_names=("y", "x", "v"))
    IQL(one.spec, SMALL).fit(one, 1, callbacks=[])
    IQL(one.spec, SMALL).fit(data, 1, callbacks=[])  # one side has none
    with pytest.raises(ConfigError, match=r"obs_names: \['x', 'y', 'v'\] against"):
        IQL(one.spec, SMALL).fit(other, 1, callbacks=[])
    torque, force = named(action_names=("torque",)), named(action_names=("force",))
    with pytest.raises(ConfigError, match="action_names"):
        IQL(torque.spec, SMALL).fit(force, 1, callbacks=[])


def test_observations_that_are_not_finite_get_no_action(data: Dataset) -> None:
    made, obs = agent(data), data.transitions.obs[:3].clone()
    assert made.act(obs)[0].shape == (3, 1)
    large = obs.double().numpy()
    large[1, 2] = 1e39  # infinite in the policy's precision
    with pytest.raises(ConfigError, match="obs entry 2 is not finite in row 1"):
        made.act(large)
    for value in (torch.nan, torch.inf):
        obs[1, 2] = value
        for given in (obs, obs.numpy()):
            with pytest.raises(ConfigError, match="obs entry 2 is not finite in row 1"):
                made.act(given)
    with pytest.raises(ConfigError, match="entry 2 is not finite in row 0"):
        made.act(obs[1])


def test_copies_and_pickles_go_on_like_the_agent(data: Dataset) -> None:
    made = agent(data).fit(data, 3, callbacks=[])
    copies = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    obs = data.transitions.obs[:5]
    for other in copies:
        assert other.step == 3 and torch.equal(other.act(obs)[0], made.act(obs)[0])
    made.fit(data, 3, callbacks=[])
    for other in copies:
        assert not torch.equal(other.act(obs)[0], made.act(obs)[0])  # weights of its own
        other.fit(data, 3, callbacks=[])
        assert torch.equal(other.act(obs)[0], made.act(obs)[0])


def test_torchs_own_random_numbers_are_left_alone(data: Dataset) -> None:
    before = torch.get_rng_state()
    for kind in (IQL, BC):
        kind(data.spec, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_of_numpys_is_the_same_seed(data: Dataset) -> None:
    plain, numpys = IQL(data.spec, SMALL, seed=3), IQL(data.spec, SMALL, seed=np.int64(3))
    assert type(numpys.seed) is int
    for mine, other in zip(plain.policy.parameters(), numpys.policy.parameters(), strict=True):
        assert torch.equal(mine, other)
