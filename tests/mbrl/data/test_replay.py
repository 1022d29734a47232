"""Replays: of recorded episodes, of a task that is another one, and of NeoRL-2's own files."""

import os

import pytest
import torch

from experiments.recording.environment import collect
from mbrl.data import from_arrays, load
from mbrl.data.replay import Replay, replay
from mbrl.errors import ConfigError, DataError
from mbrl.tasks import make

OFFICIAL = pytest.mark.skipif(
    "LONGREACH_DATA" not in os.environ, reason="needs NeoRL-2's files in LONGREACH_DATA"
)


def official(name: str, split: str, trajectories: int | None = None) -> Replay:
    try:
        data = load(
            f"neorl2/{name}", split=split, trajectories=trajectories, download=False, verify=False
        )
    except DataError as problem:
        pytest.skip(str(problem))
    return replay(data, make(data.spec.task, dtype=torch.float64))


def test_what_this_library_recorded_comes_back() -> None:
    data = load("pendulum/medium")
    result = replay(data, make("Pendulum-v1", dtype=torch.float64))
    assert len(result.obs) == len(result.reward) == result.rows == len(data)
    assert float(result.obs.max()) < 1e-5 and float(result.reward.max()) < 1e-4
    assert result.ends == 0 and not result.episodes


@pytest.mark.parametrize(("mass", "bound"), [(20.0, 1e-6), (30.0, 1.0)])
def test_another_mass_is_noticed(mass: float, bound: float) -> None:
    data = collect("DMSD-v0", steps=1000, seed=1)
    result = replay(data, make("DMSD-v0", mass=mass, dtype=torch.float64))
    assert result.episodes and len(result.obs) == 1000
    assert (float(result.obs.max()) < 1e-5) == (mass == 20.0)
    assert float(result.obs.max()) < bound


def overdose(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.full((len(obs), 1), -0.8)  # 0.5 U/min: low within three hours


@pytest.mark.long
def test_the_hour_of_a_patient_is_found() -> None:
    data = collect("Simglucose-v0", overdose, 300, seed=3)
    result = replay(data, make("Simglucose-v0", dtype=torch.float64))
    assert result.episodes and len(result.obs) == len(data)
    assert float(result.obs.max()) < 1e-6 and result.ends == 0
    other = replay(data, make("Simglucose-v0", patients="test", dtype=torch.float64))
    assert float(other.obs.max()) > 1e-2


@pytest.mark.parametrize("task", ["CartPole-v1", "Simglucose-v0"])
def test_what_nobody_recorded_is_not_compared(task: str) -> None:
    """Without next observations the last row of an episode repeats its own."""
    data = collect(task, overdose if task == "Simglucose-v0" else "random", 100, seed=3)
    rows = data.transitions
    columns = {n: getattr(rows, n) for n in ("obs", "action", "reward", "terminated", "truncated")}
    bare = from_arrays(**columns, spec=data.spec)
    result = replay(bare, make(task, dtype=torch.float64))
    ends = int(bare.transitions.terminated.sum())
    assert ends > 0 and len(result.reward) == len(bare) == len(result.obs) + ends
    assert float(result.obs.max()) < 1e-6 and result.ends == 0


def test_rows_of_unknown_state_are_left_out_or_refused() -> None:
    data = collect("Hopper-v4", steps=300, seed=0)
    data.transitions.obs[::2, 0] = float("nan")
    result = replay(data, make("Hopper-v4", dtype=torch.float64))
    assert len(result.obs) <= (len(data) + 1) // 2 < result.rows == len(data)
    data.transitions.obs[:, 0] = float("nan")
    with pytest.raises(DataError, match="in which state Hopper-v4 was"):
        replay(data, make("Hopper-v4"))
    with pytest.raises(ConfigError, match="has 3 and 1"):
        replay(data, make("Pendulum-v1"))
    with pytest.raises(ConfigError, match="cannot be put"):
        replay(data, make("CliffWalking-v1,max_episode_steps=9"))


@OFFICIAL
@pytest.mark.parametrize("split", ["train", "val"])
def test_official_masses(split: str) -> None:
    """Whole episodes, and both targets, from the first observation."""
    result = official("DMSD", split)
    assert len(result.obs) == result.rows and result.ends == 0
    assert float(result.obs.max()) < 1e-6
    assert float(result.reward.max()) < 2e-5  # 1e-7 in a position, divided by 0.01


@OFFICIAL
@pytest.mark.parametrize("split", ["train", "val"])
def test_official_safety_half_cheetah(split: str) -> None:
    result = official("SafetyHalfCheetah", split)
    assert len(result.obs) == result.rows and result.ends == 0
    assert float(result.obs.quantile(0.99)) < 5e-5 and float(result.obs.max()) < 1e-3
    assert float(result.reward.max()) < 2e-5


@OFFICIAL
def test_official_friction_hopper() -> None:
    result = official("RandomFrictionHopper", "val")
    assert len(result.obs) > 0.9 * result.rows and result.ends == 0
    assert float(result.obs.max()) < 2e-6 and float(result.reward.max()) < 1e-6


@pytest.mark.long
@OFFICIAL
def test_official_patients_over_whole_episodes() -> None:
    """From the first observation alone, and the hour of 24 that fits: readings, rewards, ends."""
    result = official("Simglucose", "train", trajectories=8)
    assert result.episodes and len(result.obs) == result.rows > 1500 and result.ends == 0
    assert float(result.obs.quantile(0.99)) < 1e-5 and float(result.obs.max()) < 5e-5
    assert float(result.reward.max()) < 5e-6
