"""Fixtures of the tests of tables."""

from pathlib import Path

import pytest

from experiments.tables import plan
from tests.experiments.tables.small_table import SMALL


@pytest.fixture(autouse=True)
def small_runs(quick_jobs: None) -> None:
    """All runs of these tests are small."""


@pytest.fixture
def small(tmp_path: Path) -> plan.Plan:
    (tmp_path / "small.toml").write_text(SMALL)
    return plan.load(str(tmp_path / "small.toml"))
