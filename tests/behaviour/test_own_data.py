"""The path of a newcomer with a log: the script of the example, and the commands of the guide."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.evaluation.halted import Halted, HaltedValues
from algorithms.evaluation.valuation import ValuationConfig
from experiments.__main__ import main
from experiments.cli.solve import default_folder
from experiments.recording.environment import collect
from experiments.runs import solve, training
from experiments.runs.solve import SolveSettings, best, plan_steps, portfolio, split
from experiments.settings import RunSettings, preset_config
from mbrl.data import load, save_npz
from mbrl.errors import ConfigError
from tests.mbrl.own_environments import Corridor

ROOT = Path(__file__).parents[2]
IMPORT = [
    "data", "import", "clinic.csv", "--obs", "lactate,ward,weight kg", "--action", "dose",
    "--reward=-abs(fill(next(lactate), 6) - 1.2) - 10 * crisis", "--episode", "patient", "--order",
    "hour", "--terminated", "crisis", "--missing", "impute", "--out", "clinic.npz",
]  # fmt: skip
QUICK = ["--value.steps", "60", "--value.dice-steps", "20", "--value.hidden", "8"]


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["make_log.py", "clinic.csv"])
    runpy.run_path(str(ROOT / "examples/make_log.py"), run_name="__main__")
    assert main(IMPORT) == 0
    return tmp_path


@pytest.mark.usefixtures("quick_halting_model", "one_registry", "quick_jobs")
def test_from_a_log_to_a_valued_policy_in_three_commands(clinic, capsys):
    data = load("clinic.npz")
    assert data.spec.obs_names[:2] == ("lactate", "lactate (missing)")
    assert data.provenance.log["units"] == {}
    capsys.readouterr()
    assert main(["data", "check", "clinic.npz"]) == 0
    assert "alternatives to the logged action were tried" in capsys.readouterr().out
    algorithms = ["bc", "iql", "discrete_cql"]  # the last has no continuous actions
    options = ["--steps", "40", "--algorithms", *algorithms, "--workers", "1", *QUICK]
    assert main(["solve", "clinic.npz", "--out", "solved", *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "80 are held out" in text and "(chosen)" in text and "than the logged policy" in text
    assert "discrete_cql failed and is left out: " in text
    result = json.loads(Path("solved/solve.json").read_text())
    assert list(result["failed"]) == ["discrete_cql"]
    assert "discrete" in result["failed"]["discrete_cql"]
    assert result["steps"] == dict.fromkeys(algorithms, 40)
    assert set(result["portfolio"]) == {"bc", "iql"}
    chosen = Path("solved") / result["chosen"]
    valued = json.loads((chosen / "valuation.json").read_text())
    assert valued["episodes"] == 80 and valued["where"] == "episodes held out from the run"
    assert "Before you deploy" in (chosen / "report.html").read_text()
    assert "80 episodes" in (chosen / "export/card.md").read_text()
    assert (chosen / "export/policy.onnx").exists()
    # the same command again finds the runs finished
    assert main(["solve", "clinic.npz", "--out", "solved", *options]) == 0
    # another call is not answered with these runs
    for changed in (["--seed", "1"], ["--holdout", "0.3"], ["--steps", "50"]):
        assert main(["solve", "clinic.npz", "--out", "solved", *options, *changed]) == 2
        assert f"{changed[0][2:]} " in " ".join(capsys.readouterr().err.split())
    save_npz(replace(data, transitions=replace(data.transitions, reward=-data.transitions.reward)),
             "clinic.npz")  # fmt: skip
    assert main(["solve", "clinic.npz", "--out", "solved", *options]) == 2
    told = capsys.readouterr()
    assert "has changed" in told.err and "(chosen)" not in told.out
    assert default_folder("a/log.npz") != default_folder("b/log.npz")
    assert default_folder("pendulum/medium") == Path("runs/solve/pendulum-medium")


def test_a_run_values_its_kept_policies_and_says_which_there_are(clinic, capsys):
    run = ["run", "iql", "clinic.npz", "--steps", "40", "--holdout", "0.2", "--no-tensorboard"]
    assert main([*run, "--out", "run"]) == 0
    value = ["value", "run", "--steps", "40", "--dice-steps", "0", "--hidden", "8"]
    capsys.readouterr()
    assert main([*value, "--step", "8", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["step"] == 8 and content["verdict"]["word"] in ("better", "worse", "cannot tell")
    assert main([*value, "--step", "7"]) == 2
    assert "kept the policies of 8, 16, 24, 32, 40" in capsys.readouterr().err
    assert main([*value, "--step", "chosen"]) == 2
    assert "nothing was chosen" in capsys.readouterr().err
    assert main([*value, "--data", "clinic.npz"]) == 0
    assert "episodes of clinic.npz" in capsys.readouterr().out
    assert main(["evaluate", "run", "--step", "8", "--task", "Pendulum-v1"]) == 2


def test_holding_out_does_not_go_with_a_task_or_a_shared_model(clinic, capsys):
    assert main(["run", "sac", "Pendulum-v1", "--holdout", "0.2", "--out", "x"]) == 2
    assert "does not go with learning in a task" in capsys.readouterr().err
    assert main(["run", "iql", "clinic.npz", "--holdout", "0.0001", "--out", "y"]) == 2
    assert "both parts need one at least" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="choosing needs episodes"):
        SolveSettings(holdout=0.0)


def test_the_portfolio_fits_the_data(clinic):
    log = load("clinic.npz")
    assert portfolio(SolveSettings(), log)["shac"] == {"termination": "learned"}
    models = portfolio(SolveSettings(algorithms=("iql", "ravl", "neubay")), log)
    part = {"termination": "learned"}
    longest = max(end - begin for begin, end in log.transitions.episodes())
    whole = {"rollouts": part | {"cap": longest}}
    assert models == {"iql": {}, "ravl": {"imagination": part}, "neubay": whole}
    known = portfolio(SolveSettings(), load("pendulum/medium"))
    assert "shac" in known and known["shac"] == {}
    endless = load("pendulum/medium")
    endless = replace(endless, spec=replace(endless.spec, task="a plant"))
    assert portfolio(SolveSettings(), endless)["shac"] == {"termination": "never"}
    kept = log.transitions.terminated.nonzero()[:4, 0]  # fewer ends than can be learned from
    few = torch.zeros_like(log.transitions.terminated).index_fill(0, kept, True)
    few = replace(log, transitions=replace(log.transitions, terminated=few))
    assert set(portfolio(SolveSettings(), few)) == {"bc", "iql", "td3_bc", "edac"}
    assert portfolio(SolveSettings(algorithms=("ravl",)), few) == {"ravl": {}}
    assert "discrete_sac_n" in portfolio(SolveSettings(), load("cartpole/random"))


def test_updates_of_an_earlier_call_are_kept(tmp_path):
    """Timed anew, an algorithm would get another number than its finished run had."""
    data = load("pendulum/medium")
    settings = RunSettings("iql", "pendulum/medium", steps=77, holdout=0.2)
    training.create(settings, preset_config("iql", "pendulum/medium"), tmp_path / "iql")
    chosen = {"iql": {}, "bc": {}}
    steps = plan_steps(SolveSettings(budget=0.5), "pendulum/medium", data, chosen, tmp_path)
    assert steps["iql"] == 77 and steps["bc"] >= 100


def test_one_episode_cannot_choose():
    few = load("invertedpendulum/expert")  # five episodes
    with pytest.raises(ConfigError, match=r"one of 5 episodes.*--holdout 0\.41"):
        split(SolveSettings(), few)
    assert len(split(SolveSettings(holdout=0.41), few)[1].transitions.episodes()) == 2


class Fitted:
    """A valuation by fitted Q evaluation alone."""

    def __init__(self, low, believed=True):
        self.estimates = [type("E", (), {"difference_low": low, "believed": believed})]


def test_by_fitted_q_the_largest_believed_bound_is_chosen():
    assert best({"bc": Fitted(-1), "iql": Fitted(2), "edac": Fitted(9, False)}) == "iql"
    assert best({"iql": Fitted(2, False), "bc": Fitted(-1, False)}) == "bc"


@pytest.mark.parametrize(
    ("leads", "expected", "decided"),
    [
        ({"iql": 30.0, "edac": 60.0}, "edac", "model"),
        ({"iql": 30.0, "edac": 60.0, "shac": (80.0, 90.0)}, "edac", "model"),  # 80 of unlike sizes
        ({"iql": 19.0, "edac": -60.0}, "bc", "model"),  # 0.2 of 100 is negligible; edac differs
        ({"iql": 21.0, "edac": -60.0}, "iql", "model"),
        ({"iql": 19.0, "edac": -19.0}, "iql", "fitted Q"),  # the model says nothing of either
    ],
)
def test_a_lead_must_be_sure_and_not_negligible(leads, expected, decided, monkeypatch):
    """Returns of the logged windows deviate by 100. Four held-out episodes; a pair is the mean of a
    lead over them and half of the distance between its two sizes."""
    wave = np.array([1.0, -1.0, 1.0, -1.0])
    each = {"bc": np.zeros(4)}
    for name, lead in leads.items():
        mean, wide = lead if isinstance(lead, tuple) else (lead, 1.0)
        each[name] = mean + wide * wave
    policies = {name: type("A", (), {"policy": None}) for name in each}
    values = HaltedValues(tuple(Halted(v, 1.0, 0.0, 0.0, 9) for v in each.values()), 0.0, 100.0)
    fitted = {"bc": 0.0, "iql": 2.0, "edac": 1.0, "shac": 0.0}
    rules = []
    monkeypatch.setattr(solve, "halted_values", lambda *given: rules.append(given[3]) or values)
    monkeypatch.setattr(solve, "own_gamma", lambda _: 0.99)
    monkeypatch.setattr(
        solve, "value_policies", lambda *_, **__: [Fitted(fitted[name]) for name in each]
    )
    data = load("pendulum/expert")
    choice = solve.choose(policies, data, data, ValuationConfig())
    assert choice.name == expected
    assert bool(choice.halted) == (decided == "model")
    terminated = torch.arange(len(data.transitions)) < 5
    own = replace(data, spec=replace(data.spec, task="a plant"))
    own = replace(own, transitions=replace(own.transitions, terminated=terminated))
    assert solve.choose(policies, own, own, ValuationConfig()).name == expected
    assert callable(rules[0]) and rules[1] == "learned"


@pytest.mark.long
def test_data_with_action_masks_are_solved_and_valued(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    save_npz(collect(Corridor, steps=300), "corridor.npz")
    options = ["--steps", "30", "--algorithms", "bc", "discrete_iql", "--workers", "1", *QUICK]
    assert main(["solve", "corridor.npz", "--out", "solved", *options]) == 0
    text = capsys.readouterr().out
    assert "(chosen)" in text and "than the logged policy" in text and "DICE" not in text
