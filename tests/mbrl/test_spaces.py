"""Spaces as flat numbers, against gymnasium's own flattening and by hand."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from mbrl.errors import ConfigError
from mbrl.spaces import Flattener
from mbrl.types import Spec

NESTED = spaces.Dict(
    {
        "position": spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Box(-1, 1, ())}),
        "grid": spaces.Box(-1, 1, (2, 2)),
        "gear": spaces.Discrete(3, start=-1),
        "lamps": spaces.MultiBinary(2),
        "dials": spaces.MultiDiscrete([2, 3]),
        "pair": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 9, (1,))]),
    }
)


def test_flat_observations_are_gymnasiums() -> None:
    flat = Flattener(NESTED, "T")
    NESTED.seed(0)
    for _ in range(50):
        obs = NESTED.sample()
        np.testing.assert_array_equal(flat(obs), spaces.flatten(NESTED, obs).astype(np.float64))
    assert flat.dim == spaces.flatdim(NESTED) == len(flat.names)


def test_names_follow_the_structure() -> None:
    names = Flattener(NESTED, "T").names
    assert names == (
        "dials[0]=0", "dials[0]=1", "dials[1]=0", "dials[1]=1", "dials[1]=2",
        "gear=-1", "gear=0", "gear=1",
        "grid[0,0]", "grid[0,1]", "grid[1,0]", "grid[1,1]",
        "lamps[0]", "lamps[1]",
        "pair/0=0", "pair/0=1", "pair/1[0]",
        "position/x[0]", "position/x[1]", "position/y",
    )  # fmt: skip


def test_categories_as_numbers() -> None:
    space = spaces.Dict(
        {"gear": spaces.Discrete(3, start=4), "dials": spaces.MultiDiscrete([2, 3])}
    )
    flat = Flattener(space, "T", "number")
    assert flat.names == ("dials[0]", "dials[1]", "gear")
    assert flat({"gear": 5, "dials": [1, 2]}).tolist() == [1, 2, 5]


def test_a_single_box_has_no_names_and_any_rank() -> None:
    flat = Flattener(spaces.Box(-1, 1, (2, 3)), "T")
    assert flat.dim == 6 and flat.names == ()
    assert flat(np.arange(6).reshape(2, 3)).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), "is an image"),
        (spaces.Dict({"cam": spaces.Box(0, 255, (8, 8, 3), np.uint8)}), "'cam'.* is an image"),
        (spaces.Box(0, 1, (84, 84, 3)), "is an image"),
        (spaces.Box(0, 255, (4, 84, 84, 1), np.uint8), "is an image"),
        (spaces.Box(0, 255, (84, 84), np.uint8), "is an image"),
        (spaces.Dict({"say": spaces.Text(5)}), "'say'.*not taken; allowed: Box.*Filter"),
        (spaces.Sequence(spaces.Discrete(2)), "not taken"),
        (spaces.Graph(spaces.Box(0, 1, (1,)), None), "not taken"),
        (spaces.Dict({}), "no entries"),
    ],
)
def test_observations_that_are_refused(space: spaces.Space, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Flattener(space, "T")


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Box(-np.inf, np.inf, (1,)), "infinite bounds.*RescaleAction"),
        (spaces.MultiDiscrete([2, 2]), "not taken; allowed: Box.*TransformAction"),
        (spaces.Box(0, 3, (1,), np.int64), "not taken"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "not taken"),
        (spaces.Discrete(1), "one action"),
    ],
)
def test_actions_that_are_refused(space: spaces.Space, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Spec.from_spaces(spaces.Box(-1, 1, (1,)), space, task="T")


def test_spec_from_spaces() -> None:
    spec = Spec.from_spaces(
        NESTED, spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0])), task="T",
        max_episode_steps=7,
    )  # fmt: skip
    assert (spec.obs_dim, spec.action_dim, spec.max_episode_steps) == (20, 2, 7)
    assert spec.action_low == (-1.0, 0.0) and spec.action_high == (1.0, 2.0)
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    discrete = Spec.from_spaces(spaces.Box(-1, 1, (3,)), spaces.Discrete(4, start=2), task="T")
    assert discrete.num_actions == 4 and discrete.obs_names == ()
    assert discrete.action_names == ("2", "3", "4", "5")  # what the environment calls them
    board = Spec.from_spaces(spaces.Box(0, 2, (8, 8), np.uint8), spaces.Discrete(4), task="T")
    assert board.obs_dim == 64 and board.action_names == ()


def test_names_are_checked_and_absent_from_files_where_there_are_none() -> None:
    bare = Spec("T", 2, 1, None, (-1.0,), (1.0,))
    assert list(bare.to_dict()) == [
        "task", "obs_dim", "action_dim", "num_actions", "action_low", "action_high",
        "max_episode_steps", "reference_returns", "task_options",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="obs_names has 1 names, there are 2"):
        Spec("T", 2, 1, None, (-1.0,), (1.0,), obs_names=("a",))
    with pytest.raises(ConfigError, match="obs_names has 'a' more than once"):
        Spec("T", 2, 1, None, (-1.0,), (1.0,), obs_names=("a", "a"))
    with pytest.raises(ConfigError, match="action_names has 2 names, there are 1"):
        Spec("T", 2, 1, None, (-1.0,), (1.0,), action_names=("a", "b"))
    with pytest.raises(ConfigError, match="action_mask is for discrete"):
        Spec("T", 2, 1, None, (-1.0,), (1.0,), action_mask=True)
