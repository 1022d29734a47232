"""The study of `solve`: what it reports follows from the scores of the policies themselves."""

import contextlib

import pytest

from algorithms import ALGORITHMS
from experiments.studies import solve_choice

TINY = {"steps": 3, "updates": 20, "resamples": 2, "episodes": 4, "data": "reacher/expert"}


@pytest.mark.long
def test_the_score_chosen_is_that_of_one_of_the_portfolio(tmp_path):
    outcome = solve_choice.measure(solve_choice.DEFAULTS | TINY, 0, tmp_path)
    v, curves = outcome.values, outcome.curves
    names = ["bc", "iql", "td3_bc", "edac", "shac"]
    scores = [v[name] for name in names]
    assert curves["score"] == scores and sum(curves["chosen"]) == 1
    assert v["chosen"] == scores[curves["chosen"].index(1.0)]
    assert v["best"] == max(scores) and v["regret"] == pytest.approx(max(scores) - v["chosen"])
    assert len(curves["halted_low"]) in (0, 5)  # none where fitted Q decided


class Stop(Exception): ...


def config_of(name, own, tmp_path, monkeypatch, whole=True):
    """The config that the study trains an algorithm with, and its outcome (not `whole`: none)."""
    seen = {}
    algorithm, kind = ALGORITHMS[name]

    class Spy(algorithm):
        def __init__(self, spec, config, *, seed):
            seen["config"] = config
            super().__init__(spec, config, seed=seed)

        def fit(self, *a, **k):
            if not whole:
                raise Stop
            return super().fit(*a, **k)

    monkeypatch.setitem(solve_choice.ALGORITHMS, name, (Spy, kind))
    outcome = None
    with contextlib.nullcontext() if whole else pytest.raises(Stop):
        outcome = solve_choice.measure(solve_choice.DEFAULTS | TINY | own, 0, tmp_path)
    return seen["config"], outcome


@pytest.mark.usefixtures("quick_halting_model")
def test_a_portfolio_of_ones_own_with_the_presets_of_files(tmp_path, monkeypatch):
    own = {"portfolio": {"bc": {"batch_size": 32}}, "presets": "log.csv"}
    config, outcome = config_of("bc", own, tmp_path, monkeypatch)
    assert outcome.curves["chosen"] == [1.0] and outcome.values["regret"] == 0
    assert config.batch_size == 32 and config.normalise_obs


@pytest.mark.usefixtures("quick_halting_model")
def test_a_log_of_no_task_has_learned_ends(tmp_path, monkeypatch):
    own = {"data": "invertedpendulum/random", "ends": "learned", "presets": "log.csv"}
    _, outcome = config_of("bc", own | {"portfolio": {"bc": {}}}, tmp_path, monkeypatch)
    assert outcome.values["fitted"] == outcome.values["chosen"] == outcome.values["bc"]
    assert config_of("shac", own, tmp_path, monkeypatch, False)[0].termination == "learned"


@pytest.mark.parametrize("presets", ["", "log.csv"])
def test_decays_are_as_long_as_in_solve(presets, tmp_path, monkeypatch):
    """IQL's rate falls to 0 over the updates that are made, as over those of a run."""
    own = {"portfolio": {"iql": {}}, "presets": presets}
    assert config_of("iql", own, tmp_path, monkeypatch, False)[0].decay_steps == 3
