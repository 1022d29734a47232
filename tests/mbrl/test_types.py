"""Rows that are none."""

from typing import Any

import pytest
import torch

from mbrl.errors import DataError
from mbrl.types import Transitions

N = 3
FLAG = torch.zeros(N, dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reward", torch.zeros(N, 1), r"reward must be \[N\], got \(3, 1\)"),
        ("duration", torch.ones(N, 1), r"duration must be \[N\]"),  # discounts were [N, N]
        ("behaviour_prob", torch.ones(N, 1), r"behaviour_prob must be \[N\]"),
        ("segment", torch.zeros(N, 1, dtype=torch.int64), r"segment must be \[N\]"),
        ("weight", torch.ones(N, 1), r"weight must be \[N\]"),
        ("terminated", torch.zeros(N), r"terminated must be bool, got torch\.float32"),
        ("expert", torch.zeros(N), "expert must be bool"),
        ("next_known", torch.ones(N, dtype=torch.int64), "next_known must be bool"),  # rows 0, 1
    ],
)
def test_columns_of_another_shape_or_type_are_refused(
    name: str, value: torch.Tensor, message: str
) -> None:
    obs = torch.zeros(N, 2)
    given: dict[str, Any] = {"reward": torch.zeros(N), "terminated": FLAG, "truncated": FLAG}
    with pytest.raises(DataError, match=message):
        Transitions(obs=obs, action=obs, next_obs=obs, **given | {name: value})
