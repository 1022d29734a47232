"""The study of `solve`: what it reports follows from the scores of the policies themselves."""

import pytest

from algorithms import ALGORITHMS, BC, IQL
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


def test_a_portfolio_of_ones_own_with_the_presets_of_files(tmp_path, monkeypatch):
    seen = {}

    class Spy(BC):
        def __init__(self, spec, config, *, seed):
            seen["config"] = config
            super().__init__(spec, config, seed=seed)

    monkeypatch.setitem(solve_choice.ALGORITHMS, "bc", (Spy, ALGORITHMS["bc"][1]))
    own = {"portfolio": {"bc": {"batch_size": 32}}, "presets": "log.csv"}
    outcome = solve_choice.measure(solve_choice.DEFAULTS | TINY | own, 0, tmp_path)
    assert outcome.curves["chosen"] == [1.0] and outcome.values["regret"] == 0
    assert seen["config"].batch_size == 32 and seen["config"].normalise_obs


@pytest.mark.parametrize("presets", ["", "log.csv"])
def test_decays_are_as_long_as_in_solve(presets, tmp_path, monkeypatch):
    """IQL's rate falls to 0 over the updates that are made, as over those of a run."""
    seen = {}

    class Spy(IQL):
        def __init__(self, spec, config, *, seed):
            seen["config"] = config
            super().__init__(spec, config, seed=seed)

    monkeypatch.setitem(solve_choice.ALGORITHMS, "iql", (Spy, ALGORITHMS["iql"][1]))
    own = {"portfolio": {"iql": {}}, "presets": presets}
    solve_choice.measure(solve_choice.DEFAULTS | TINY | own, 0, tmp_path)
    assert seen["config"].decay_steps == 3
