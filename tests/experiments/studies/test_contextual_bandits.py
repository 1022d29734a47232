"""Studies of contextual bandits: what is measured, and cells that are killed and go on."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.studies import bandit_replay, label_sets
from experiments.studies import contextual_bandits as study
from mbrl import checkpoint
from mbrl.errors import ConfigError, MissingDataError
from tests.experiments.studies.test_open_bandit import write

NETWORK = {"oracle": {"hidden": [8], "batch_size": 8}}


def cell(**settings) -> dict:
    return study.DEFAULTS | {"problem": "payments", "rounds": 60, "config": NETWORK} | settings


@pytest.mark.parametrize("late", [{}, {"delay": 7}, {"batch": 10}])
@pytest.mark.parametrize("name", ["squarecb", "bagging"])
def test_a_killed_cell_ends_as_one_that_was_not(name: str, late: dict, tmp_path, monkeypatch):
    settings = cell(algorithm=name, **late)
    whole = study.measure(settings, 3, tmp_path / "whole")
    monkeypatch.setattr(study, "SAVE_EVERY", 25)

    def kill(path: Path, content: dict) -> None:
        save(path, content)
        raise KeyboardInterrupt

    save = checkpoint.save
    (tmp_path / "killed").mkdir()
    monkeypatch.setattr(checkpoint, "save", kill)
    for _ in range(2):  # after 25 and after 50 rounds
        with pytest.raises(KeyboardInterrupt):
            study.measure(settings, 3, tmp_path / "killed")
    resumed = study.measure(settings, 3, tmp_path / "killed")
    assert repr(resumed) == repr(whole)


@pytest.mark.parametrize(
    "other", [{"problem": "payments"}, {"algorithm": "epsilon_greedy"}, {"config": NETWORK}]
)
def test_a_bound_that_does_not_hold_is_not_given(other: dict, tmp_path: Path) -> None:
    ridge = {"oracle": {"kind": "ridge"}}
    right = cell(problem="linear", config=ridge, theorem_gamma=True)
    assert study.measure(right, 0, tmp_path).values["bound"] > 0
    with pytest.raises(ConfigError, match="its bound is that of squarecb with ridge"):
        study.measure(right | other, 0, tmp_path)


def test_regret_is_exact_and_sums(tmp_path: Path) -> None:
    settings = cell(batch=20)
    problem, rounds = study.prepare(settings, 0)
    learner = study.make_learner(settings, problem, 60, 0)
    action, reward, predicted = study.play(
        learner, rounds, study.DelayedFeedback(0, 20), 0, tmp_path / "x.pt"
    )
    expected = rounds.expected.double()
    regret = sum(float(expected[t].max() - expected[t, action[t]]) for t in range(60))
    outcome = study.measure(settings, 0, tmp_path)
    assert outcome.values["regret"] == pytest.approx(regret, rel=1e-5)
    assert outcome.values["loss"] == pytest.approx(1 - float(reward.mean()), rel=1e-5)
    assert outcome.curves["regret"][-1] == pytest.approx(regret, abs=1e-3)
    mine = expected.gather(1, action[:, None])[:, 0]
    regression = sum(
        float((predicted[t] - reward[t]) ** 2 - (mine[t] - reward[t]) ** 2) for t in range(60)
    )
    assert outcome.values["regression"] == pytest.approx(regression, rel=1e-4)
    best = expected.max(1).values
    shares = [100 * float(mine[i : i + 20].sum() / best[i : i + 20].sum()) for i in (0, 20, 40)]
    assert outcome.curves["generation"] == pytest.approx(shares, abs=1e-3)
    assert outcome.values["swing"] == pytest.approx(abs(shares[2] - shares[1]), rel=1e-3)


def test_all_learners_meet_the_same_rounds_and_the_same_luck() -> None:
    one, other = (study.prepare(cell(algorithm=a), 5)[1] for a in ("squarecb", "fastcb"))
    assert torch.equal(one.context, other.context)
    assert torch.equal(one.success, other.success)


def test_slopes_of_powers() -> None:
    t = np.arange(1, 5001)
    assert study.slope(t**0.5) == pytest.approx(0.5) and study.slope(3.0 * t) == pytest.approx(1.0)
    assert np.isnan(study.slope(np.zeros(100)))


def test_mistakes_are_named(tmp_path: Path) -> None:
    for settings, message in (
        ({"problem": "paymnets"}, "payments"),
        ({"algorithm": "square_cb"}, "squarecb"),
        ({"rounds": 0}, "rounds is 0"),
        ({"config": {"gama_scale": 1.0}}, "gamma_scale"),
    ):
        with pytest.raises(ConfigError, match=message):
            study.measure(cell(**settings), 0, tmp_path)


def test_label_sets_are_read_and_standardised(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    for folder in ("sklearn", "uci-bandit"):
        (tmp_path / folder).mkdir()
    (tmp_path / "sklearn/iris.csv").write_text("3,2,a,b\n1.0,5.0,0\n3.0,5.0,1\n5.0,5.0,1\n")
    with gzip.open(tmp_path / "sklearn/digits.csv.gz", "wt") as file:
        file.write("0.0,2.0,7.0\n1.0,2.0,3.0\n")
    (tmp_path / "uci-bandit/letter-recognition.data").write_text("B,1,2\nA,3,2\n")
    (tmp_path / "uci-bandit/ecoli.data").write_text("X_Y  0.1  0.2  cp\nZ_Y  0.3  0.2  im\n")
    features, label = label_sets.read("iris")
    assert label.tolist() == [0, 1, 1] and np.allclose(features.mean(0), 0)
    assert np.allclose(features.std(0), [1, 0])  # a constant stays 0
    assert label_sets.read("digits")[1].tolist() == [1, 0]
    features, label = label_sets.read("letter")
    assert label.tolist() == [1, 0] and features[:, 0].tolist() == [-1, 1]
    features, label = label_sets.read("ecoli")
    assert features.shape == (2, 2) and label.tolist() == [0, 1]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDataError, match="pip download --no-deps scikit-learn"):
        label_sets.read("wine")
    with pytest.raises(ConfigError, match=r"'wnie'.*wine"):
        label_sets.read("wnie")


def test_the_replay_of_a_small_shop(tmp_path: Path, monkeypatch) -> None:
    """Item 0 is always clicked, item 1 never: what is learned from the log finds it out."""
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    write(tmp_path, clicks=(1, 0))
    ridge = {"oracle": {"kind": "ridge", "ridge": 0.1}, "gamma_scale": 50.0}
    settings = bandit_replay.DEFAULTS | {"campaign": "all", "config": ridge, "batch": 2}
    values = bandit_replay.measure(settings, 0, tmp_path).values
    assert values["logged"] == 500 and values["snipw"] > 800 and values["replayed"] > 700
    assert 0 < values["accepted"] <= 24 and 0 < values["uses"] <= 1
    even = settings | {"algorithm": "uniform", "config": {}}
    uniform = bandit_replay.measure(even, 0, tmp_path).values
    assert uniform["snipw"] == 500 and uniform["uses"] == 1
    with pytest.raises(ConfigError, match="campaign"):
        bandit_replay.measure(settings | {"campaign": "kids"}, 0, tmp_path)
