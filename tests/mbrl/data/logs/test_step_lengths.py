"""How long the last rows of cut episodes last."""

import numpy as np

from mbrl.data import from_log
from tests.mbrl.data.logs.test_reader import COLUMNS, EPISODES, STEPS, frame


def test_the_last_row_of_a_cut_episode_lasts_as_long_as_most():
    """A reward of 1 every four hours for ever, each discounted by 0.9 ** 4."""
    data = frame().assign(died=0, gain=1.0)
    after = data.groupby("patient")[["heart_rate", "lactate"]].shift(-1).fillna(1.0)
    after = after.add_prefix("next_")
    log = from_log(
        data.assign(**after), **COLUMNS, next_obs=["next_heart_rate", "next_lactate"], step="1"
    )
    assert len(log) == EPISODES * STEPS and set(log.transitions.duration.tolist()) == {4.0}
    assert any("not known, last the median" in text for text in log.provenance.notes)


def test_the_time_to_the_next_episode_is_no_step():
    """Where flags alone part episodes, 100 apart."""
    data = frame().assign(over=lambda f: (f.time == 4 * (STEPS - 1)).astype(int))
    data["time"] += 120 * np.repeat(np.arange(EPISODES), STEPS)
    after = data[["heart_rate", "lactate"]].shift(-1).fillna(1.0).add_prefix("next_")
    options = {k: v for k, v in COLUMNS.items() if k not in ("episode", "terminated")}
    log = from_log(
        data.assign(**after), **options, truncated="over", step="1",
        next_obs=["next_heart_rate", "next_lactate"],
    )  # fmt: skip
    assert len(log.transitions.episodes()) == EPISODES
    assert set(log.transitions.duration.tolist()) == {4.0}
