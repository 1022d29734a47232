"""The verb `run`: values from a file, under those of the command line."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import algorithms
from experiments.__main__ import main
from experiments.cli.run import run_command, value_of
from experiments.settings import default_steps
from mbrl import data
from mbrl.errors import ConfigError
from mbrl.records import TIME_COLUMNS, MetricsFile

SMALL = ["--steps", "30", "--eval-episodes", "2", "--final-episodes", "2", "--log-every", "5"]


def test_a_run_repeats_from_its_own_config(tmp_path: Path) -> None:
    """Byte for byte, whatever the options and the preset were."""
    first, again = tmp_path / "first", tmp_path / "again"
    options = ["--hidden", "8", "8", "--seed", "7", "--expectile", "0.8", *SMALL]
    assert main(["run", "iql", "pendulum/medium", *options, "--out", str(first)]) == 0
    file = str(first / "config.json")
    assert main(["run", "iql", "pendulum/medium", "--config", file, "--out", str(again)]) == 0
    policies = [str(p.relative_to(first)) for p in (first / "policies").iterdir()]
    assert len(policies) > 1
    for name in ("config.json", *policies):
        assert (first / name).read_bytes() == (again / name).read_bytes(), name
    rows = [
        [{k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in file.rows()]
        for file in (MetricsFile(f / "metrics.csv") for f in (first, again))
    ]
    assert rows[0] == rows[1] and rows[0]
    states = [torch.load(f / "checkpoint.pt", weights_only=True)["state"] for f in (first, again)]
    assert torch.equal(states[0]["generator"], states[1]["generator"])


def test_options_come_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[run]\nseed = 4\nsteps = 50\n[config]\nexpectile = 0.6\nhidden = [16]\ngamma = 0.9\n"
    )
    for given in (["--config", str(file)], [f"--config={file}"]):
        command = run_command("iql", "pendulum/medium", [*given, "--gamma", "0.5", "--seed", "1"])
        assert (command.settings.seed, command.settings.steps) == (1, 50)
        config = command.config
        assert (config.expectile, config.hidden, config.gamma) == (0.6, (16,), 0.5)
    plain = run_command("iql", "pendulum/medium", [])
    assert config.batch_size == plain.config.batch_size and plain.settings.seed == 0


def test_nested_values_and_other_data(tmp_path: Path) -> None:
    """A file of one dataset serves for another one."""
    file = tmp_path / "config.json"
    values = {"run": {"algorithm": "ravl", "data": "pendulum/medium", "seed": 3}}
    values["config"] = {"learner": {"critics": 4}}
    file.write_text(json.dumps(values))
    command = run_command("ravl", "pendulum/expert", ["--config", str(file)])
    assert command.settings.data == "pendulum/expert" and command.settings.seed == 3
    plain = run_command("ravl", "pendulum/expert", [])
    assert command.config.learner.critics == 4
    assert command.config.learner.eta == plain.config.learner.eta  # RAVL's own default
    assert command.config.model == plain.config.model


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[config]\nexpectil = 0.5\n", "did you mean 'expectile'"),
        ("[run]\nstep = 5\n", "did you mean 'steps'"),
        ("[configs]\nexpectile = 0.5\n", "did you mean 'config'"),
        ("[config]\nexpectile = 1.5\n", "expectile is 1.5"),
        ("[config]\nexpectile = 'high'\n", "expected float"),
        ("[run]\nalgorithm = 'bc'\n", "is of a run of bc"),
        ("run = 'x'\n", "must hold the tables"),
        ("[run\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_an_error_with_the_nearest_names(
    text: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        run_command("iql", "pendulum/medium", ["--config", str(file)])
    with pytest.raises(ConfigError, match="cannot be read"):
        run_command("iql", "pendulum/medium", ["--config", str(tmp_path / "none.toml")])


def test_a_continuation_repeats_too(tmp_path: Path) -> None:
    small = ["--hidden", "8", "--steps", "20", "--final-episodes", "1", "--eval-every", "0"]
    logged, online = str(tmp_path / "logged"), tmp_path / "online"
    assert main(["run", "iql", "pendulum/medium", *small, "--out", logged]) == 0
    goes_on = ["--after", logged, "--steps", "10", "--final-episodes", "1", "--eval-every", "0"]
    assert main(["run", "iql", "Pendulum-v1", *goes_on, "--out", str(online)]) == 0
    file, again = str(online / "config.json"), tmp_path / "again"
    assert main(["run", "iql", "Pendulum-v1", "--config", file, "--out", str(again)]) == 0
    for name in ("config.json", "policies/30.pt"):
        assert (online / name).read_bytes() == (again / name).read_bytes()


def test_a_run_may_be_scored_by_sampled_actions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["--hidden", "8", "--steps", "20", "--final-episodes", "3", "--eval-every", "0"]
    out = ["--eval-stochastic", "--out", str(folder)]
    assert main(["run", "fql", "pendulum/medium", *words, *out]) == 0
    stored = np.load(folder / "evaluations.npz")["returns"]
    capsys.readouterr()
    returns = {}
    for name, more in {"sampled": ["--stochastic"], "greedy": []}.items():
        assert main(["evaluate", str(folder), "--episodes", "3", "--json", *more]) == 0
        returns[name] = json.loads(capsys.readouterr().out)["returns"]
    assert returns["sampled"] == stored.tolist() != returns["greedy"]


def test_scores_are_on_the_scale_of_the_task_that_they_are_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = algorithms.BC(data.load("pendulum/medium").spec, seed=0)
    agent.save(tmp_path / "agent.pt")
    other = f"{__name__}:other_pendulum,max_episode_steps=20"
    short = "Pendulum-v1,max_episode_steps=20"
    for task, known in (("Pendulum-v1", True), (short, False), (other, False)):
        words = ["--task", task, "--episodes", "1", "--json"]
        assert main(["evaluate", str(tmp_path / "agent.pt"), *words]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["score"] is not None) == known
        assert result["standard_error"] is None  # unknown from one start


def other_pendulum() -> gymnasium.Env:
    """Pays otherwise than the task that it looks like."""
    return gymnasium.wrappers.TransformReward(gymnasium.make("Pendulum-v1").unwrapped, abs)


def test_value_of() -> None:
    assert value_of("--a", ["--b", "1", "--a", "2"]) == "2"
    assert value_of("--a", ["--a=x=y"]) == "x=y"
    assert value_of("--a", []) is None and value_of("--a", ["--a"]) is None
    assert value_of("--a", ["--ab", "1"]) is None


def test_a_decay_as_long_as_the_presets_budget_is_not_replaced_in_silence() -> None:
    budget = default_steps("iql", "pendulum/medium")
    for given in (["--decay-steps", str(budget)], [f"--decay-steps={budget}"]):
        with pytest.raises(ConfigError, match=rf"follows --steps \(50\).*{budget + 1}"):
            run_command("iql", "pendulum/medium", ["--steps", "50", *given])
        assert run_command("iql", "pendulum/medium", given).config.decay_steps == budget
    other = run_command("iql", "pendulum/medium", ["--steps", "50", "--decay-steps", "70"])
    assert other.config.decay_steps == 70
