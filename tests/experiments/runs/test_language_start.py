"""What the first model of a run was read from: noted, and compared before it is needed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.language.imitation import ImitationConfig
from algorithms.language.learner import ModelConfig
from algorithms.language.policy_gradient import LanguageConfig
from experiments.runs import folders, jobs, language_start
from experiments.runs import language as language_run
from mbrl import checkpoint
from mbrl.errors import CheckpointError
from tests.experiments.cli.test_language import MODEL, settings

FEW = {"steps": 1, "eval_every": 0, "final_problems": 1, "final_samples": 1}


def test_a_run_whose_start_has_changed_has_no_first_model(tmp_path: Path) -> None:
    start, folder = tmp_path / "start", tmp_path / "run"
    shown = ImitationConfig(task="addition", rows=2, model=MODEL)
    language_run.start(settings("imitation", **FEW), shown, start, quiet=True)
    chosen = settings("policy_gradient", start=str(start), **FEW)
    config = LanguageConfig(task="addition", recipe="nsr", prompts=2, group=2, model=MODEL)
    language_run.start(chosen, config, folder, quiet=True)
    content = checkpoint.load(start / "checkpoint.pt")
    begun = content["state"]["modules"]["model"]
    noted = folders.read_json(folder / "manifest.json")[language_start.KEY]
    assert noted == {"start": language_start.digest(begun)}
    first = language_run.first_learner(folder).model.state_dict()
    assert all(torch.equal(first[k], value) for k, value in begun.items())

    checkpoint.save(start / "checkpoint.pt", content | {"step": 5})  # the model stays
    language_run.first_learner(folder)
    next(iter(begun.values())).add_(1e-3)
    checkpoint.save(start / "checkpoint.pt", content)
    with pytest.raises(CheckpointError, match=f"start {start} is not what the run in"):
        language_run.first_learner(folder)
    assert language_run.load(folder).step == 1  # what the checkpoint holds is not touched by it
    (folder / "checkpoint.pt").unlink()  # as a run that was killed before its first one
    with pytest.raises(CheckpointError, match="is not what"):
        jobs.resume(folder, quiet=True)


class Learner:
    """Has no model, as these folders have none."""

    def __init__(self, **settings: Any) -> None: ...

    def begin_with(self, path: Path) -> None:
        self.begun = path


@pytest.mark.parametrize("lora", [0, 4])
def test_a_run_whose_base_model_has_changed_is_not_read(
    lora: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(language_run.LEARNERS, "policy_gradient", (Learner, LanguageConfig))
    base, folder = tmp_path / "base", tmp_path / "run"
    base.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
        (base / name).write_text(name)
    config = LanguageConfig(model=ModelConfig(path=str(base), lora=lora))
    chosen = settings("policy_gradient")
    language_run.create(chosen, config, folder)
    known = language_start.describe(chosen, config)
    assert known.keys() == {f"model/{p.name}" for p in base.iterdir() if p.suffix != ".md"}
    folders.write_json(folder / "manifest.json", {language_start.KEY: known})
    checkpoint.save(folder / "checkpoint.pt", {"algorithm": "Other"})

    (base / "README.md").write_text("more")
    (base / "model.safetensors").write_text("other weights")
    with pytest.raises(CheckpointError, match=r"base \(model.safetensors\) is not what"):
        language_run.first_learner(folder)
    # Without LoRA the checkpoint has all weights: it is read, and is here of something else.
    reason = r"base \(model.safetensors\) is not what" if lora else "holds 'Other'"
    with pytest.raises(CheckpointError, match=reason):
        language_run.load(folder)
    (base / "tokenizer.json").write_text("other tokens")
    with pytest.raises(CheckpointError, match=r"tokenizer.json\) is not what"):
        language_run.load(folder)
    after = settings("policy_gradient", start=str(folder))
    with pytest.raises(CheckpointError, match="is not what"):  # nor does another run begin with it
        language_run.new_learner(after, config)
    for name in ("tokenizer.json", "model.safetensors"):
        (base / name).write_text(name)  # as they were
    assert language_run.new_learner(after, config).begun == folder / "checkpoint.pt"
    if lora:
        shutil.copytree(base, tmp_path / "other")
        elsewhere = LanguageConfig(model=ModelConfig(path=str(tmp_path / "other"), lora=lora))
        assert language_run.new_learner(after, elsewhere).begun  # the same one
        (tmp_path / "other" / "model.safetensors").write_text("another base")
        with pytest.raises(CheckpointError, match=r"other \(model.safetensors\) is not what"):
            language_run.new_learner(after, elsewhere)
