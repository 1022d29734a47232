"""The command `language subnetwork`, on two short runs."""

from pathlib import Path

import pytest
import torch

from algorithms.language.imitation import ImitationConfig
from algorithms.language.policy_gradient import LanguageConfig
from experiments.__main__ import main
from experiments.cli import language_subnetwork
from experiments.runs import language as language_run
from mbrl import checkpoint
from tests.experiments.cli.test_language import MODEL, settings


def test_shares_ranks_and_overlaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = tmp_path / "start"
    shown = ImitationConfig(task="addition", rows=4, model=MODEL)
    language_run.start(settings("imitation", eval_every=0), shown, start, quiet=True)
    # Of a recipe that learns something also where no answer is right.
    config = LanguageConfig(task="addition", recipe="datamind", prompts=2, group=2, model=MODEL)
    names = []
    for seed in (0, 1):
        names.append(str(tmp_path / f"run-{seed}"))
        chosen = settings("policy_gradient", start=str(start), seed=seed, eval_every=0)
        language_run.start(chosen, config, Path(names[-1]), quiet=True)
    before, after = language_subnetwork.ends(Path(names[0]))
    begun = language_run.load(start).model.state_dict()
    assert all(torch.equal(before[k], begun[k]) for k in before)
    assert any(not torch.equal(before[k], after[k]) for k in before)
    capsys.readouterr()
    mask = tmp_path / "mask.pt"
    assert main(["language", "subnetwork", *names, "--matrices", "--write", str(mask)]) == 0
    shown_text = capsys.readouterr().out
    assert "in bfloat16" in shown_text and "by chance" in shown_text and "of full" in shown_text
    assert set(checkpoint.load(mask)["weights"]) == set(before)
