"""Logs made awkward on purpose: each is imported rightly or refused with the fix."""

import numpy as np
import pandas as pd
import pytest
import torch

from mbrl.data import check, from_log, load, save_npz
from mbrl.errors import ConfigError, DataError

EPISODES, STEPS = 6, 5
COLUMNS = {
    "obs": ["heart_rate", "lactate"], "action": "dose", "reward": "gain", "episode": "patient",
    "order": "time", "terminated": "last and died == 1",
}  # fmt: skip


def frame() -> pd.DataFrame:
    """Six patients of five rows; the even ones die after their last row."""
    rng = np.random.default_rng(0)
    n = EPISODES * STEPS
    who = np.repeat(np.arange(EPISODES), STEPS)
    return pd.DataFrame(
        {
            "patient": [f"P{w}" for w in who],
            "time": np.tile(np.arange(STEPS), EPISODES) * 4,
            "heart_rate": rng.normal(80, 5, n).round(2),
            "lactate": rng.uniform(0.5, 4, n).round(3),
            "ward": rng.choice(["ED", "ICU", "ward"], n),
            "dose": rng.uniform(0, 1, n).round(3),
            "choice": rng.choice(["wait", "treat", "send home"], n),
            "gain": rng.normal(size=n).round(3),
            "died": (who % 2 == 0).astype(int),
        }
    )


def rows_kept(data: pd.DataFrame) -> pd.DataFrame:
    """What must come out: patients as they appear, each sorted, without the last rows of those
    who live."""
    order = pd.Categorical(data.patient, data.patient.unique(), ordered=True)
    table = data.assign(order=order).sort_values(["order", "time"])
    last = ~table.duplicated("patient", keep="last")
    return table[~(last & (table.died == 0))]


def test_rows_order_next_observations_and_ends_are_those_of_pandas():
    data = frame()
    data = data.sample(frac=1, random_state=1)
    log = from_log(data, **COLUMNS)
    rows, wanted = log.transitions, rows_kept(data)
    assert len(rows) == 27
    obs = wanted[["heart_rate", "lactate"]].to_numpy(np.float32)
    assert torch.equal(rows.obs, torch.from_numpy(obs))
    assert torch.equal(rows.action[:, 0], torch.from_numpy(wanted.dose.to_numpy(np.float32)))
    assert torch.equal(rows.reward, torch.from_numpy(wanted.gain.to_numpy(np.float32)))
    table = data.sort_values(["patient", "time"])
    after = table.groupby("patient")[["heart_rate", "lactate"]].shift(-1).loc[wanted.index]
    known = rows.next_known.numpy()
    assert known.sum() == 24 and np.array_equal(known, after.notna().all(axis=1).to_numpy())
    assert np.array_equal(rows.next_obs.numpy()[known], after.to_numpy(np.float32)[known])
    assert rows.terminated.sum() == 3 and rows.truncated.sum() == 3
    assert log.spec.obs_names == ("heart_rate", "lactate") and log.spec.action_names == ("dose",)
    assert log.spec.action_low == (pytest.approx(wanted.dose.min()),)


def test_csv_parquet_polars_and_mappings_give_the_same(tmp_path):
    data = frame()
    data.to_csv(tmp_path / "log.csv", index=False)
    data.to_parquet(tmp_path / "log.parquet")
    with_frame = from_log(data, **COLUMNS)
    mapping = {name: data[name].to_numpy() for name in data}
    for source in (tmp_path / "log.csv", str(tmp_path / "log.parquet"), mapping):
        other = from_log(source, **COLUMNS)
        for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
            assert torch.equal(
                getattr(other.transitions, name), getattr(with_frame.transitions, name)
            )
        assert other.spec == with_frame.spec
    path = save_npz(with_frame, tmp_path / "mine.npz")
    again = load(path)
    assert again.spec == with_frame.spec and again.provenance.log == with_frame.provenance.log
    assert torch.equal(again.transitions.next_known, with_frame.transitions.next_known)


def test_text_becomes_a_column_a_label_and_actions_keep_their_labels():
    log = from_log(frame(), **COLUMNS | {"obs": ["lactate", "ward"], "action": "choice"})
    wanted = rows_kept(frame())
    dummies = pd.get_dummies(wanted.ward, prefix="ward", prefix_sep="=")
    assert log.spec.obs_names == ("lactate", *dummies.columns)
    assert np.array_equal(log.transitions.obs[:, 1:].numpy(), dummies.to_numpy(np.float32))
    assert log.spec.action_names == ("send home", "treat", "wait")
    labels = [log.spec.action_names[k] for k in log.transitions.action.tolist()]
    assert labels == wanted.choice.tolist()


def test_imputed_values_are_the_last_of_the_episode_then_the_median_and_are_marked():
    data = frame()
    gone = [2, 3, 5, 11]  # rows 5 is the first of its episode
    data.loc[gone, "lactate"] = np.nan
    log = from_log(data, **COLUMNS, missing="impute")
    filled = data.groupby("patient").lactate.ffill().fillna(data.lactate.median())
    wanted = rows_kept(data)
    assert log.spec.obs_names == ("heart_rate", "lactate", "lactate (missing)")
    values = filled[wanted.index].to_numpy(np.float32)
    assert np.array_equal(log.transitions.obs[:, 1].numpy(), values)
    assert np.array_equal(log.transitions.obs[:, 2].numpy(), wanted.lactate.isna().to_numpy())


def test_missing_values_can_drop_their_episodes():
    data = frame()
    data.loc[7, "lactate"] = np.nan
    log = from_log(data, **COLUMNS, missing="drop")
    assert len(log.transitions.episodes()) == EPISODES - 1
    assert any("1 of 6 episodes dropped" in note for note in log.provenance.notes)


def test_rewards_of_expressions():
    data = frame()
    text = "where(last, 0, next(lactate)) - abs(heart_rate - 80) ** 2 / 10 + (ward == 'ICU')"
    log = from_log(data, **COLUMNS | {"reward": text})
    after = data.groupby("patient").lactate.shift(-1).fillna(0)
    value = after - (data.heart_rate - 80) ** 2 / 10 + (data.ward == "ICU")
    wanted = value[rows_kept(data).index].to_numpy(np.float32)
    assert np.allclose(log.transitions.reward.numpy(), wanted, rtol=1e-6)


def test_irregular_times_discount_by_the_time_that_passed():
    data = frame()
    data.loc[3:4, "time"] = [14, 30]  # 8 -> 14 -> 30
    log = from_log(data, **COLUMNS, step="4")
    duration = log.transitions.duration
    assert duration[:4].tolist() == [1, 1, 1.5, 4]
    discounts = log.transitions.discounts(0.9)
    assert torch.allclose(discounts[:4], torch.tensor([0.9, 0.9, 0.9**1.5, 0.9**4]))
    assert discounts[4] == 0  # terminated
    # without a step the rows count alike, and a warning says that they are not
    assert from_log(data, **COLUMNS).transitions.duration is None
    assert any("times between rows differ" in n for n in from_log(data, **COLUMNS).provenance.notes)
    regular = from_log(frame(), **COLUMNS, step="4")
    assert regular.transitions.duration is None


def test_dates_order_rows_and_measure_steps():
    data = frame()
    start = pd.Timestamp("2024-02-29 23:00")
    data["time"] = start + pd.to_timedelta(data.time, unit="h")
    wanted = from_log(frame().sample(frac=1, random_state=2), **COLUMNS).transitions
    for column in (data.time, data.time.astype(str), data.time.dt.strftime("%Y-%m-%dT%H:%M:%SZ")):
        shuffled = data.assign(time=column).sample(frac=1, random_state=2)
        assert torch.equal(from_log(shuffled, **COLUMNS).transitions.obs, wanted.obs)
    twice = from_log(data, **COLUMNS, step="2h").transitions.duration
    assert twice[:4].tolist() == [2, 2, 2, 2]


def test_behaviour_probabilities_and_next_columns_are_read():
    data = frame().assign(p=0.25)
    data["hr2"] = data.groupby("patient").heart_rate.shift(-1)
    data["lac2"] = data.groupby("patient").lactate.shift(-1)
    keep = data[data.hr2.notna() | (data.died == 1)]
    log = from_log(keep, **COLUMNS, next_obs=["hr2", "lac2"], behaviour_prob="p")
    assert (log.transitions.behaviour_prob == 0.25).all()
    plain = from_log(frame(), **COLUMNS)
    assert torch.equal(log.transitions.next_obs, plain.transitions.next_obs)
    assert torch.equal(log.transitions.next_known, plain.transitions.next_known)


def change(**columns):
    return lambda data: data.assign(**columns)


ACCEPTED = {
    "names in other scripts": (
        lambda d: d.rename(
            columns={"heart_rate": "心拍数", "lactate": "лактат", "dose": "Dosis ü"}
        ),
        {"obs": ["心拍数", "лактат"], "action": "Dosis ü"},
        "",
    ),
    "names with spaces and commas": (
        lambda d: d.rename(columns={"heart_rate": "rate, heart", "gain": "the gain"}),
        {"obs": ["rate, heart", "lactate"], "reward": "2 * `the gain`"},
        "",
    ),
    "a pattern": (lambda d: d, {"obs": ["heart*,lact?te"]}, ""),
    "mixed order": (lambda d: d.sample(frac=1, random_state=3), {}, ""),
    "grouped rows without times": (lambda d: d, {"order": None}, ""),
    "interleaved patients": (lambda d: d.sort_values("time", kind="stable"), {}, ""),
    "numbers as text": (change(dose=lambda d: d.dose.astype(str) + " "), {}, ""),
    "true and false": (change(died=lambda d: d.died.map({1: "True", 0: "FALSE"})), {}, ""),
    "a boolean action": (change(dose=lambda d: d.dose > 0.5), {}, ""),
    "whole numbers as actions": (change(dose=lambda d: (d.dose * 4).round().astype(int)), {},
                                 "different whole numbers: taken as discrete"),
    "whole numbers that are doses": (change(dose=lambda d: (d.dose * 4).round().astype(int)),
                                     {"discrete": False}, "taken from the log: dose 0 to 4"),
    "labels that are numbers": (change(ward=lambda d: d.ward.map({"ED": 7, "ICU": 9, "ward": 8})),
                                {"obs": ["ward", "lactate"], "categorical": "ward"}, ""),
    "missing values that do not matter": (
        change(comment=np.nan, gain=lambda d: d.gain.where((d.time < 16) | (d.died == 1))), {},
        "columns left aside, as no option names them: ward, choice, comment",
    ),
    "one missing value, imputed": (
        change(lactate=lambda d: d.lactate.mask(d.index == 8)), {"missing": "impute"}, ""),
    "gaps in time": (change(time=lambda d: d.time**2), {}, "times between rows differ"),
    "the end said by a column of its own": (
        change(end=lambda d: ((d.time == 16) & (d.died == 1)).astype(int)),
        {"terminated": "end"}, ""),
    "ends that nobody marked": (lambda d: d, {"terminated": None}, "nothing says where the task"),
    "ends that nobody marked, said": (
        lambda d: d, {"terminated": None, "last_row": "terminated"}, ""),
    "one episode without a number": (
        lambda d: d[d.patient == "P0"], {"episode": None, "terminated": "died and last"},
        "no episode column"),
    "episodes divided by flags": (
        change(end=lambda d: (d.time == 16).astype(int)),
        {"episode": None, "order": None, "terminated": "end"}, "the end flags alone"),
    "an index that is not 0 to N": (lambda d: d.set_index(np.arange(len(d)) * 7 + 3), {}, ""),
    "categories of pandas": (change(ward=lambda d: d.ward.astype("category")),
                             {"obs": ["ward", "lactate"]}, ""),
    "nullable integers": (change(time=lambda d: d.time.astype("Int64")), {}, ""),
    "a time among the observations": (lambda d: d, {"obs": ["time", "lactate"]}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_awkward_and_right(name):
    edit, options, note = ACCEPTED[name]
    log = from_log(edit(frame()), **COLUMNS | options)
    rows = log.transitions
    assert len(rows.episodes()) == (1 if "one episode" in name else EPISODES)
    assert note in " ".join(log.provenance.notes)
    expected = {"ends that nobody marked": 0, "ends that nobody marked, said": 6,
                "episodes divided by flags": 6, "one episode without a number": 1}  # fmt: skip
    assert rows.terminated.sum() == expected.get(name, 3)
    if not {"obs", "missing"} & options.keys() and name not in ("mixed order", "one episode"):
        plain = from_log(frame(), **COLUMNS).transitions
        assert torch.equal(rows.obs[:4], plain.obs[:4])


REFUSED = {
    "a column that is not there": (lambda d: d, {"obs": ["heartrate"]}, "no column is called 'hea"),
    "no observations": (lambda d: d, {"obs": []}, "no obs columns are named"),
    "no action": (lambda d: d, {"action": []}, "no action columns are named"),
    "an action among the observations": (lambda d: d, {"obs": ["dose"]}, "both obs and action"),
    "a column twice": (lambda d: d, {"obs": ["lactate", "lac*"]}, "named more than once"),
    "one missing value": (change(lactate=lambda d: d.lactate.mask(d.index == 8)), {},
                          "lactate in 1 of 30 rows. --missing impute"),
    "infinity": (change(lactate=lambda d: d.lactate.replace(d.lactate[3], np.inf)), {},
                 "lactate is inf in row 3; values must be finite"),
    "a constant action": (change(dose=0.5), {}, "dose is 0.5 in every row"),
    "a single choice": (change(choice="wait"), {"action": "choice"}, "with one action there is"),
    "text among numbers": (change(gain=lambda d: d.gain.astype(str).replace("-0.74", "hi")
                                  .where(d.index != 4, "??")), {}, "which is not a number"),
    "missing actions": (change(dose=lambda d: d.dose.mask(d.index == 1)), {},
                        "action is missing in 1 of 27 rows"),
    "missing rewards": (change(gain=lambda d: d.gain.mask(d.index == 1)), {},
                        "reward is missing in 1 of 27 rows"),
    "a patient without a number": (change(patient=lambda d: d.patient.mask(d.index == 1)), {},
                                   "episode is missing in 1 of 30 rows"),
    "a time that is not there": (change(time=lambda d: d.time.astype(float).mask(d.index == 1)), {},
                                 "order is missing in 1 of 30 rows"),
    "equal times": (change(time=0), {}, "time is the same in two rows of an episode"),
    "rows twice": (lambda d: pd.concat([d, d]), {}, "Drop repeated rows"),
    "mixed order without times": (lambda d: d.sort_values("time"), {"order": None},
                                  "rows are not grouped by episode. Name the time column"),
    "an outcome on every row": (lambda d: d, {"terminated": "died"}, "say --terminated 'last and"),
    "a flag of 2": (change(died=lambda d: d.died * 2), {"terminated": "died"}, "a flag is 0 or 1"),
    "free text as an observation": (change(note=lambda d: [f"note {i * 7}" for i in range(len(d))]),
                                    {"obs": ["note"] }, None),
    "dates as an observation": (change(day=pd.Timestamp("2024-01-01")), {"obs": ["day", "lactate"]},
                                "day holds dates, not numbers"),
    "numbers that 32 bits cannot tell apart": (
        change(when=lambda d: 1.7e9 + d.time), {"obs": ["when", "lactate"]}, "subtract an offset"),
    "a text action among several": (lambda d: d, {"action": ["dose", "choice"]},
                                    "discrete actions are one column"),
    "Python in a reward": (lambda d: d, {"reward": "__import__('os').system('x')"}, "is not allow"),
    "a reward without a column": (lambda d: d, {"reward": "gains"}, "there is no column 'gains'"),
    "a reward that looks ahead at the end": (lambda d: d, {"reward": "next(lactate)"},
                                             "fill(next(x), 0)"),
    "an empty column": (change(lactate=np.nan), {"missing": "impute"}, "every value is missing"),
    "no rows": (lambda d: d[:0], {}, "the log has no rows"),
    "a step without a unit that exists": (lambda d: d, {"step": "4 parsecs"}, "a number above 0"),
    "episodes of one row, cut": (lambda d: d[d.time == 0].assign(died=0), {}, "no row is left"),
    "an unknown task": (lambda d: d, {"spec": "Pendulum-v1"}, "has 3 observations, the log has 2"),
}  # fmt: skip
REFUSED["free text as an observation"] = (
    lambda d: pd.concat([d.assign(patient=d.patient + str(k)) for k in range(3)]).assign(
        note=[f"note {i}" for i in range(3 * len(d))]
    ),
    {"obs": ["note"]},
    "90 different texts",
)


@pytest.mark.parametrize("name", REFUSED)
def test_awkward_and_refused_with_the_fix(name):
    edit, options, message = REFUSED[name]
    with pytest.raises(DataError) as raised:
        from_log(edit(frame()), **COLUMNS | options)
    assert message in str(raised.value)


def test_all_problems_are_named_at_once(tmp_path):
    data = frame()
    data.loc[2, "lactate"] = np.nan
    data.loc[3, "dose"] = np.nan
    path = tmp_path / "log.csv"
    data.to_csv(path, index=False)
    with pytest.raises(DataError) as raised:
        from_log(path, **COLUMNS | {"reward": "gains", "terminated": "died"})
    for part in ("4 problems", "lactate in 1 of 30", "no column 'gains'", "say --terminated"):
        assert part in str(raised.value), part


def test_separators_marks_and_decimal_commas_of_spreadsheets(tmp_path):
    data, path = frame(), tmp_path / "log.csv"
    wanted = from_log(data, **COLUMNS).transitions
    for separator, decimal, encoding in (
        (";", ",", "utf-8-sig"),
        ("\t", ".", "utf-8"),
        ("|", ".", "utf-8-sig"),
    ):
        data.to_csv(path, index=False, sep=separator, decimal=decimal, encoding=encoding)
        assert torch.equal(from_log(path, **COLUMNS).transitions.obs, wanted.obs)


def test_a_second_log_is_read_as_the_first_one_was():
    from mbrl.data.columns import Options
    from mbrl.data.logs.reader import read_log
    from mbrl.data.logs.schema import LogSchema
    from mbrl.data.logs.table import table_of

    options = COLUMNS | {"obs": ["lactate", "ward"], "action": "choice"}
    known = from_log(frame(), **options).provenance.log
    later = frame()
    later = later[(later.ward != "ICU") & (later.choice != "wait")]
    schema = LogSchema(**{k: (v,) if k == "action" else tuple(v) if k == "obs" else v
                          for k, v in options.items()})  # fmt: skip
    log = read_log(table_of(later), schema, Options(), known)
    assert log.spec.obs_names == ("lactate", "ward=ED", "ward=ICU", "ward=ward")
    assert log.spec.action_names == ("send home", "treat", "wait")
    unseen = read_log(table_of(later.assign(ward="hall")), schema, Options(), known)
    assert "ward is 'hall' in row 0; the labels it had" in unseen.findings[-1].message


def test_files_without_a_schema_name_their_columns_and_the_rule(tmp_path):
    path = tmp_path / "log.csv"
    frame().to_csv(path, index=False)
    message = check(path)[0].message
    assert "patient, time, heart_rate" in message and "--obs, --action" in message


def test_a_note_says_where_the_kind_of_action_is_not_plain():
    def notes(choice: list) -> str:
        data = frame()
        data["valve"] = (choice * len(data))[: len(data)]
        return " ".join(from_log(data, **COLUMNS | {"action": "valve"}).provenance.notes)

    assert "3 different whole numbers: taken as discrete" in notes([0, 2, 5])
    assert "written with decimals: taken as continuous" in notes([0.0, 2.0, 5.0])
    assert "decimals" not in notes([0.0, 2.5, 5.0])
    notes(["open", "shut"])
    notes(["1A", "2", "3B", "4C"])
    with pytest.raises(DataError, match=r"action valve holds numbers and text: \?, first in row 2"):
        notes(["0", "2", "?"])


def test_a_stray_text_among_numbers_is_refused():
    """Before, the column became one of a label each."""
    data = frame()
    data["lactate"] = data.lactate.astype(str)
    data.loc[3, "lactate"] = "missing"
    with pytest.raises(
        DataError, match="obs lactate holds numbers and text: missing, first in row 3"
    ):
        from_log(data, **COLUMNS)
    assert len(from_log(data, **COLUMNS, categorical=["lactate"]).spec.obs_names) > 20


def test_flags_of_text_and_other_encodings_are_refused_with_the_fix(tmp_path):
    data = frame()
    data["died"] = np.where(data.died == 1, "yes", "no")
    with pytest.raises(DataError, match="such as died == 'yes'"):
        from_log(data, **COLUMNS | {"terminated": "died"})
    assert from_log(data, **COLUMNS | {"terminated": "last and died == 'yes'"})
    data["ward"] = "Hôpital"
    data.to_csv(tmp_path / "log.csv", index=False, encoding="latin-1")
    with pytest.raises(DataError, match="not written in UTF-8"):
        from_log(tmp_path / "log.csv", **COLUMNS)


def test_cells_that_were_filled_in_are_counted():
    data = frame()
    data.loc[[3, 9], "lactate"] = np.nan
    notes = from_log(data, **COLUMNS, missing="impute").provenance.notes
    assert "missing cells that were filled in: lactate 2" in notes


def test_options_that_say_nothing_of_this_log_are_refused():
    with pytest.raises(DataError, match="bounds are given and actions are discrete"):
        from_log(frame(), **COLUMNS | {"action": "choice"}, action_low=0.0, action_high=3.0)
    with pytest.raises(ConfigError, match="did you mean 'heart_rate'"):
        from_log(frame(), **COLUMNS, units=("hart_rate=1/min",))
    notes = from_log(frame(), **COLUMNS, action_low=-1.0).provenance.notes
    assert any("the high action bound taken from the log: dose -1 to 0." in n for n in notes)


@pytest.mark.filterwarnings("error:no explicit representation of timezones")
def test_times_with_offsets_are_those_of_utc():
    data = frame().iloc[:4].assign(patient="P0", died=0)
    data["time"] = [
        "2024-03-01 12:00+02:00",
        "2024-03-01T10:30Z",
        "2024-03-01 11:00",
        "2024-03-01T07:30-0400",
    ]
    log = from_log(data, **COLUMNS, step="30min")
    assert log.transitions.duration is None  # half an hour each
    assert torch.allclose(
        log.transitions.obs[:, 0], torch.tensor(data.heart_rate[:3].to_numpy("f4"))
    )


def test_a_missing_next_measurement_is_the_one_before():
    """Imputed: that of the row itself, from which the step begins, also in an episode's first row
    and where the row's own was imputed too."""
    data = frame()
    data["heart_rate_after"] = data.heart_rate.shift(-1)
    data["lactate_after"] = data.lactate.shift(-1)
    data.loc[[0, 2, 6], "heart_rate_after"] = np.nan
    data.loc[[1, 3, 7], "heart_rate"] = np.nan
    options = COLUMNS | {"next_obs": ["heart_rate_after", "lactate_after"]}
    log = from_log(data.iloc[:10], **options, missing="impute")
    obs, after = log.transitions.obs[:, 0], log.transitions.next_obs[:, 0]
    for row in (0, 2, 6):
        assert after[row] == obs[row] == obs[row + 1]


def test_text_that_looks_like_a_number_is_text():
    data = frame()
    data["room"] = np.where(data.index % 2 == 0, "1_1", "11")
    log = from_log(data, **(COLUMNS | {"obs": ["heart_rate", "room"]}))
    assert log.spec.obs_names == ("heart_rate", "room=11", "room=1_1")
    data["move"] = np.where(data.index % 3 == 0, "1.0", np.where(data.index % 3 == 1, "1", "0"))
    log = from_log(data, **(COLUMNS | {"action": "move", "discrete": True}))
    assert log.spec.action_names == ("0", "1")


def test_a_time_that_is_none_is_missing():
    data = frame()
    data["at"] = [f"2024-01-01T{hour:02d}:00:00" for hour in data.time]
    data.loc[7, "at"] = "NaT"
    with pytest.raises(DataError, match="order is missing in 1 of 30 rows"):
        from_log(data, **(COLUMNS | {"order": "at"}))
