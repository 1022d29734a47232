"""Which columns and cells are taken as they are, and which are refused."""

import pytest

from mbrl.data import from_log
from mbrl.errors import DataError
from tests.mbrl.data.logs.test_reader import COLUMNS, frame


@pytest.mark.parametrize("value", [36.6, 0.1, 98.6, 7.0])
def test_a_column_that_never_changes_is_taken(value):
    for rows in (30, 29):
        log = from_log(frame().iloc[:rows].assign(lactate=value), **COLUMNS)
        assert log.transitions.obs[:, 1].tolist() == pytest.approx([value] * len(log))


def test_numbers_with_commas_and_per_cent_signs_are_refused():
    for cell in ("{:,.1f}", "{:.0f}%", "{:.1f}", "{:_.0f}"):
        text = [cell.format(1234.5 + row) for row in range(30)]
        column = [t.replace(".", ",").replace("_", " ") for t in text]
        with pytest.raises(DataError, match="numbers with commas, spaces or per cent signs"):
            from_log(frame().assign(lactate=column), **COLUMNS)


def test_a_probability_in_per_cent_is_refused():
    choices = COLUMNS | {"action": "choice", "behaviour_prob": "chance"}
    assert len(from_log(frame().assign(chance=1.0), **choices)) > 0
    with pytest.raises(DataError, match=r"behaviour_prob is 50\.0 in row 0.* at most 1"):
        from_log(frame().assign(chance=50.0), **choices)
    assert len(from_log(frame().assign(chance=1 + 1e-7), **choices)) > 0  # rounding
    densities = COLUMNS | {"behaviour_prob": "chance"}
    assert len(from_log(frame().assign(chance=50.0), **densities)) > 0
