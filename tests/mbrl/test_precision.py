"""The switch for the precision of matrix products."""

import warnings

import pytest
import torch

from mbrl import precision
from mbrl.errors import ConfigError
from mbrl.precision import has_tiles, matmul_precision, set_matmul_precision


def test_it_is_that_of_pytorch_and_ends_with_its_block() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    with matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


def test_it_is_taken_where_there_are_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with matmul_precision("medium") as taken:
            assert taken == has_tiles()
            assert torch.get_float32_matmul_precision() == "medium"
    monkeypatch.setattr(precision, "has_tiles", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        pytest.warns(UserWarning, match="has no products of bfloat16"),
        matmul_precision("medium") as taken,
    ):
        assert not taken


def test_another_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'low'.*highest, medium"):
        set_matmul_precision("low")
    assert torch.get_float32_matmul_precision() == "highest"
