"""The verb `quickstart`."""

from pathlib import Path

import pytest

from experiments.cli import quickstart
from experiments.runs import folders
from mbrl.errors import ConfigError


def test_the_quickstart_mixes_no_budgets(tmp_path: Path) -> None:
    folder = tmp_path / "ravl"
    quickstart.require_same(folder, 100)
    folders.write_json(folder / "config.json", {"run": {"steps": 100}})
    quickstart.require_same(folder, 100)
    with pytest.raises(ConfigError, match=r"a run of 100 updates, not of 4000.*--steps 100"):
        quickstart.require_same(folder, 4000)
