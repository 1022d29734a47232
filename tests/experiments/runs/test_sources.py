"""What a run learns from."""

import warnings

import pytest

from experiments.runs.sources import open_source
from experiments.settings import RunSettings


def test_a_single_held_out_episode_is_warned_of() -> None:
    """Intervals are over episodes; the expert's log of the inverted pendulum has five."""
    with pytest.warns(UserWarning, match=r"leaves one of 5 episodes out.*--holdout 0\.40"):
        open_source(RunSettings("bc", "invertedpendulum/expert", holdout=0.2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = open_source(RunSettings("bc", "invertedpendulum/expert", holdout=0.4))
    assert source.dataset is not None and len(source.dataset.transitions.episodes()) == 3
