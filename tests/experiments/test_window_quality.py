"""The study of generated windows: its errors against a loop in the task, and tiny measurements."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.studies import window_quality
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.networks import DeterministicPolicy
from mbrl.types import Dataset
from world_models import RolloutConfig, TrueDynamics, rollout

TINY = {
    "data": "pendulum/medium",
    "steps": 20,
    "episodes": 2,
    "length": 6,
    "windows": 8,
}


def test_errors_are_those_of_a_loop_in_the_task() -> None:
    """Windows of the true dynamics with known slips in their next observations."""
    task = tasks.make("Pendulum-v1")
    generator = torch.Generator().manual_seed(0)
    starts = task.observe(task.reset(4, generator))
    policy, clone = (DeterministicPolicy(task.spec, (8,), generator=generator) for _ in range(2))

    def act(obs: Tensor, generator: torch.Generator) -> Tensor:
        return policy(obs) + 0.1

    found = rollout(TrueDynamics(task), act, starts, RolloutConfig(horizon=5), generator)
    scale = torch.tensor([1.0, 2.0, 4.0])
    numbers, along = window_quality.quality(found, task, scale, policy, clone)
    assert numbers["one_step"] < 1e-8 and numbers["open"] < 1e-8 and numbers["possible"] == 1.0
    assert along["step"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    off = (found.action - policy.scale.to_task(policy.unit(found.obs))).abs().mean()
    assert float(off.detach()) > 0.01
    unit = policy.scale.to_unit(found.action)
    normal = torch.distributions.Normal(policy.unit(found.obs), 1.0)
    assert numbers["log_prob"] == pytest.approx(
        float(normal.log_prob(unit).sum(-1).mean().detach())
    )
    found.next_obs[:, 2, 2] += 0.8  # a slip of 0.2 deviations in one of three entries
    numbers, along = window_quality.quality(found, task, scale, policy, clone)
    assert along["one_step_at"][2] == pytest.approx(0.04 / 3, rel=1e-3)
    assert along["open_at"][2] == pytest.approx(0.04 / 3, rel=1e-3)
    assert numbers["one_step"] == pytest.approx(0.04 / 15, rel=1e-3)


@pytest.mark.parametrize("source", ["diffusion", "ensemble"])
def test_a_tiny_measurement(source: str, tmp_path: Path) -> None:
    model: dict[str, Any] = {"updates": 10, "width": 8, "levels": 2, "steps": 4}
    if source == "ensemble":
        model = {"members": 2, "elites": 2, "hidden": [8], "max_epochs": 1, "min_epochs": 1}
        model["weight_decay"] = [1e-5]
    settings = window_quality.DEFAULTS | TINY | {"source": source, "model": model}
    found = window_quality.measure(settings, 0, tmp_path)
    assert found.curves["weight"] == list(window_quality.WEIGHTS[source])
    assert set(found.values) == {
        "log_prob", "behaviour", "one_step", "open", "possible", "reward",
    }  # fmt: skip
    assert len(found.curves["open"]) == len(found.curves["weight"])
    record = {"values": found.values, "curves": found.curves}
    files = window_quality.draw({"pendulum, x": [record]}, tmp_path, "-1")
    assert len(files) == 4 and all(f.exists() for f in files)


@pytest.mark.parametrize("settings", [{"source": "x"}, {"length": 1}, {"windows": 0}])
def test_impossible_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        window_quality.measure(window_quality.DEFAULTS | settings, 0, tmp_path)


def test_a_policy_with_memory_is_in_no_mixture(pendulum: Dataset, tmp_path: Path) -> None:
    class Remembering:
        def proceed(self) -> None: ...
        def heard(self) -> None: ...

    settings = window_quality.DEFAULTS | TINY | {"source": "ensemble", "algorithm": "neubay"}
    with pytest.raises(ConfigError, match="neubay has a memory"):
        window_quality.source(settings, pendulum, Remembering(), None, 0, tmp_path)
