"""Fixtures of the tests of recording."""

import pytest


@pytest.fixture(autouse=True)
def _empty_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
