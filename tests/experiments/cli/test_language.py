"""The verb `language`: runs of language models, killed, resumed, evaluated, shown."""

import base64
from pathlib import Path

import pytest

from algorithms.language import schedule
from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.learner import ModelConfig
from algorithms.language.policy_gradient import LanguageConfig, LanguagePolicyGradient
from algorithms.language.tasks.guessing import Guessing
from experiments.__main__ import main
from experiments.cli import language
from experiments.runs import folders, jobs
from experiments.runs import language as language_run
from experiments.runs.language import LanguageSettings
from mbrl import checkpoint
from mbrl.errors import ConfigError
from mbrl.records import TIME_COLUMNS, MetricsFile
from tests.algorithms.language.small import TINY
from tests.behaviour.test_resume import assert_same, killed_after

MODEL = ModelConfig(transformer=TINY)
SMALL = [
    "--model.transformer.width=16",
    "--model.transformer.layers=2",
    "--model.transformer.heads=2",
    "--model.transformer.hidden=24",
    "--final-problems=3",
    "--final-samples=2",
    "--eval-problems=2",
]


def settings(learner: str, **changes: object) -> LanguageSettings:
    values = {
        "steps": 9,
        "eval_every": 3,
        "eval_problems": 2,
        "final_problems": 3,
        "final_samples": 2,
        "log_every": 2,
        "checkpoint_every": 4,
        "tensorboard": False,
    }
    return LanguageSettings(learner, **(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def short_guessing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four turns and not nine, and two levels, for runs that look at all levels several times."""
    for name, value in (("levels", (8, 16)), ("trained", (8, 16)), ("max_turns", 4)):
        monkeypatch.setattr(Guessing, name, value)


def assert_same_runs(first: Path, second: Path, steps: int) -> None:
    contents = [checkpoint.load(folder / "checkpoint.pt") for folder in (first, second)]
    assert contents[0]["step"] == steps
    assert_same(*contents)
    for name in ("metrics.csv", "evaluations.csv"):
        rows = [MetricsFile(folder / name).rows() for folder in (first, second)]
        kept = [[{k: v for k, v in r.items() if k not in TIME_COLUMNS} for r in t] for t in rows]
        assert kept[0] == kept[1] and kept[0]
    results = [folders.read_json(folder / "result.json") for folder in (first, second)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


@pytest.mark.usefixtures("short_guessing")
@pytest.mark.parametrize("learner", ["imitation", "policy_gradient"])
def test_killed_runs_end_like_whole_ones(learner: str, tmp_path: Path) -> None:
    config: ImitationConfig | LanguageConfig
    if learner == "imitation":
        config, owner = ImitationConfig(task="guessing", rows=4, model=MODEL), Imitation
    else:
        config = LanguageConfig(
            task="guessing", recipe="gigpo", prompts=2, group=2, staleness=4, model=MODEL
        )
        owner = LanguagePolicyGradient
    chosen = settings(learner)
    language_run.start(chosen, config, tmp_path / "whole", quiet=True)
    folder = tmp_path / "killed"
    work = lambda: language_run.start(chosen, config, folder, quiet=True)  # noqa: E731
    killed_after(folder, work, owner, "update", 6)
    killed_after(folder, lambda: jobs.resume(folder, quiet=True), owner, "next_batch", 2)
    jobs.resume(folder, quiet=True)
    assert_same_runs(tmp_path / "whole", folder, 9)
    assert jobs.job_in(folder).kind == "language" and jobs.finished(folder)
    steps = [row["step"] for row in MetricsFile(folder / "evaluations.csv").rows()]
    assert sorted(set(steps), key=int) == ["0", "3", "6", "9"]


@pytest.mark.usefixtures("short_guessing")
def test_a_killed_run_with_workers_can_be_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LanguageConfig(
        task="guessing", recipe="nsr", prompts=2, group=2, staleness=4, model=MODEL
    )
    chosen = settings(
        "policy_gradient", workers=2, worker_kind="inline", chunk=1, budget=3, checkpoint_every=2
    )
    work = lambda: language_run.start(chosen, config, tmp_path, quiet=True)  # noqa: E731
    killed_after(tmp_path, work, LanguagePolicyGradient, "update", 9)
    killed_after(
        tmp_path, lambda: jobs.resume(tmp_path, quiet=True), LanguagePolicyGradient, "update", 5
    )
    jobs.resume(tmp_path, quiet=True)
    assert "lost" in (tmp_path / "schedule.jsonl").read_text()
    assert main(["language", "replay", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "the same model, bit for bit\n"


def test_imitation_stops_where_it_was_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_run, "accuracy", lambda scores, levels: 0.5)
    chosen = settings("imitation", until=0.4)
    config = ImitationConfig(task="addition", rows=2, model=MODEL)
    language_run.start(chosen, config, tmp_path, quiet=True)
    assert folders.read_json(tmp_path / "result.json")["step"] == 3
    assert checkpoint.load(tmp_path / "checkpoint.pt")["step"] == 3


def test_a_run_begins_with_the_warm_start_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    warm = ["language", "warm-start", "--task=addition", "--steps=2", "--eval-every=0"]
    assert main([*warm, "--until=None", *SMALL]) == 0
    run = ["--task=addition", "--steps=2", "--prompts=2", "--group=2", *SMALL]
    assert main(["language", "run", "grpo", *run]) == 0
    folder = language.run_folder("addition", "grpo", 0)
    first = language_run.load(language.warm_folder("addition", 0))
    agent = language_run.load(folder)
    output = language_run.read_settings(folder)[0]
    assert output.start == str(language.warm_folder("addition", 0)) and agent.step == 2
    assert_same(
        first.model.state_dict(), language_run.new_learner(output, agent.config).model.state_dict()
    )
    capsys.readouterr()
    assert main(["language", "evaluate", str(folder), "--problems=2", "--samples=2"]) == 0
    shown = capsys.readouterr().out
    assert "pass@2" in shown and "cons@2" in shown and "held out" in shown
    assert main(["language", "converse", str(folder), "--count=2", "--level=3"]) == 0
    assert capsys.readouterr().out.count("solved") == 2
    other = [*run, "--model.transformer.heads=4", "--seed=0", "--out=other"]
    assert main(["language", "run", "grpo", *other]) == 2
    assert "give --start with a folder that fits" in capsys.readouterr().err


def test_a_scheduler_and_its_settings() -> None:
    words = "--scheduler difficulty_targeted --scheduler-settings references=2 every=3 --pool 9"
    command = language.parse_run(
        language.ROUNDS, LanguageConfig(), "grpo", "run grpo", words.split()
    )
    assert command.config.scheduler_settings == ("references=2", "every=3")
    assert schedule.settings(command.config).every == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "gripo"], "did you mean 'grpo'"),
        (["run", "grpo", "--task=additon"], "did you mean 'addition'"),
        (["run", "grpo", "--recipe=rloo"], "two recipes, grpo and that of --recipe"),
        (["run", "grpo", "--scheduler=vade"], "give pool the number of problems"),
        (["run", "grpo", "--templates=2", "--workers=2"], "leave workers at 0"),
        (["run", "grpo", "--start=nowhere"], "nowhere, which holds no checkpoint.pt"),
        (["run", "grpo", "--model=nowhere"], "nowhere holds no model"),
        (["warm-start", "--start=nowhere"], "start is nowhere, which holds no checkpoint.pt"),
        (["warm-start", "--until=2"], "until is 2.0"),
        (["warm-start", "--workers=2"], "imitation samples nothing"),
        (["replay", "nowhere"], "nowhere holds no run of a language model"),
        (["evaluate", "nowhere"], "nowhere holds no run of a language model"),
        (["walk"], "unknown command of language 'walk'"),
    ],
)
def test_mistakes_are_named_before_any_work(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["language", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("reinforce_ada", ["--task=addition", "--scheduler=reinforce_ada_scheduler", "--pool=8"]),
        ("fapo", ["--task=chain"]),
        ("arpo", ["--task=guessing"]),
    ],
)
def test_recipes_that_the_defaults_do_not_fit_run(
    recipe: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = options[0].split("=")[1]
    few = ["--steps=1", "--eval-every=0", *SMALL]
    assert main(["language", "warm-start", f"--task={task}", "--until=None", *few]) == 0
    run = ["language", "run", recipe, *options, "--prompts=4", "--group=2"]
    assert main([*run, *few]) == 0


def test_options_are_checked_for_the_recipe_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`reinforce` learns from single answers, which the default recipe cannot."""
    monkeypatch.chdir(tmp_path)
    few = ["--steps=1", "--eval-every=0", *SMALL]
    assert main(["language", "warm-start", "--until=None", *few]) == 0
    assert main(["language", "run", "reinforce", "--prompts=4", "--group=1", *few]) == 0
    assert main(["language", "run", "grpo", "--prompts=4", "--group=1", *few]) == 2
    assert "recipe grpo compares" in capsys.readouterr().err


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["language", "list"]) == 0
    assert "grid_world" in capsys.readouterr().out
    assert main(["language", "--help"]) == 0 and main(["language"]) == 2


@pytest.mark.parametrize("folder", [["--model", "some/folder"], ["--model=some/folder"]])
def test_the_folder_of_a_model_goes_with_its_other_settings(folder: list[str]) -> None:
    options = [*folder, "--model.lora", "8", "--model.lora-targets", "q_proj", "v_proj"]
    options += ["--model.opening", "bare", "--model.end", "\n"]
    command = language.parse_run(language.ROUNDS, LanguageConfig(), "grpo", "run grpo", options)
    assert command.config.model == ModelConfig(
        "some/folder", lora=8, lora_targets=("q_proj", "v_proj"), opening="bare", end="\n"
    )


def test_what_a_folders_model_solves_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model that is not read from a folder: that of a new learner."""
    agent = LanguagePolicyGradient(config=LanguageConfig(task="larger", model=MODEL))
    monkeypatch.setattr(language.huggingface, "load", lambda *_, **__: (agent.model, agent.codec))
    counts = ["--problems", "3", "--samples", "2"]
    assert main(["language", "rates", "folder", "--tasks", "larger", "addition", *counts]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if "±" in x]
    assert [x.split("│")[1].strip() for x in lines] == ["larger", *3 * ["addition"]]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="until needs evaluations"):
        LanguageSettings("imitation", until=0.5, eval_every=0)
    with pytest.raises(ConfigError, match="did you mean 'imitation'"):
        LanguageSettings("imitaton")


def test_a_run_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = LanguageConfig(task="addition", recipe="nsr", prompts=2, group=2, model=MODEL)
    language_run.start(settings("policy_gradient"), config, tmp_path, quiet=True)
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "nsr on addition, seed 0" in page and "pass@2" in page
    for name in ("report-accuracy.png", "report-losses.png"):
        picture = (tmp_path / name).read_bytes()
        assert len(picture) > 1000 and base64.b64encode(picture).decode() in page
