"""The verbs `language sequence`, `fit-value` and `evaluate --votes`."""

import ast
import os
import shutil
from pathlib import Path

import pytest

from algorithms.language.policy_gradient import LanguageConfig
from experiments.__main__ import main
from experiments.cli import language_sequence
from experiments.cli.language import run_main, stage_settings
from experiments.cli.language_sequence import attempts, value_of, without
from experiments.runs import folders
from experiments.runs import language as language_run
from mbrl import checkpoint
from mbrl.errors import ConfigError
from tests.experiments.cli.test_language import MODEL, SMALL, settings

FEW = [*SMALL, "--prompts=2", "--group=2", "--turn-tokens=3", "--no-tensorboard", "--eval-every=0"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    warm = ["language", "warm-start", "--task=kernels", "--steps=2", "--no-tensorboard"]
    assert main([*warm, *SMALL, "--turn-tokens=3"]) == 0
    return tmp_path


def test_each_recipe_goes_on_from_the_one_before(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb = ["language", "sequence", "score_first_stage:2", "score:1", "--task", "kernels"]
    assert main([*verb, "--horizon=2", *FEW]) == 0
    base = here / "runs/language/kernels/score_first_stage-score/seed-0"
    first, second = base / "1-score_first_stage", base / "2-score"
    assert [folders.read_json(f / "result.json")["step"] for f in (first, second)] == [2, 1]
    assert folders.read_json(second / "config.json")["language"]["start"] == str(
        first.relative_to(here)
    )
    assert "reward of attempts" in capsys.readouterr().out
    # A stage that was stopped goes on, those that are done stay.
    os.remove(second / "result.json")
    before = checkpoint.load(first / "checkpoint.pt")["step"]
    assert main([*verb, "--horizon=2", *FEW]) == 0
    assert (second / "result.json").exists()
    assert checkpoint.load(first / "checkpoint.pt")["step"] == before
    other = ["--horizon=1", "--seed", "0", "--learning-rate=0.1", *FEW]
    assert main([*verb, *other]) == 2
    assert (
        f"{first.relative_to(here)} is a stage with --learning-rate 0.0003, not 0.1 and --horizon "
        "[2], not [1]; give the options that it had" in capsys.readouterr().err
    )
    assert main([*verb, "--horizon=2", "--start=elsewhere", *FEW]) == 2
    assert "warm-start/seed-0, not" in capsys.readouterr().err
    shutil.rmtree(first)
    assert main([*verb, "--horizon=2", *FEW]) == 2
    assert f"{first.relative_to(here)}, which is not there" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--steps is given by the stages"):
        language_sequence.main(["grpo:2", "--steps", "3"], run_main, stage_settings)
    with pytest.raises(ConfigError, match="unknown recipe"):
        language_sequence.main(["grppo:2"], run_main, stage_settings)
    assert language_sequence.main([], run_main, stage_settings) == 2
    assert language_sequence.main(["--help"], run_main, stage_settings) == 0


def test_options_are_read_in_both_forms() -> None:
    options = ["--out", "x", "--task=chain", "--seed", "3"]
    assert without(options, "--out") == (["--task=chain", "--seed", "3"], "x")
    assert without(options, "--task") == (["--out", "x", "--seed", "3"], "chain")
    assert value_of(options, "--seed") == "3" and value_of(options, "--horizon") is None


def test_mean_rewards_of_attempts() -> None:
    class Reply:
        def __init__(self, reward: float) -> None:
            self.reward = reward

    class Part:
        replies = ((Reply(1.0), Reply(0.0)), (Reply(0.5),), (Reply(0.0), Reply(0.5)))

    # The second conversation is over after its first turn, and keeps what that earned.
    assert attempts([Part()]) == [0.5, pytest.approx((0 + 0.5 + 0.5) / 3)]  # type: ignore[list-item]
    Part.replies = ((Reply(0.25),), (Reply(0.75),))
    assert attempts([Part()]) == [0.5]  # type: ignore[list-item]


def test_turns_are_as_long_as_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table of attempts and in conversations; the task would give them four characters.
    Conversations are of the hardest level."""
    sizes = {"prompts": 2, "group": 2, "turn_tokens": 1, "model": MODEL}
    config = LanguageConfig(task="kernels", recipe="nsr", levels=(8, 7), **sizes)
    chosen = settings("policy_gradient", steps=1, eval_every=0)
    language_run.start(chosen, config, tmp_path, quiet=True)
    seen = []
    monkeypatch.setattr(
        language_sequence, "attempts", lambda parts: [0.0 * len(seen), seen.append(parts) or 0.0]
    )
    language_sequence.show_attempts(tmp_path)
    turns = [turn for parts in seen for part in parts for row in part.turns for turn in row]
    assert len(turns) > 20 and max(map(len, turns)) == 1
    capsys.readouterr()
    assert main(["language", "converse", str(tmp_path), "--count=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [
        ast.literal_eval(x.removeprefix("model").strip()) for x in lines if x.startswith("model ")
    ]
    assert len(said) > 10 and max(map(len, said)) == 1
    asked = [x for x in lines if x.startswith("task ") and "x in" in x]
    assert len(asked) == 4 and all(int(x.split("'")[1].split("x")[0]) >= 128 for x in asked)


def test_a_value_model_is_written_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = [option for option in SMALL if option.startswith("--model")]
    fit = ["language", "fit-value", "--task=addition", "--runs=2", "--snapshots=2", "--every=1"]
    fit += ["--rows=4", "--prompts=16", "--samples=2", "--context=4", "--steps=3", *sizes]
    assert main(fit) == 0
    file = tmp_path / "runs/language/addition/value.pt"
    shown = capsys.readouterr().out
    assert file.exists() and "4 policies on 16 prompts" in shown and "brier" in shown
    with pytest.raises(ConfigError, match="is there already"):
        language_sequence_free(fit)
    warm = ["language", "warm-start", "--task=addition", "--steps=2", "--no-tensorboard", *SMALL]
    assert main(warm) == 0
    run = ["language", "run", "grpo", "--task=addition", "--scheduler=v0", "--pool=8", "--steps=2"]
    assert main([*run, f"--value={file}", *SMALL, "--prompts=2", "--group=2",
                 "--no-tensorboard", "--eval-every=0"]) == 0  # fmt: skip


def language_sequence_free(arguments: list[str]) -> None:
    """The verb itself, whose errors are not printed."""
    import tyro

    from experiments.cli.language_value import FitValue

    tyro.cli(FitValue, args=arguments[2:]).main()


def test_votes_are_evaluated(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = ["language", "warm-start", "--task=chain", "--steps=2", "--no-tensorboard", *SMALL]
    assert main(warm) == 0
    verb = ["language", "evaluate", "runs/language/chain/warm-start/seed-0", "--problems=3"]
    assert main([*verb, "--votes=8", "--budgets", "4"]) == 0
    shown = capsys.readouterr().out
    assert "pets-online, 4" in shown and "4 of 9 problems" in shown
