"""Late outcomes and batches of them."""

import numpy as np
import pytest
import torch

from algorithms.bandits import DelayedFeedback, Rows
from mbrl.errors import ConfigError, DataError


def row(number: int, count: int = 1) -> Rows:
    x = torch.full((count,), float(number))
    return Rows(x[:, None], x.long(), x, x)


def played(delay: int, batch: int, rounds: int, count: int = 1) -> list[list[int] | None]:
    feedback = DelayedFeedback(delay, batch)
    result = []
    for t in range(rounds):
        rows = feedback.add(row(t, count))
        result.append(None if rows is None else rows.action.tolist())
    return result


def test_at_once() -> None:
    assert played(0, 1, 3) == [[0], [1], [2]]


def test_a_delay_shifts_and_a_batch_gathers() -> None:
    assert played(2, 1, 5) == [None, None, [0], [1], [2]]
    assert played(0, 2, 5) == [None, [0, 1], None, [2, 3], None]
    assert played(1, 2, 6) == [None, None, [0, 1], None, [2, 3], None]
    assert played(0, 3, 3, count=2) == [None, [0, 0, 1, 1], None]


def test_the_state_goes_on() -> None:
    one, other = DelayedFeedback(2, 2), DelayedFeedback(2, 2)
    for t in range(3):
        one.add(row(t))
    other.load_state_dict(one.state_dict())
    for t in range(3, 6):
        a, b = one.add(row(t)), other.add(row(t))
        assert (a is None) == (b is None)
        assert a is None or all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch is 0"):
        DelayedFeedback(0, 0)
    with pytest.raises(ConfigError, match="delay is -1"):
        DelayedFeedback(-1)


def test_arrays_that_are_filled_again_wait_as_they_were() -> None:
    feedback, context, action = DelayedFeedback(delay=2), np.zeros((1, 1)), np.zeros(1, np.int64)
    for t in range(4):
        context[:], action[:] = t, t
        known = feedback.add(Rows(context, action, np.ones(1), np.ones(1)))
    assert known is not None and known.context.tolist() == [[1.0]] and known.action.tolist() == [1]
    with pytest.raises(DataError, match="rows have shapes"):
        feedback.add(Rows(torch.zeros(1, 1), 0, 1.0, 0.5))
