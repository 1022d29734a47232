"""The study of known behaviour policies: ratios against scipy, values against sampled means, and
the estimate of a policy by its own episodes."""

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.studies import evaluation_coverage
from experiments.studies import known_behaviour as study
from mbrl import tasks
from mbrl.errors import ConfigError
from mbrl.tasks import Task

TINY = {"episodes": 30, "steps": 5, "sets": 4, "truth": 200}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Two small actors under the names of Pipeline's published ones."""
    folder = tmp_path / "neorl2" / "behaviour-policies"
    folder.mkdir(parents=True)
    for number in (1, 2):
        g = np.random.default_rng(number)
        shapes = {"preprocess.model.model.0": (8, 52), "preprocess.model.model.2": (8, 8)}
        arrays = {}
        for name, shape in (shapes | {"mu.model.0": (1, 8)}).items():
            arrays[f"{name}.weight"] = 0.05 * g.standard_normal(shape)
            arrays[f"{name}.bias"] = 0.1 * g.standard_normal(shape[0])
        np.savez(folder / f"Pipeline-high-{number}.npz", **arrays)
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    return folder


def first(obs):
    return 0.1 * torch.tanh(obs[:, :1] / 100)


def second(obs):
    return 0.3 - 0.2 * torch.tanh(obs[:, :1] / 50)


@pytest.fixture(scope="module")
def episodes() -> study.Episodes:
    task: Task = tasks.make("Pipeline-v0")
    return study.simulate(task, first, 0.3, 40, 6, torch.Generator().manual_seed(0))


def test_ratios_are_those_of_normal_densities(episodes):
    ratio = study.log_ratio(episodes, first, second, 0.3)
    for b, t in ((0, 0), (7, 3), (39, 5)):
        obs, action = episodes.obs[t, b : b + 1], float(episodes.action[t, b, 0])
        wanted = stats.norm.logpdf(action, float(second(obs)), 0.3)
        wanted -= stats.norm.logpdf(action, float(first(obs)), 0.3)
        assert float(ratio[b, t]) == pytest.approx(wanted, abs=1e-4)


def test_the_value_of_a_state_is_the_mean_over_actions(episodes):
    g = torch.Generator().manual_seed(1)
    values = study.Values(episodes, second, 0.3, g)
    _, v = values.of(episodes)
    obs, weights = episodes.obs[2, :5], values.weights[2]
    draws = second(obs) + 0.3 * torch.randn(20_000, 5, 1, generator=g)
    each = torch.stack([values.features(obs, a) @ weights for a in draws])
    error = 5 * each.std(0) / 20_000**0.5 + 1e-6
    assert bool(((each.mean(0) - v[:5, 2]).abs() < error).all())


@pytest.mark.parametrize("study", [study, evaluation_coverage])
@pytest.mark.parametrize(
    "settings", [{"estimator": "regression"}, {"confidence": 1.0}, {"sets": 0}, {"episodes": 0}]
)
def test_impossible_settings_are_refused_before_any_episode(settings, study, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "simulate", lambda *a: pytest.fail("episodes were simulated"))
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=next(iter(settings))):
        study.measure(study.DEFAULTS | settings, 0, tmp_path)


def test_what_is_reported_and_refused(published, tmp_path):
    outcome = study.measure(study.DEFAULTS | TINY, 0, tmp_path)
    v = outcome.values
    assert v["nominal"] == 0.95 and 0 <= v["covered"] <= 1 and v["width"] > 0
    assert v["doubt"] == pytest.approx(200**-0.5)
    same = study.DEFAULTS | TINY | {"distance": 0.0, "estimator": "importance_sampling"}
    assert study.measure(same, 0, tmp_path).values["effective"] == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="target is 2; Pipeline has policies 0 to 1"):
        study.measure(study.DEFAULTS | TINY | {"target": 2}, 0, tmp_path)
    with pytest.raises(ConfigError, match="holds 0 policies DMSD-high"):
        study.measure(study.DEFAULTS | TINY | {"task": "DMSD"}, 0, tmp_path)
