"""The study of penalties against true errors: correlations, the rows of each place, the figure."""

import csv
import math

import numpy as np
import pytest
import torch
from scipy import stats

from experiments import studies
from experiments.studies import penalty_calibration as study
from experiments.tables import plan
from mbrl.data import load
from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.types import Transitions
from world_models import Prediction
from world_models.disagreement import MEASURES

TINY = {
    "model": {"members": 3, "elites": 2, "hidden": [8], "min_epochs": 1, "max_epochs": 2},
    "starts": 40,
    "steps": 3,
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_rows(count: int = 50) -> Transitions:
    return load("pendulum/random").transitions.select(torch.arange(count))


class Oracle:
    """Two members that are both off by a chosen amount [N] in every target, and say so."""

    def __init__(self, rows: Transitions, error: torch.Tensor) -> None:
        self.truth = torch.cat([rows.next_obs - rows.obs, rows.reward[:, None]], 1)
        self.error = error

    def targets(self, rows: Transitions) -> torch.Tensor:
        return self.truth

    def members_predict(self, obs, action):
        mean = (self.truth + self.error[:, None]).expand(2, -1, -1)
        return mean, self.error.square()[None, :, None].expand_as(mean)


def test_a_measure_that_is_the_error_correlates_perfectly(monkeypatch) -> None:
    rows = some_rows()
    said = {
        "oracle": lambda mean, variance: variance[0, :, 0].sqrt(),
        "liar": lambda mean, variance: -variance[0, :, 0].sqrt(),
        "cubed": lambda mean, variance: variance[0, :, 0] ** 1.5,
        "mute": lambda mean, variance: torch.zeros(mean.shape[1]),
    }
    monkeypatch.setattr(study, "MEASURES", said)
    error = torch.rand(len(rows), generator=generator()) + 0.1
    result = study.compare(Oracle(rows, error), rows)
    assert result["oracle"] == pytest.approx(1.0) and result["liar"] == pytest.approx(-1.0)
    assert result["oracle/pearson"] == pytest.approx(1.0, abs=1e-4)
    assert result["cubed"] == pytest.approx(1.0) and result["cubed/pearson"] < 0.99
    assert math.isnan(result["mute"]) and math.isnan(result["mute/pearson"])
    assert result["error"] == pytest.approx(float(error.double().quantile(0.5)), abs=1e-4)
    assert result["rows"] == len(rows)


def test_the_error_is_that_of_the_members_mean_in_target_units(tmp_path) -> None:
    """Row by row in Python for a fitted model."""
    data = load("pendulum/medium-replay")
    settings = studies.settings_of("penalty_calibration", TINY)
    made = study.ensemble_of_part(data.spec, settings, 0, tmp_path, None)
    rows = some_rows(30)
    result = study.compare(made, rows)
    errors, levels = [], []
    for i in range(len(rows)):
        mean, variance = made.members_predict(rows.obs[i : i + 1], rows.action[i : i + 1])
        change = [*(rows.next_obs[i] - rows.obs[i]).tolist(), float(rows.reward[i])]
        scale, shift = made.target_scale.std.tolist(), made.target_scale.mean.tolist()
        gaps = [
            (c - m) / s - sum(p) / len(p)
            for c, m, s, p in zip(change, shift, scale, mean[:, 0].T.tolist(), strict=True)
        ]
        errors.append(math.sqrt(sum(g * g for g in gaps) / len(gaps)))
        levels.append(max(math.sqrt(sum(v)) for v in variance[:, 0].tolist()))
    assert result["error"] == pytest.approx(np.median(errors), rel=1e-4)
    assert result["max_aleatoric"] == pytest.approx(stats.spearmanr(levels, errors)[0], abs=1e-6)
    pearson = stats.pearsonr(levels, errors)[0]
    assert result["max_aleatoric/pearson"] == pytest.approx(pearson, abs=1e-5)


def test_uniform_rows_are_true_steps_that_end_their_rollouts() -> None:
    """Each row is a step of the task and ends its episode: Hopper falls early in some."""
    task = make("Hopper-v5")
    starts = task.observe(task.reset(6, generator(1)))
    result = study.after_uniform_actions(task, starts, 40, generator())
    assert len(result) == 6 and bool(result.terminated.any())
    for i in range(6):
        state, possible = task.state_from_obs(result.obs[i : i + 1])
        assert bool(possible)
        step = task.step(state, result.action[i : i + 1])
        torch.testing.assert_close(step.obs[0], result.next_obs[i], rtol=1e-4, atol=1e-4)
        assert bool(step.terminated[0]) == bool(result.terminated[i])
    assert bool((result.terminated | result.truncated).all())


class Wrong:
    """A model of the pendulum that doubles cosine and sine, and leaves some speeds impossible."""

    num_members = 1

    def predict(self, obs, action, generator, *, member=None, state=None, measure=None):
        next_obs = torch.cat([2 * obs[:, :2], obs[:, 2:] + 3], dim=1)
        ended = torch.zeros(len(obs), dtype=torch.bool)
        return Prediction(next_obs, torch.zeros(len(obs)), ended)


def test_imagined_rows_are_what_the_task_does_at_imagined_states() -> None:
    task = make("Pendulum-v1")
    angle, speed = torch.tensor([0.3, -2.0, 3.0]), torch.tensor([0.0, 1.0, 4.0])
    starts = torch.stack([angle.cos(), angle.sin(), speed], dim=1)
    rows = study.after_imagined_steps(Wrong(), task, starts, 3, generator())
    assert len(rows) == 2  # 4 + 3 + 3 is beyond the limit of 8
    for i in range(2):
        t, w, u = float(angle[i]), float(speed[i]) + 6, float(rows.action[i])
        cost = math.remainder(t, 2 * math.pi) ** 2 + 0.1 * w**2 + 0.001 * u**2
        faster = min(max(w + 0.05 * (15 * math.sin(t) + 3 * u), -8), 8)
        after = t + 0.05 * faster
        assert rows.obs[i].tolist() == pytest.approx([math.cos(t), math.sin(t), w], abs=1e-5)
        wanted = [math.cos(after), math.sin(after), faster]
        assert rows.next_obs[i].tolist() == pytest.approx(wanted, abs=1e-4)
        assert float(rows.reward[i]) == pytest.approx(-cost, abs=1e-4)


@pytest.mark.parametrize("task_id", sorted(study.CIRCLES))
def test_circles_are_angles(task_id: str) -> None:
    """Real observations lie on them already, scaled ones come back, and no pair is left out."""
    task = make(task_id)
    obs = task.observe(task.reset(20, generator()))
    pairs = study.CIRCLES[task_id]
    torch.testing.assert_close(study.on_circles(obs, pairs), obs)
    bent = obs.clone()
    for cosine, sine in pairs:
        bent[:, [cosine, sine]] *= 3.0
    assert not bool(task.state_from_obs(bent)[1].any())
    torch.testing.assert_close(study.on_circles(bent, pairs), obs)


def test_the_table_asks_for_every_measure_in_every_place() -> None:
    blocks = plan.load("penalty-calibration").blocks
    asked = [column.label for block in blocks for column in block.columns]
    wanted = [*MEASURES, "error"]
    assert asked == [f"{place}/{name}" for place in study.PLACES for name in wanted]


def test_the_study_measures_continues_and_draws(tmp_path, monkeypatch) -> None:
    settings = studies.settings_of("penalty_calibration", TINY)
    result = study.measure(settings, 0, tmp_path)
    for place in study.PLACES:
        for name in MEASURES:
            assert -1 <= result.values[f"{place}/{name}"] <= 1
            assert -1 <= result.values[f"{place}/{name}/pearson"] <= 1
    assert result.values["uniform/rows"] == 40 and result.values["held_out/rows"] == 800
    monkeypatch.setattr(study.EnsembleDynamics, "fit", None)  # the fit is there already
    assert study.measure(settings, 0, tmp_path).values == result.values
    other = {name: value / 2 for name, value in result.values.items()}
    records = [{"values": result.values}, {"values": other}]
    assert study.draw({"tiny": records}, tmp_path, "-2") == []
    (path,) = study.draw({"tiny": records}, tmp_path, "")
    assert path.stat().st_size > 5000
    rows = list(csv.DictReader(path.with_suffix(".csv").open()))
    assert len(rows) == 2 * len(study.PLACES) * len(MEASURES)
    for row in rows:
        kind = "" if row["correlation"] == "spearman" else "/pearson"
        value = result.values[f"{row['place']}/{row['measure']}{kind}"]
        assert float(row["mean"]) == pytest.approx(0.75 * value, rel=1e-4)
    with pytest.raises(ConfigError, match="test_share is 1"):
        study.measure(settings | {"test_share": 1}, 0, tmp_path)
