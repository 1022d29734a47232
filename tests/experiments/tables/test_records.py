"""Records: which are of the same cell, and which are reused."""

import json
from pathlib import Path
from typing import Any

from experiments import studies
from experiments.tables import plan, records


def test_records_of_fewer_digits_are_the_same() -> None:
    key = {"study": "horizons", "settings": {}}
    long, short = ({"key": key, "last_returns": [r]} for r in (1.234567, 1.235))
    assert records.agree(long, short) and not records.agree(long, short | {"last_returns": [1.236]})


def test_a_record_names_the_device_where_it_is_not_the_processor() -> None:
    machine = {"processor": "p", "device": "cuda"}
    manifest: dict[str, Any] = {"packages": {}, "commit": "c", "machine": machine}
    assert "device" not in records.environment(manifest)
    machine["accelerator"] = "NVIDIA H200"
    assert records.environment(manifest)["device"] == "NVIDIA H200"
    key = {"study": "horizons", "settings": {}}
    assert records.agree({"key": key}, {"key": key, "device": "NVIDIA H200"})


def test_a_record_of_another_key_is_not_reused(small, tmp_path: Path) -> None:
    cell = next(small.cells(small.blocks[0]))
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"key": cell.key}))
    assert records.read(file, cell.key) is not None
    assert records.read(file, cell.key | {"steps": 21}) is None
    assert cell.folder("a") != cell.folder("b")


def test_a_record_from_before_a_setting_has_its_default(tmp_path: Path) -> None:
    """A key without a setting that came later is the key with the setting's default, for runs and
    for studies; with another value of it, or of anything else, it is not."""
    (cell, *_) = plan.load("classic").cells(
        plan.Block(
            "", (plan.Row("p", "pendulum/medium", 10),), (plan.Column("ravl", "ravl"),), (0,)
        )
    )
    old = json.loads(json.dumps(cell.key))
    del old["config"]["imagination"]["truth"], old["config"]["learner"]["huber"]
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"key": old}))
    assert records.read(file, cell.key) is not None
    changed = json.loads(json.dumps(cell.key))
    changed["config"]["imagination"]["truth"] = 1.0
    assert records.read(file, changed) is None
    study = {"study": "edge_of_reach", "settings": {"critics": 3}, "seed": 0}
    full = study | {"settings": studies.settings_of("edge_of_reach", {"critics": 3})}
    file.write_text(json.dumps({"key": study}))
    assert records.read(file, full) is not None
    assert records.read(file, full | {"seed": 1}) is None


def test_a_cell_of_another_table_is_borrowed(tmp_path: Path) -> None:
    """The same cell under the same path in a table beside it; not one with another key."""
    key = {
        "study": "edge_of_reach",
        "settings": studies.settings_of("edge_of_reach", {}),
        "seed": 0,
    }
    other = tmp_path / "other" / "a" / "0.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps({"key": key, "fingerprint": "of a file edited since"}))
    mine = tmp_path / "mine"
    assert records.copy_from_other_table(mine, Path("a/0.json"), key | {"seed": 1}) is None
    assert not (mine / "a/0.json").exists()
    assert records.copy_from_other_table(mine, Path("a/0.json"), key, "of today's") is None
    assert not (mine / "a/0.json").exists()
    same = "of a file edited since"
    assert records.copy_from_other_table(mine, Path("a/0.json"), key, same) is not None
    assert records.copy_from_other_table(tmp_path / "any", Path("a/0.json"), key) is not None
    assert records.read(mine / "a/0.json", key) is not None


def test_records_of_a_users_file_lie_beside_it(tmp_path: Path) -> None:
    """Those of a file called as one of this library's tables are not that table's."""
    assert records.home(str(tmp_path / "classic.toml")) == tmp_path / "classic"
    assert records.home("classic") == records.RECORDS / "classic"
    assert records.home(str(plan.TABLES / "classic.toml")) == records.RECORDS / "classic"
