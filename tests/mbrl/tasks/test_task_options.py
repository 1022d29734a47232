"""Options that change what a MuJoCo task shows, against gymnasium with the same options."""

import json
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from mbrl.data.cards import all_cards, find_tier
from mbrl.errors import ConfigError
from mbrl.tasks import make, make_for
from mbrl.types import Spec

POSITIONS = {"exclude_current_positions_from_observation": False}
FORCES = {"use_contact_forces": True}
CASES = [
    *((task, POSITIONS) for task in ("Hopper-v4", "HalfCheetah-v4", "Walker2d-v4", "Hopper-v5")),
    *((task, POSITIONS) for task in ("Swimmer-v5", "Ant-v5", "Ant-v4")),
    ("Ant-v4", FORCES),
    ("Ant-v4", {**POSITIONS, **FORCES}),
]


@pytest.mark.parametrize(("task_id", "options"), CASES)
def test_trajectories_equal_gymnasiums(
    task_id: str, options: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 4 says that it is old
        env: Any = gymnasium.make(task_id, disable_env_checker=True, **options).unwrapped
    task: Any = make(task_id, dtype=torch.float64, **options)
    obs, _ = env.reset(seed=3)
    assert obs.shape == (task.spec.obs_dim,)
    q, v = (torch.from_numpy(np.array(x))[None] for x in (env.data.qpos, env.data.qvel))
    state = task.state_from_simulator(q, v)
    rng = np.random.default_rng(0)
    for _ in range(120):
        np.testing.assert_allclose(task.observe(state)[0], obs, rtol=1e-12, atol=1e-12)
        rebuilt, possible = task.state_from_obs(torch.from_numpy(obs)[None])
        action = rng.uniform(-1, 1, size=task.spec.action_dim).astype(np.float32)
        obs, reward, terminated, _, _ = env.step(action)
        given = torch.from_numpy(action)[None]
        step = task.step(state, given)
        np.testing.assert_allclose(step.obs[0], obs, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(step.reward[0], reward, rtol=1e-6, atol=1e-6)
        assert bool(step.terminated) == terminated
        assert bool(task.terminates(step.obs, given, step.obs)) == terminated
        if possible:
            guess = task.step(rebuilt, given).obs
            np.testing.assert_allclose(guess[0], obs, rtol=1e-4, atol=1e-4)
        state = step.state


def test_every_card_makes_its_task() -> None:
    for card in all_cards().values():
        for environment in card.environments.values():
            if environment.task_options:
                spec = make(str(environment.task), **environment.task_options).spec
                assert spec.obs_dim == environment.obs_dim, (card.family, environment.name)


@pytest.mark.parametrize(
    ("task_id", "options", "text"),
    [
        ("Hopper-v4", FORCES, "only Ant-v4 has"),
        ("Reacher-v5", POSITIONS, "only Swimmer"),
        ("Pendulum-v1", FORCES, "has no option 'use_contact_forces'"),
        ("Ant-v4", {"use_contact_forces": "no"}, "'no', it must be true or false"),
        ("Modes-v0", {"modes": 2.5}, "modes is 2.5, it must be a whole number"),
        ("DMSD-v0", {"mass": "inf"}, "mass is 'inf', it must be a number"),
        ("PointMass-v0", {"centre": 1}, "centre is 1, it must be a list"),
        ("PointMass-v0", {"reward": 1}, "reward is 1, it must be text"),
    ],
)
def test_options_that_a_task_does_not_take(
    task_id: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make(task_id, **options)


def test_a_spec_carries_its_options_to_the_task() -> None:
    """NeoRL's Hopper shows the root position; the spec keeps that through a checkpoint."""
    card, tier = find_tier("neorl/hopper-low")
    spec = Spec.from_dict(json.loads(json.dumps(card.spec(tier).to_dict())))
    assert make_for(spec).spec.obs_dim == spec.obs_dim == 12
    card, tier = find_tier("d4rl/hopper-medium-v2")
    assert make_for(card.spec(tier)).spec.obs_dim == 11


@pytest.mark.parametrize(("text", "size"), [("False", 12), ("false", 12), ("True", 11)])
def test_truth_in_a_name_may_be_written_as_python_does(text: str, size: int) -> None:
    """As text, "False" would be true."""
    (option,) = POSITIONS
    assert make(f"Hopper-v4,{option}={text}").spec.obs_dim == size
    lake = make(f"FrozenLake-v1,is_slippery={text}").spec
    assert lake.task_options == {"is_slippery": size == 11}
    assert make("PointMass-v0,centre=[1,2],sd=2").spec.task_options == {"centre": [1, 2], "sd": 2}
