"""The study of `solve`: what it reports follows from the scores of the policies themselves."""

import pytest

from experiments.studies import solve_choice

TINY = {"steps": 3, "updates": 20, "resamples": 2, "episodes": 4, "data": "pendulum/random"}


def test_the_score_chosen_is_that_of_one_of_the_portfolio(tmp_path):
    outcome = solve_choice.measure(solve_choice.DEFAULTS | TINY, 0, tmp_path)
    v, curves = outcome.values, outcome.curves
    names = ["bc", "iql", "td3_bc", "edac", "mopo"]
    scores = [v[name] for name in names]
    assert curves["score"] == scores and sum(curves["chosen"]) == 1
    assert v["chosen"] == scores[curves["chosen"].index(1.0)]
    assert v["best"] == max(scores) and v["regret"] == pytest.approx(max(scores) - v["chosen"])
    believed = [low for low, yes in zip(curves["low"], curves["believed"], strict=True) if yes]
    if believed:  # the surest lead is what is chosen
        assert curves["low"][curves["chosen"].index(1.0)] == max(believed)
