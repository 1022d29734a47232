"""The Open Bandit experiment against the figures that the authors of the data publish."""

import numpy as np
import pytest

from experiments.studies import open_bandit
from mbrl.errors import ConfigError, DataError, MissingDataError

# zr-obp, examples/obd/README.md: means and deviations over 30 draws
PUBLISHED = {
    "dm": (0.156876, 0.109898),
    "ipw": (0.311082, 0.311170),
    "snipw": (0.311795, 0.334736),
    "dr": (0.292464, 0.315485),
    "sndr": (0.302407, 0.328434),
    "switch_dr": (0.258410, 0.160598),
    "dr_os": (0.159520, 0.109660),
}


def here() -> bool:
    try:
        return open_bandit.read("random", "all") is not None
    except MissingDataError:
        return False


@pytest.mark.long
@pytest.mark.skipif(not here(), reason="the Open Bandit Dataset is not here")
def test_the_published_errors_come_out(tmp_path):
    outcome = open_bandit.measure(open_bandit.DEFAULTS, 0, tmp_path)
    for name, (mean, deviation) in PUBLISHED.items():
        assert outcome.values[name] == pytest.approx(mean, abs=2e-5), name
        assert np.std(outcome.curves[name], ddof=1) == pytest.approx(deviation, abs=3e-5), name


def write(home, clicks):
    """A shop of two items and two places; both policies' logs."""
    head = "timestamp,item_id,position,click,propensity_score,user_feature_0\n"
    for policy in ("random", "bts"):
        folder = home / "obd" / policy / "all"
        folder.mkdir(parents=True)
        rows = [
            f"{n},2020-01-01 {n:02d},{n % 2},{1 + n // 2 % 2},{clicks[n % 2]},0.5,u{n % 3}"
            for n in range(24)
        ]
        (folder / "all.csv").write_text("," + head + "\n".join(rows) + "\n")
        items = ",item_id,item_feature_0,item_feature_1\n0,0,-0.5,a\n1,1,0.5,b\n"
        (folder / "item_context.csv").write_text(items)
    (home / "obd/prior_bts.yaml").write_text(
        "all:\n  alpha:\n    - 1e6\n    - 1.0\n  beta:\n    - 1.0\n    - 1e6\n"
        "men:\n  alpha:\n    - 1.0\n  beta:\n    - 1.0\n"
    )


def test_weights_follow_the_prior(tmp_path, monkeypatch):
    """Thompson sampling that is sure of item 0 puts it first and item 1 second."""
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    write(tmp_path, clicks=(1, 0))
    shown = open_bandit.thompson("all", 2, 500, 0)
    assert shown.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    log = open_bandit.read("random", "all")
    assert log.user.shape == (24, 2) and log.items.tolist() == [[0.0, -0.5], [1.0, 0.5]]
    rounds = open_bandit.weighted(log, shown, 3, 0)
    likely = (log.item == 0) == (log.place == 0)
    assert rounds.weight.tolist() == np.where(likely, 2.0, 0.0).tolist()
    assert (rounds.q[log.item == 0] > 0.6).all() and (rounds.q[log.item == 1] < 0.4).all()
    small = {"runs": 2, "simulations": 100}
    outcome = open_bandit.measure(open_bandit.DEFAULTS | small, 0, tmp_path)
    assert len(outcome.curves["dr"]) == 2


def test_items_are_known_by_their_number_not_by_their_row(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    write(tmp_path, clicks=(1, 0))
    file = tmp_path / "obd/random/all/item_context.csv"
    head, first, second = file.read_text().splitlines()
    file.write_text("\n".join([head, second, first]) + "\n")
    assert open_bandit.read("random", "all").items.tolist() == [[0.0, -0.5], [1.0, 0.5]]
    file.write_text("\n".join([head, second]) + "\n")
    with pytest.raises(DataError, match=r"has the items \[1\]"):
        open_bandit.read("random", "all")


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match="campaign is 'kids'; it must be all or men or women"):
        open_bandit.measure(open_bandit.DEFAULTS | {"campaign": "kids"}, 0, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDataError, match=r"pip download --no-deps obp==0\.4\.1"):
        open_bandit.read("random", "all")
