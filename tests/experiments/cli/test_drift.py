"""`data check NEW --against RUN`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.__main__ import main
from tests import logs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("log")
    command = ["run", "bc", str(logs.imported(home)), "--steps", "10", "--out", str(home / "run")]
    assert main([*command, "--hidden", "8"]) == 0
    return home / "run"


def test_a_log_like_that_of_the_run_and_one_unlike_it(run: Path, tmp_path: Path, capsys) -> None:
    new = tmp_path / "new.csv"
    logs.table(seed=3).to_csv(new, index=False)
    command = ["data", "check", str(new), "--against", str(run)]
    assert main(command) == 0
    assert "Like the training data" in " ".join(capsys.readouterr().out.split())
    frame = logs.table(seed=3)
    frame["heart_rate"] += 30
    frame.loc[:99, "ward"] = "tent"
    frame.to_csv(new, index=False)
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Not like the training data: heart_rate, " in printed and "'tent' in 16.7%" in printed
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["usable"] and "heart_rate" in result["drifted"]
    assert result["columns"][0]["mean_now"] == pytest.approx(frame.heart_rate[100:].mean(), abs=1)
    assert result["rows_now"] == 600 and result["out_of_data"] > 0.9


def test_only_errors_have_a_status(run: Path, tmp_path: Path, capsys) -> None:
    new = tmp_path / "new.csv"
    logs.table().drop(columns="gain").to_csv(new, index=False)
    command = ["data", "check", str(new), "--against", str(run)]
    assert main(command) == 1
    assert "gain" in capsys.readouterr().out
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["usable"] is False
    assert main([*command, "--horizon", "3"]) == 2
    assert "leave out --horizon" in capsys.readouterr().err
    assert main(["data", "check", str(new), "--against", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_data_of_a_name(runs: list[Path], capsys) -> None:
    """The data of the run itself, and those of a better policy."""
    assert main(["data", "check", "pendulum/medium", "--against", str(runs[2]), "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["drifted"] == [] and same["out_of_data"] < 0.03
    assert main(["data", "check", "pendulum/expert", "--against", str(runs[2]), "--json"]) == 0
    assert "action[0]" in json.loads(capsys.readouterr().out)["drifted"]


def test_whole_doses_stay_continuous_where_the_new_log_has_few(tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(0)

    def log(name: str, doses: int) -> str:
        rows = np.arange(80)
        frame = pd.DataFrame({"pid": rows // 8, "t": rows % 8, "x": rng.normal(size=80)})
        frame["dose"], frame["r"] = rows % doses, rng.normal(size=80)
        frame.to_csv(tmp_path / name, index=False)
        return str(tmp_path / name)

    words = ["--obs", "x", "--action", "dose", "--reward", "r", "--episode", "pid", "--order", "t"]
    data, run = str(tmp_path / "log.npz"), str(tmp_path / "run")
    assert main(["data", "import", log("old.csv", 40), *words, "--out", data]) == 0
    assert main(["run", "bc", data, "--steps", "5", "--hidden", "8", "--out", run]) == 0
    capsys.readouterr()
    assert main(["data", "check", log("new.csv", 5), "--against", run, "--json"]) == 0
    assert "dose" in json.loads(capsys.readouterr().out)["drifted"]
