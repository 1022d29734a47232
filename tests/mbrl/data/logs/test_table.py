"""Cells of a table as numbers, times and text."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mbrl.data.logs.table import read_text_table, table_of, times


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_commas_are_decimal_signs_where_they_part_no_cells(separator: str, tmp_path: Path) -> None:
    lines = [("dose", "name"), ("0,5", "a,b"), ("-1,25e1", "c")]
    (tmp_path / "log.csv").write_text("\n".join(map(separator.join, lines)))
    table = read_text_table(tmp_path / "log.csv")
    assert table["dose"].tolist() == ["0.5", "-1.25e1"] and table["name"].tolist() == ["a,b", "c"]


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
