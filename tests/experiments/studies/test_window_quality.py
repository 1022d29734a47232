"""The study of generated windows: its errors against a loop in the task, and tiny measurements."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.studies import window_quality
from experiments.tables import conclusions, plan, summary
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.networks import DeterministicPolicy
from mbrl.types import Dataset
from world_models import RolloutConfig, TrueDynamics, rollout
from world_models.windows import Tokens

pytestmark = pytest.mark.usefixtures("short_episodes")

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

    result = rollout(TrueDynamics(task), act, starts, RolloutConfig(horizon=5), generator)
    scale = torch.tensor([1.0, 2.0, 4.0])
    numbers, along = window_quality.quality(result, task, scale, policy, clone)
    assert numbers["one_step"] < 1e-8 and numbers["open"] < 1e-8 and numbers["possible"] == 1.0
    assert along["step"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    off = (result.action - policy.scale.to_task(policy.unit(result.obs))).abs().mean()
    assert float(off.detach()) > 0.01
    unit = policy.scale.to_unit(result.action)
    normal = torch.distributions.Normal(policy.unit(result.obs), 1.0)
    assert numbers["log_prob"] == pytest.approx(
        float(normal.log_prob(unit).sum(-1).mean().detach())
    )
    result.next_obs[:, 2, 2] += 0.8  # a slip of 0.2 deviations in one of three entries
    numbers, along = window_quality.quality(result, task, scale, policy, clone)
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
    result = window_quality.measure(settings, 0, tmp_path)
    assert result.curves["weight"] == list(window_quality.WEIGHTS[source])
    assert set(result.values) == {
        "log_prob", "behaviour", "one_step", "open", "possible", "reward",
    }  # fmt: skip
    assert len(result.curves["open"]) == len(result.curves["weight"])
    record = {"values": result.values, "curves": result.curves}
    files = window_quality.draw({"pendulum, x": [record]}, tmp_path, "-1")
    assert len(files) == 6 and all(f.exists() for f in files)


def record(seed: int, log_prob: list[float], logs: list[float]) -> dict[str, Any]:
    """Errors with these logarithms at these likelihoods, at weights 0, 1, 2."""
    error = [10.0**y for y in logs]
    weight = [float(w) for w in range(len(logs))]
    curves = {"weight": weight, "log_prob": log_prob, "behaviour": [-p for p in log_prob]}
    return {"key": {"seed": seed}, "curves": curves | {"one_step": error, "open": error}}


def test_errors_are_compared_at_equal_likelihood() -> None:
    """Both reach likelihoods 0 to 2, where one line rises from -2 to -1 and the other is -3.5; the
    mean difference is 2."""
    a = record(0, [2.0, -1.0, 0.0], [-1.0, -5.0, -2.0])
    b = record(0, [0.0, 1.0, 2.0, 4.0], [-3.5, -3.5, -3.5, 0.0])
    assert window_quality.at_equal_likelihood(a, b, "open") == pytest.approx(2.0, abs=1e-9)
    assert window_quality.at_equal_likelihood(b, a, "open") == pytest.approx(-2.0, abs=1e-9)
    apart = record(0, [5.0, 6.0, 7.0], [0.0, 0.0, 0.0])
    assert np.isnan(window_quality.at_equal_likelihood(a, apart, "open"))
    nearest = window_quality.at_nearest_likelihood
    apart = record(0, [6.0, 5.0, 7.0], [0.5, 0.0, -1.0])
    assert nearest(a, apart, "open") == pytest.approx(-1.0 - 0.0, abs=1e-9)
    assert nearest(apart, a, "open") == pytest.approx(0.0 + 1.0, abs=1e-9)
    assert np.isnan(nearest(a, b, "open"))


def test_what_is_said_of_windows() -> None:
    """Seeds are compared in pairs, a row of ten times the budget with the same ensemble."""
    up = [0.0, 1.0, 2.0]
    entries = {
        "t 8, diffusion": [record(s, up, [-1.0, -1.0 + 0.1 * (s + 1), -1.0]) for s in (0, 1)],
        "t 8, ensemble": [record(s, up, [-2.0, -2.0 + 0.1 * (s + 1), -2.0]) for s in (1, 0)],
        "t 8, diffusion, ten times": [record(0, up, [-2.5, -2.4, -2.7])],
    }
    blocks = []
    for labels in (("t 8, diffusion", "t 8, ensemble"), ("t 8, diffusion, ten times",)):
        rows = tuple(plan.Row(label) for label in labels)
        block = plan.Block("", rows, (plan.Column("open"),), (0, 1), "window_quality")
        known = {(label, "open"): summary.Entry(records=entries[label]) for label in labels}
        blocks.append(summary.BlockSummary(block, known))
    made = plan.Plan("x", "x", tuple(b.block for b in blocks), conclusions=("windows",))
    lines = conclusions.lines(summary.Summary(made, tuple(blocks)))
    assert lines[0] == (
        "t 8, diffusion, at equal likelihood: one-step error 10 [10, 10] times the ensemble's, "
        "open-loop error 10 [10, 10] times the ensemble's."
    )
    assert lines[1].startswith("t 8, diffusion, rank correlation with the weight: log_prob 1.00, ")
    assert "behaviour -1.00" in lines[1]
    assert "one-step error 0.28 times the ensemble's" in lines[2] and len(lines) == 4
    # One of two seeds reaches no likelihood of the ensemble's.
    below = record(1, [-3.0, -2.0, -1.0], [-1.0, -1.5, -1.7])
    entries["t 8, diffusion"][1] = below
    known = {(label, "open"): summary.Entry(records=r) for label, r in entries.items()}
    first = summary.BlockSummary(blocks[0].block, known)
    lines = conclusions.windows(summary.Summary(made, (first,)))
    assert lines[0].startswith(
        "t 8, diffusion, at equal likelihood (1 of 2 seeds): one-step error 10 "
    )
    assert lines[1] == (
        "t 8, diffusion, where likelihoods that never meet come nearest (1 of 2 seeds): one-step "
        "error 2 times the ensemble's, open-loop error 2 times the ensemble's."
    )


@pytest.mark.parametrize("settings", [{"source": "x"}, {"length": 1}, {"windows": 0}])
def test_impossible_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        window_quality.measure(window_quality.DEFAULTS | settings, 0, tmp_path)


def test_a_policy_with_memory_is_in_no_mixture(pendulum: Dataset, tmp_path: Path) -> None:
    class Remembering:
        def step(self) -> None: ...
        def observe_reward(self) -> None: ...

    settings = window_quality.DEFAULTS | TINY | {"source": "ensemble", "algorithm": "neubay"}
    with pytest.raises(ConfigError, match="neubay has a memory"):
        window_quality.source(settings, pendulum, Remembering(), None, 0, tmp_path)


def test_the_last_token_is_no_step_even_where_it_ends_the_task() -> None:
    """Its next observation is made up: its own."""
    spec = tasks.make("InvertedPendulum-v5").spec
    tokens = Tokens(spec)
    x = torch.zeros(1, 5, tokens.size)
    x[0, -1, -1] = 10.0
    whole = tokens.trajectories(x)
    steps = window_quality.steps_of(whole)
    assert whole.terminated[0, -1] and whole.mask.all()
    assert steps.mask.shape == (1, 4) and steps.mask.all() and not steps.terminated.any()
