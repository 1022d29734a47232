"""What a job's folder says, and whether its checkpoint is of it."""

from pathlib import Path

import pytest

from algorithms.language.imitation import ImitationConfig
from experiments.runs import folders, jobs
from experiments.runs import language as language_run
from experiments.runs.job import differences
from mbrl.errors import CheckpointError
from tests.experiments.cli.test_language import MODEL, settings


def test_an_edited_run_of_a_language_model_does_not_go_on(tmp_path: Path) -> None:
    config = ImitationConfig(task="addition", rows=2, model=MODEL)
    few = settings("imitation", steps=1, eval_every=0, final_problems=1, final_samples=1)
    language_run.start(few, config, tmp_path, quiet=True)
    written = folders.read_json(tmp_path / "config.json")
    longer = written["language"] | {"steps": 2}
    for place, name, value, reason in (
        ("config", "learning_rate", 0.05, r"checkpoint: learning_rate from 0\.001 to 0\.05"),
        ("language", "seed", 7, "the seed of .* has changed: it was 0, now it is 7"),
        ("language", "matmul_precision", "medium", "it was highest, now it is medium"),
    ):
        edited = written | {"language": longer}
        edited[place] = edited[place] | {name: value}
        folders.write_json(tmp_path / "config.json", edited)
        with pytest.raises(CheckpointError, match=reason):
            jobs.resume(tmp_path, quiet=True)
    folders.write_json(tmp_path / "config.json", written | {"language": longer})
    assert jobs.resume(tmp_path, quiet=True)["step"] == 2


def test_settings_of_settings_are_compared_one_by_one() -> None:
    used = {"rate": 1, "model": {"width": 4, "depth": 2, "later": 0}, "sizes": {"a": 1}, "new": 0}
    now = {"rate": 1, "model": {"width": 8, "depth": 2}, "sizes": None}
    assert differences(now, used) == {"model.width": (8, 4), "sizes": (None, {"a": 1})}
