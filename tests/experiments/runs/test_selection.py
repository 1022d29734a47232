"""The choice among kept policies from the data alone."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import algorithms
from experiments.cli import search
from experiments.cli.evaluate import main as evaluate_main
from experiments.runs import folders, jobs, selection
from experiments.runs import training as runs
from experiments.settings import RunSettings, build_config
from experiments.tables import plan, records, table
from mbrl import data
from mbrl.data.writers import write
from mbrl.errors import CheckpointError, ConfigError
from tests.small import CONFIGS

pytestmark = pytest.mark.usefixtures("short_episodes")


def test_offline_choice_is_among_the_kept_policies(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    chosen = RunSettings("bc", "pendulum/expert", steps=20, tensorboard=False, fqe_steps=5)
    runs.start(chosen, build_config("bc", CONFIGS["bc"]), folder, quiet=True)
    result = json.loads((folder / "selection.json").read_text())
    assert result["steps"] == [4, 8, 12, 16, 20] and result["chosen"] in result["steps"]
    assert result["chosen"] == result["steps"][int(np.argmax(result["values"]))]
    from algorithms import load

    agent = load(folder / "checkpoint.pt")
    assert evaluate_main([str(folder), "--fqe-steps", "5"]) == 0
    assert f"{result['chosen']} (chosen)" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="no run folder with kept policies"):
        evaluate_main([str(tmp_path), "--fqe-steps", "5"])
    _, policies = selection.kept_policies(folder, agent)
    for mine, kept in zip(agent.policy.parameters(), policies[-1].parameters(), strict=True):
        assert bool((mine == kept).all())


def test_episodes_that_were_held_out_do_not_choose_afterwards_either(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = RunSettings(
        "bc", "pendulum/expert", steps=20, tensorboard=False, fqe_steps=5, holdout=0.5
    )
    runs.start(settings, build_config("bc", CONFIGS["bc"]), folder, quiet=True)
    first = (folder / "selection.json").read_text()
    assert evaluate_main([str(folder), "--fqe-steps", "5"]) == 0
    assert (folder / "selection.json").read_text() == first


@pytest.mark.parametrize("name", ["neubay", "pets"])
def test_a_choice_among_policies_that_carry_something(name: str, tmp_path: Path) -> None:
    """Policies with memory are chosen from as others are. A planner learns none: asked for, the
    choice is left out of its run, and refused where it is all that is asked."""
    folder = tmp_path / "run"
    settings = RunSettings(name, "pendulum/expert", steps=4, tensorboard=False, fqe_steps=5,
                           eval_every=2, final_episodes=2)  # fmt: skip
    runs.start(settings, build_config(name, CONFIGS[name]), folder, quiet=True)
    assert jobs.finished(folder)
    if name == "neubay":
        assert json.loads((folder / "selection.json").read_text())["chosen"] in (2, 4)
        return
    assert not (folder / "selection.json").exists()
    with pytest.raises(ConfigError, match="learns no policy"):
        selection.select(folder, algorithms.load(folder / "checkpoint.pt"), None, 5)
    (folder / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        selection.agent_at(folder, "4")  # it acts by its model, which the checkpoint had


def test_kept_policies_outlive_a_damaged_checkpoint(tmp_path: Path) -> None:
    """The error names them, and one of them acts as it did; a planner's are refused."""
    folder = tmp_path / "run"
    settings = RunSettings("bc", "pendulum/expert", steps=20, tensorboard=False)
    runs.start(settings, build_config("bc", CONFIGS["bc"]), folder, quiet=True)
    whole = selection.agent_at(folder, "8")
    checkpoint = folder / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"4, 8, 12, 16, 20 were kept: .*--step 20"):
        selection.agent_at(folder, "last")
    (folder / "result.json").unlink()
    with pytest.raises(CheckpointError, match="training can only begin again"):
        jobs.job_in(folder).resume(quiet=True)
    agent, obs = selection.agent_at(folder, "8"), torch.randn(5, whole.spec.obs_dim)
    assert agent.step == 8
    assert torch.equal(agent.policy(obs), whole.policy(obs))


def test_policies_that_are_all_worth_the_same_are_not_chosen_among(tmp_path: Path) -> None:
    """Rewards of -1 and no ends, as logs of goals have them: refused before anything is trained,
    and a run without the choice goes on."""
    plain = data.load("pendulum/expert")
    rows = plain.transitions.select(slice(0, 400))
    equal = dataclasses.replace(
        rows, reward=torch.full_like(rows.reward, -1.0), terminated=torch.zeros(400).bool()
    )
    file = tmp_path / "equal.npz"
    write(plain.with_transitions(equal), file, "npz")
    folder, config = tmp_path / "run", build_config("bc", CONFIGS["bc"])
    settings = RunSettings("bc", str(file), steps=4, tensorboard=False, final_episodes=1)
    text = r"rewards of .* are -1 and nothing terminates.* the same, -100, .*--fqe-steps 0"
    with pytest.raises(ConfigError, match=text):
        runs.start(dataclasses.replace(settings, fqe_steps=5), config, folder, quiet=True)
    assert not (folder / "checkpoint.pt").exists()
    runs.start(settings, config, tmp_path / "plain", quiet=True)
    chosen = records.of_run({"fqe_steps": 5}, tmp_path / "plain")["selection"]
    assert chosen["chosen"] == 4 and "worth the same" in chosen["by"]
    assert "selection" not in records.of_run({"fqe_steps": 0}, tmp_path / "plain")
    with pytest.raises(ConfigError, match="--step last"):
        evaluate_main([str(tmp_path / "plain"), "--fqe-steps", "5"])
    with pytest.raises(ConfigError, match="--objective score"):
        search.Search("bc", str(file), ("hidden=[8],[16]",), out=tmp_path / "search").main()
    assert not (tmp_path / "search").exists()
    ended = dataclasses.replace(equal, terminated=torch.arange(400) == 399)
    selection.require_values_differ(plain.with_transitions(ended), 0.99, "")
    nothing = dataclasses.replace(ended, reward=torch.zeros(400))
    with pytest.raises(ConfigError, match="are 0, so that"):
        selection.require_values_differ(plain.with_transitions(nothing), 0.99, "")


@pytest.mark.parametrize(
    ("name", "updates"), [("invertedpendulum/expert", 0), ("pendulum/expert", 5)]
)
def test_a_table_takes_the_last_policy_where_all_are_worth_the_same(
    name: str, updates: int, tmp_path: Path
) -> None:
    file = tmp_path / "one.toml"
    file.write_text(
        f'datasets = ["{name}"]\nalgorithms = ["bc"]\nseeds = [0]\nsteps = 9\nfqe_steps = 5\n'
    )
    planned = plan.load(str(file))
    (job,) = table.describe_all(planned, table.all_cells(planned), {name: "mark"}, tmp_path / "j")
    assert folders.description(job)["run"]["fqe_steps"] == updates
