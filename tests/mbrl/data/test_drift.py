"""Drift against scipy, and against changes that were put into the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from mbrl.data import from_log, load
from mbrl.data.drift import Drift, compare
from mbrl.data.out_of_data import fit_out_of_data
from mbrl.data.shared_encoding import SharedLog, read_as
from mbrl.errors import DataError
from mbrl.types import Dataset, Spec, Transitions
from tests import logs


def dataset(rows: int = 2000, seed: int = 0, shift: float = 0.0, scale: float = 1.0) -> Dataset:
    rng = np.random.default_rng(seed)
    obs = torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32))
    obs[:, 1] = obs[:, 1] * scale + shift
    action = torch.from_numpy(rng.uniform(-1, 1, (rows, 1)).astype(np.float32))
    ends = torch.arange(rows) % 20 == 19
    data = Transitions(obs, action, torch.zeros(rows), obs, ends & False, ends)
    spec = Spec("t", 3, 1, None, (-1.0,), (1.0,), obs_names=("a", "b", "c"), action_names=("u",))
    return Dataset(data, spec)


def drift(new: Dataset | SharedLog, reference: Dataset | None = None) -> Drift:
    reference = reference or dataset()
    return compare(reference, new, fit_out_of_data(reference))


def test_statistics_are_those_of_scipy() -> None:
    """The exact statistic by counting: the largest difference of two distribution functions."""
    before, now = dataset(300), dataset(200, seed=1, shift=0.7)
    for i, column in enumerate(drift(now, before).columns[:3]):
        x, y = (d.transitions.obs[:, i].double().numpy() for d in (before, now))
        points = np.concatenate([x, y])
        steps = [(z[:, None] <= points).mean(0) for z in (x, y)]
        assert column.statistic == pytest.approx(np.abs(steps[0] - steps[1]).max(), abs=1e-12)
        assert column.p_value == stats.ks_2samp(x, y, method="asymp").pvalue
        assert column.outside == ((y < x.min()) | (y > x.max())).mean()


def test_another_sample_of_the_same_has_not_drifted() -> None:
    for seed in range(1, 6):
        result = drift(dataset(1500, seed))
        assert result.drifted == () and "Like the training data" in result.sentence
        assert result.out_of_data < 0.03


@pytest.mark.parametrize(("outside", "drifted"), [(5, False), (6, True)])
def test_five_percent_outside_are_not_more_than_five(outside: int, drifted: bool) -> None:
    """In 32 bits a share of 0.05 is above 0.05."""
    score: Any = lambda obs: 2.0 * (torch.arange(len(obs)) < outside)  # noqa: E731
    result = compare(dataset(), dataset(100), score)
    assert result.out_of_data == outside / 100
    assert ("out-of-data score" in result.drifted) == drifted


def test_a_shift_a_wider_spread_and_other_actions() -> None:
    assert drift(dataset(seed=1, shift=0.5)).drifted == ("b",)
    wide = drift(dataset(seed=1, scale=3.0))
    assert wide.drifted[0] == "b" and wide.out_of_data > 0.05
    assert any("outside the trained range" in reason for reason in wide.columns[1].reasons)
    new = dataset(seed=1)
    other = new.with_transitions(
        Transitions(**{**vars(new.transitions), "action": new.transitions.action * 0.3})
    )
    assert drift(other).drifted == ("u",)


@pytest.mark.long
def test_a_large_sample_does_not_make_a_small_difference_a_drift() -> None:
    """The p-value alone would."""
    reference, new = dataset(60_000), dataset(60_000, seed=1, shift=0.05)
    result = drift(new, reference)
    assert result.columns[1].p_value < 1e-10 and result.drifted == ()


def test_combinations_that_were_not_logged() -> None:
    """Every column alone is as before."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000).astype(np.float32)

    def pair(sign: float) -> Dataset:
        base = dataset(4000)
        noise = 0.05 * rng.normal(size=4000).astype(np.float32)
        obs = torch.from_numpy(np.stack([x, sign * x + noise, 0 * x], 1))
        values = {**vars(base.transitions), "obs": obs, "next_obs": obs}
        return base.with_transitions(Transitions(**values))

    assert drift(pair(-1.0), pair(1.0)).drifted == ("out-of-data score",)


def test_discrete_actions(cartpole: Dataset) -> None:
    rows = cartpole.transitions
    mostly = torch.where(torch.arange(len(rows)) % 10 < 8, 1, 0)
    new = cartpole.with_transitions(Transitions(**{**vars(rows), "action": mostly}))
    result = drift(new, cartpole)
    assert result.drifted == ("action",)
    share = float(rows.action.float().mean())
    assert result.columns[-1].statistic == pytest.approx(0.8 - share, abs=1e-6)
    assert result.action_shares["1"] == pytest.approx((share, 0.8))


def test_other_sizes_and_names_are_refused(cartpole: Dataset) -> None:
    with pytest.raises(DataError, match="compare data of the same task"):
        drift(cartpole)
    spec = Spec("t", 3, 1, None, (-1.0,), (1.0,), obs_names=("a", "b", "x"), action_names=("u",))
    with pytest.raises(DataError, match="give the log itself"):
        drift(Dataset(dataset().transitions, spec))


# Logs, read as that of the run was.


def log_drift(folder: Path, frame: pd.DataFrame) -> Drift:
    reference = load(logs.imported(folder))
    frame.to_csv(folder / "new.csv", index=False)
    assert reference.provenance.log is not None
    return drift(read_as(folder / "new.csv", reference.provenance.log), reference)


def test_the_same_log_again_has_not_drifted(tmp_path: Path) -> None:
    result = log_drift(tmp_path, logs.table())
    assert result.drifted == () and result.rows_left_out == 30  # last rows of those who live
    assert all(column.statistic == 0 for column in result.columns)
    assert log_drift(tmp_path, logs.table(seed=5)).drifted == ()


def test_new_and_vanished_labels_are_counted_not_refused(tmp_path: Path) -> None:
    frame = logs.table(seed=5)
    frame.loc[frame.ward == "ED", "ward"] = "tent"
    frame.loc[:59, "choice"] = "operate"
    result = log_drift(tmp_path, frame)
    assert result.new_labels["ward"] == {"tent": pytest.approx((frame.ward == "tent").mean())}
    assert result.new_labels["choice"] == {"operate": pytest.approx(0.1)}
    assert result.gone_labels == {"ward": ["ED"]}
    assert {"ward (new labels)", "choice (new labels)", "ward=ED"} <= set(result.drifted)
    assert "tent" not in result.sentence and "ward (new labels)" in result.sentence


def test_more_missing_cells(tmp_path: Path) -> None:
    frame = logs.table(seed=5)
    frame.loc[frame.index % 2 == 0, "lactate"] = np.nan
    result = log_drift(tmp_path, frame)
    column = next(c for c in result.columns if c.name == "lactate")
    assert column.missing_before == pytest.approx(0.1, abs=0.03)
    assert column.missing_now == frame.lactate.isna().mean()
    assert any("missing in" in reason for reason in column.reasons)


def test_missing_cells_that_the_run_has_no_place_for(tmp_path: Path) -> None:
    """heart_rate was never missing: those rows are left out and the share says so."""
    frame = logs.table(seed=5)
    frame.loc[frame.index % 5 == 0, "heart_rate"] = np.nan
    result = log_drift(tmp_path, frame)
    assert result.rows_left_out >= 120 and "heart_rate" in result.drifted


def test_the_encoding_is_that_of_the_run(tmp_path: Path) -> None:
    """Without it the fill value of lactate and the labels would be those of the new log."""
    reference = load(logs.imported(tmp_path))
    frame = logs.table(seed=5, episodes=20)
    frame["lactate"] += 10
    frame = frame[frame.ward != "ICU"]
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert reference.provenance.log is not None
    shared = read_as(tmp_path / "new.csv", reference.provenance.log).dataset
    assert shared.spec.obs_names == reference.spec.obs_names
    alone = from_log(frame, **logs.COLUMNS)
    assert len(alone.spec.obs_names) == len(shared.spec.obs_names) - 1


def test_tables_that_cannot_be_compared(tmp_path: Path) -> None:
    known = load(logs.imported(tmp_path)).provenance.log
    assert known is not None
    logs.table().drop(columns="lactate").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(DataError, match="has no lactate, which the policy was trained on"):
        read_as(tmp_path / "less.csv", known)
    logs.table().assign(ward="tent").to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(DataError, match=r"every row has a label .* ward is tent"):
        read_as(tmp_path / "other.csv", known)


def test_continuous_actions_beyond_the_bounds_of_the_run(tmp_path: Path) -> None:
    columns = logs.COLUMNS | {"action": ("dose",)}
    frame = logs.table()
    frame["dose"] = np.random.default_rng(0).uniform(0, 1, len(frame))
    reference = from_log(frame, **columns)
    frame.assign(dose=frame.dose * 2).to_csv(tmp_path / "new.csv", index=False)
    assert reference.provenance.log is not None
    result = drift(read_as(tmp_path / "new.csv", reference.provenance.log), reference)
    assert result.columns[-1].outside == pytest.approx(0.5, abs=0.06)
    assert result.drifted == ("dose",)
