"""The study of rollout lengths: discounted returns by hand, values at histories, a tiny run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import algorithms
from algorithms.evaluation import recurrent_diagnosis
from experiments import studies
from experiments.runs import folders, jobs, pool
from experiments.runs.study import create
from experiments.studies import horizons
from experiments.tables import conclusions, plan, records, summary
from mbrl import data
from mbrl.types import Trajectories

pytestmark = pytest.mark.usefixtures("short_episodes")

SMALL = {
    "learner": {"memory": {"width": 8, "states": 4}, "hidden": [8], "critics": 2, "tape": 64},
    "model": {"members": 3, "elites": 2, "hidden": [8], "max_epochs": 2},
    "rollouts": {"parallel": 4, "capacity": 5000, "cap": 20},
}


def test_discounted_returns_by_hand() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    result = Trajectories(
        obs=torch.zeros(2, 3, 1),
        action=torch.zeros(2, 3, 1),
        reward=torch.tensor([[1.0, 2.0, 3.0], [5.0, 9.0, 9.0]]),
        next_obs=torch.zeros(2, 3, 1),
        terminated=torch.tensor([[False, False, True], [True, False, False]]),
        truncated=torch.zeros(2, 3, dtype=torch.bool),
        mask=mask,
    )
    expected = [1 + 0.5 * (2 + 10) + 0.25 * (3 + 10), 5]
    endless = torch.tensor(torch.inf)
    got = recurrent_diagnosis.soft_return(result, (-endless, endless), torch.tensor(10.0), 0.5)
    np.testing.assert_allclose(got.numpy(), expected)


def test_a_tiny_run_and_its_values(tmp_path: Path) -> None:
    settings = horizons.DEFAULTS | {
        "data": "pendulum/medium-replay", "config": SMALL, "steps": 20, "episodes": 2,
    }  # fmt: skip
    result = horizons.measure(settings, 0, tmp_path)
    assert 0 < result.values["length"] <= 20
    assert result.values["gap"] == pytest.approx(result.values["q"] - result.values["earned"])
    assert -2000 < result.values["earned"] < 100  # the pendulum's rewards are in [-17, 0]
    again = horizons.measure(settings, 0, tmp_path)
    assert again == result
    agent = algorithms.load(tmp_path / "run" / "checkpoint.pt")
    agent.prepare(data.load("pendulum/medium-replay"), lambda metrics: None)
    tape = agent.source.recorded.tape(torch.arange(4), torch.arange(4) == 0)
    q = recurrent_diagnosis.values(agent.learner, tape, torch.zeros(4, 1)).mean(0)[[0, 3]]
    rows = agent.source.recorded.rows
    x = torch.zeros(4, agent.spec.obs_dim + 2)
    x[:, :3] = rows[:4, :3]
    x[1:, 3:] = rows[:3, 3:5]
    critic, state = agent.learner.critic, torch.zeros(1, agent.learner.critic.encoder.state_size)
    for t in range(4):
        features, state = critic.encoder.step(x[t : t + 1], state)
        if t in (0, 3):
            one = critic.values(features, torch.zeros(1, 1)).mean()
            torch.testing.assert_close(q[0 if t == 0 else 1], one, rtol=1e-3, atol=1e-4)
    record = {"values": result.values, "curves": result.curves}
    assert len(horizons.draw({"pendulum, cap 20": [record]}, tmp_path, "-1")) == 1
    files = horizons.draw({"pendulum, cap 20": [record, record]}, tmp_path, "")
    assert len(files) == 2
    assert all(f.exists() and f.with_suffix(".csv").exists() for f in files)


@pytest.mark.long
def test_cells_with_the_same_training_share_it(tmp_path: Path) -> None:
    """Two studies of the same agent: one model, one run, and what each would have found alone."""
    common = {
        "data": "swingup/medium-replay", "config": SMALL, "steps": 20, "episodes": 2,
    }  # fmt: skip
    calls = {
        "horizons": common,
        "adaptation": common | {"values": [0.3, 0.5, 0.7], "starts": 2},
    }
    home, cells = tmp_path / "home", [tmp_path / name for name in calls]
    for cell, (name, values) in zip(cells, calls.items(), strict=True):
        create(name, values, 0, cell, home)
    fit, run, *rest = jobs.in_order(cells)
    assert (
        rest == cells
        and jobs.job_in(run).needs() == [fit]
        and jobs.job_in(cells[1]).needs() == [run]
    )
    for job in (fit, run):
        jobs.resume(job, quiet=True)
    output = [(job / "result.json").read_text() for job in (fit, run)]
    for cell in cells:
        jobs.resume(cell, quiet=True)
    assert output == [(job / "result.json").read_text() for job in (fit, run)]
    for cell, (study, values) in zip(cells, calls.items(), strict=True):
        assert not (cell / "run").exists()
        alone = studies.module(study).measure(studies.settings_of(study, values), 0, tmp_path / "a")
        key: dict[str, Any] = {"study": study}
        record = records.of_study(key, cell)
        assert record["values"] == pytest.approx(alone.values, rel=1e-9)
        assert record["shared_seconds"] == pytest.approx(jobs.seconds(fit) + jobs.seconds(run))


@pytest.mark.long
def test_a_cell_whose_model_cannot_be_fitted_fails(tmp_path: Path) -> None:
    values = {"data": "pendulum/medium-replay", "config": SMALL, "steps": 20, "episodes": 2}
    create("horizons", values, 0, tmp_path / "cell", tmp_path / "home")
    fit, run, cell = jobs.in_order([tmp_path / "cell"])
    described = folders.read_json(fit / "config.json")
    described["fit"]["data"] = "pendulum/nowhere"
    folders.write_json(fit / "config.json", described)
    failed = pool.run_all([fit, run, cell], 1)
    assert list(failed) == [fit, run, cell]
    for job, first in ((run, fit), (cell, run)):
        assert failed[job] == f"a job that it needs failed: {first}"


def test_trends_are_rank_correlations_with_the_number_of_the_row() -> None:
    """Against scipy; rows without a number and panels of fewer than three are left out."""
    labels = {
        "hopper, zeta = 0.9": 0.9, "hopper, zeta = 0.99": 0.99, "hopper, zeta = 1": 1.0,
        "member, kept (5 of 8)": 5, "member, kept (20 of 32)": 20, "member, kept (60 of 96)": 60,
        "member, drawn anew each step": None, "cap, 1 step": 1, "cap, 5 steps": 5,
        "alike, 1": 1, "alike, 2": 2, "alike, 3": 3,
    }  # fmt: skip
    rng, columns = np.random.default_rng(0), (plan.Column("score"),)
    block = plan.Block("", tuple(plan.Row(k) for k in labels), columns, (0, 1), "horizons")
    entries = {
        (label, "score"): summary.Entry(
            records=[
                {
                    "values": {
                        "length": 1.0 if "alike" in label else 10 * (x or 0) + seed / 9,
                        "gap": rng.normal(),
                        "score": -seed,
                    }
                }
                for seed in range(2)
            ]
        )
        for label, x in labels.items()
    }
    made = plan.Plan("x", "x", (block,), conclusions=("trends",))
    lines = conclusions.lines(summary.Summary(made, (summary.BlockSummary(block, entries),)))
    assert [line.split(",")[0] for line in lines] == ["hopper", "member", "alike"]
    assert "length alike in all; gap" in lines[2]
    chosen = [(x, r["values"]) for (k, _), e in entries.items() if "kept" in k
              for x in [labels[k]] for r in e.records]  # fmt: skip
    x = [a for a, _ in chosen]
    for name in ("length", "gap", "score"):
        rho = stats.spearmanr(x, [v[name] for _, v in chosen]).statistic
        assert f"{name} {rho:.2f} [" in lines[1]
    assert "over 6 runs of 3" in lines[1] and "], up; gap" in lines[1]
    assert lines[1].endswith("no order.")
