"""The verb `language` on joint tasks: evaluations after stages, and what was forgotten."""

from pathlib import Path

import pytest
import torch

from algorithms.language.evaluation import Score
from algorithms.language.imitation import ImitationConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from experiments.cli import language
from experiments.runs import folders, jobs
from experiments.runs import language as language_run
from mbrl.records import MetricsFile
from tests.behaviour.test_resume import killed_after
from tests.experiments.cli.test_language import MODEL, assert_same_runs, settings


def test_stages_are_evaluated_at_their_ends_also_after_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LanguageConfig(
        task="addition+chain",
        levels=(1, 1001),
        prompts=2,
        group=2,
        turn_tokens=3,
        stages=("addition", "chain", "addition"),
        stage_tokens=24,
        model=MODEL,
    )
    chosen = settings("policy_gradient", eval_every=0)
    language_run.start(chosen, config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    work = lambda: language_run.start(chosen, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, work, LanguagePolicyGradient, "update", 7)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder, 9)
    rows = MetricsFile(folder / "evaluations.csv").rows()
    assert {(r["stage"], r["over"]) for r in rows} == {("0", "1"), ("1", "1")}
    assert len({r["step"] for r in rows}) == 2
    result = folders.read_json(folder / "result.json")
    scores = language_run.after_stages(folder)
    assert scores.shape == (3, 2) and scores[-1].tolist() == list(result["parts"].values())
    first = {int(r["level"]): float(r["accuracy"]) for r in rows if r["stage"] == "0"}
    assert scores[0].tolist() == [first[1], first[1001]]
    assert torch.tensor(result["accuracy"]) == pytest.approx(sum(result["parts"].values()) / 2)
    language.show(folder)
    shown = capsys.readouterr().out
    assert "forgotten" in shown and "chain 1" in shown and "chain 2 (held out)" in shown


def test_levels_that_a_stage_trains_on_are_not_called_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = ("addition:levels=1", "addition:levels=2")
    config = LanguageConfig(task="addition", levels=(4,), stages=stages, model=MODEL)
    language_run.create(settings("policy_gradient"), config, tmp_path)
    scores = [Score(x, 1, 0.1 * x, None, {}, {}, 1.0) for x in range(1, 7)]
    agent = LanguagePolicyGradient(config=config)
    result = language_run.summary(agent, scores) | {"step": 9}
    assert result["accuracy"] == pytest.approx(0.15)
    assert result["accuracy_other_levels"] == pytest.approx(0.45)
    folders.write_json(tmp_path / "result.json", result)
    language.show(tmp_path)
    rows = [x.split("│")[1].strip() for x in capsys.readouterr().out.splitlines() if "│" in x][:6]
    assert rows == ["1", "2", *(f"{x} (held out)" for x in range(3, 7))]


def test_one_task_has_neither_parts_nor_stages(tmp_path: Path) -> None:
    config = ImitationConfig(task="chain", rows=2, model=MODEL)
    language_run.start(settings("imitation", steps=2), config, tmp_path / "run", quiet=True)
    assert "parts" not in folders.read_json(tmp_path / "run" / "result.json")
    assert "stage" not in MetricsFile(tmp_path / "run" / "evaluations.csv").rows()[0]
