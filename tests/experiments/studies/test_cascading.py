"""The study of cascading reinforcement learning: its shop, its learners, cells that are killed."""

from pathlib import Path

import numpy as np
import pytest

from algorithms.cascading import CascadingVIConfig, all_lists, list_value, optimum
from experiments.studies import cascading as study
from mbrl import checkpoint
from mbrl.errors import ConfigError

SMALL = {"episodes": 60, "items": 4, "size": 2, "horizon": 2}


def test_the_shop_is_a_shop_and_bait_bores() -> None:
    place = study.world(8)
    assert np.allclose(place.transition.sum(-1), 1) and (place.transition >= 0).all()
    assert place.reward.max() <= 1 and place.attraction.max() < 1
    policy, values = optimum(*place, 4, 3)
    assert all(a >= 4 for a in policy[0][0])  # nothing of the bait at the first step
    assert values[0, 1] > values[0, 0] > values[0, 2]


@pytest.mark.parametrize(
    "learner", [{}, {"learner": "stateless"}, {"learner": "lists"}, {"bonus": 0.0, "epsilon": 0.2}]
)
def test_a_killed_cell_ends_as_one_that_was_not(learner: dict, tmp_path: Path, monkeypatch) -> None:
    settings = study.DEFAULTS | SMALL | learner
    (tmp_path / "killed").mkdir()
    whole = study.measure(settings, 0, tmp_path / "whole")
    monkeypatch.setattr(study, "SAVE_EVERY", 25)
    save = checkpoint.save

    def kill(path: Path, content: dict) -> None:
        save(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", kill)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            study.measure(settings, 0, tmp_path / "killed")
    assert repr(study.measure(settings, 0, tmp_path / "killed")) == repr(whole)


def test_one_episode_has_no_slope(tmp_path: Path) -> None:
    values = study.measure(study.DEFAULTS | SMALL | {"episodes": 1}, 0, tmp_path).values
    assert np.isnan(values["slope"]) and values["regret"] > 0


def test_learners_lose_less_and_the_stateless_one_takes_bait(tmp_path: Path) -> None:
    settings = study.DEFAULTS | {"episodes": 1500, "bonus": 0.1}
    parts = {}
    for name in study.LEARNERS:
        parts[name] = study.measure(settings | {"learner": name}, 0, tmp_path / name).values
        assert parts[name]["regret"] > 0
    assert parts["cascading"]["regret"] < 0.5 * parts["stateless"]["regret"]
    assert parts["stateless"]["bait"] > 0.5 > parts["cascading"]["bait"]
    with pytest.raises(ConfigError, match="learner"):
        study.measure(settings | {"learner": "list"}, 0, tmp_path)


def test_lists_as_actions_find_the_best_list_of_a_bandit() -> None:
    """One step, counts of a million examinations of each list: the greedy list is the best one."""
    place = study.world(4)
    learner = study.ListsAsActions(3, 4, CascadingVIConfig(1, 2, 100, bonus=1e-3))
    for items in all_lists(4, 2):
        at = learner.place[items]
        learner.moved[:, at, 0] = 1e6
        for s in range(3):
            worth = list_value(place.attraction[s], place.reward[s], 0.0, items)
            learner.paid[s, at] = 1e6 * worth
    best = optimum(*place, 1, 2)[0][0]
    assert learner.plan()[0][0] == best
