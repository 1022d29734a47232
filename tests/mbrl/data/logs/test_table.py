"""Cells of a table as numbers, times and text."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mbrl.data import from_log
from mbrl.data.logs.table import read_parquet_table, read_text_table, table_of, times
from mbrl.errors import DataError


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_commas_are_decimal_signs_where_they_part_no_cells(separator: str, tmp_path: Path) -> None:
    lines = [("dose", "name"), ("0,5", "a,b"), ("-1,25e1", "c")]
    (tmp_path / "log.csv").write_text("\n".join(map(separator.join, lines)))
    table = read_text_table(tmp_path / "log.csv")
    assert table["dose"].tolist() == ["0.5", "-1.25e1"] and table["name"].tolist() == ["a,b", "c"]


def test_commas_are_no_decimal_signs_beside_decimal_points(tmp_path: Path) -> None:
    lines = [("dose", "x"), (".5", "950"), ("0.1", "1,200")]
    (tmp_path / "log.csv").write_text("\n".join(map("\t".join, lines)))
    assert read_text_table(tmp_path / "log.csv")["x"].tolist() == ["950", "1,200"]
    log = {"x": ["950", "1,200", "980", "1,150"], "a": [0.1, 0.2, 0.3, 0.4], "r": [1.0] * 4}
    with pytest.raises(DataError, match="x holds numbers with commas"):
        from_log(log | {"e": [0, 0, 1, 1]}, obs="x", action="a", reward="r", episode="e")


def test_cells_of_categories_that_are_missing_stay_missing(tmp_path: Path) -> None:
    """In each of several groups of rows, whose codes may differ."""
    wards = ["ICU", "ED", None, "ward 3", "ICU", None]
    frame = pd.DataFrame({"ward": pd.Categorical(wards), "count": pd.Categorical([1, 2, None] * 2)})
    frame.to_parquet(tmp_path / "log.parquet", row_group_size=2)
    table = read_parquet_table(tmp_path / "log.parquet")
    assert table["ward"].tolist() == wards
    np.testing.assert_array_equal(table["count"], [1, 2, np.nan, 1, 2, np.nan])


def test_bytes_are_text() -> None:
    table = table_of({"a": np.array([b"ICU", b"", b"ED"]), "b": [b"x", None, "y"]})
    assert table["a"].tolist() == ["ICU", None, "ED"] and table["b"].tolist() == ["x", None, "y"]


def test_lengths_of_time_are_seconds() -> None:
    frame = pd.DataFrame({"waited": pd.to_timedelta(["1h", None, "1.5s"])})
    column = table_of(frame)["waited"]
    np.testing.assert_array_equal(column, [3600.0, np.nan, 1.5])


@pytest.mark.filterwarnings("error:no explicit representation of timezones")
def test_offsets_of_whole_hours() -> None:
    """As Postgres prints them."""
    cells = ["2024-03-01 12:00:00+00", "2024-03-01T07:00:00-05", "2024-03-01T12:00:00z"]
    seconds = times("order", np.array(cells, dtype=object))
    assert set(seconds.tolist()) == {pd.Timestamp("2024-03-01T12:00:00").timestamp()}
