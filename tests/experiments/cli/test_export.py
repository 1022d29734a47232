"""The verb `export`: a run's policy and its card, and the example that acts with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
import onnxruntime

import algorithms
from experiments.__main__ import main
from mbrl.data import load
from tests import logs

pytestmark = pytest.mark.usefixtures("one_registry")

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "run_onnx.py"


@pytest.fixture(scope="module")
def of_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a user's log, with two kept policies, and its valuation."""
    home = tmp_path_factory.mktemp("log")
    data = logs.imported(home)
    command = ["run", "discrete_cql", str(data), "--steps", "60", "--eval-every", "20", "--holdout"]
    small = ["0.2", "--hidden", "8", "8", "--critics", "2", "--out", str(home / "run")]
    assert main([*command, *small]) == 0
    value = ["value", str(home / "run"), "--steps", "20", "--resamples", "2", "--dice-steps", "0"]
    assert main(value) == 0
    return home / "run"


def test_the_export_of_a_run_on_a_log(of_log: Path, capsys) -> None:
    assert main(["export", str(of_log), "--fallback", "wait"]) == 0
    printed = capsys.readouterr().out
    assert "obs to action, out_of_data, fallback_used" in printed and "0 actions differ" in printed
    card = json.loads((of_log / "export" / "card.json").read_text())
    names = ["heart_rate", "lactate", "lactate (missing)", "ward=ED", "ward=ICU", "ward=ward"]
    assert [o["name"] for o in card["observations"]] == names
    units = [o.get("unit") for o in card["observations"]]
    assert units == ["1/min", "mmol/l", None, None, None, None]  # the third is a flag
    assert card["observations"][3]["from"] == "1 where column ward is 'ED', else 0"
    assert "else 2." in card["observations"][1]["from"]  # the median
    assert [a["name"] for a in card["actions"]] == ["send home", "treat", "wait"]
    assert sum(a["logged_share"] for a in card["actions"]) == pytest.approx(1)
    manifest = json.loads((of_log / "manifest.json").read_text())
    assert card["data"]["fingerprint"] == manifest["data"]["fingerprint"]
    assert card["trained_with"]["commit"] == manifest["commit"]
    assert card["encoding"]["schema"]["missing"] == "impute"
    valued = json.loads((of_log / "valuation.json").read_text())
    assert card["value"]["verdict"] == valued["verdict"]
    page = (of_log / "export" / "card.md").read_text()
    assert valued["verdict"]["sentence"] in page and "1/min" in page


def test_a_kept_policy_and_the_value_of_another(of_log: Path, tmp_path: Path) -> None:
    assert main(["export", str(of_log), "--step", "40", "--out", str(tmp_path / "x")]) == 0
    card = json.loads((tmp_path / "x" / "card.json").read_text())
    assert card["policy"]["updates"] == 40
    assert "for the policy of update 60" in card["value"]["note"]
    assert card["value"]["note"] in (tmp_path / "x" / "card.md").read_text()


def test_wrong_folders_and_steps(of_log: Path, tmp_path: Path, capsys) -> None:
    assert main(["export", str(tmp_path)]) == 2
    assert "holds no run with a checkpoint" in capsys.readouterr().err
    other = tmp_path / "language"
    other.mkdir()
    (other / "config.json").write_text('{"language": {}}')
    (other / "checkpoint.pt").touch()
    assert main(["export", str(other)]) == 2
    assert "holds no run: its config.json is of another kind" in capsys.readouterr().err
    assert main(["export", str(of_log), "--step", "41"]) == 2
    assert "kept the policies of 40, 60" in capsys.readouterr().err


def test_the_example_needs_neither_the_library_nor_torch(runs: list[Path], tmp_path: Path) -> None:
    """A trained run, with numpy and onnxruntime alone, from a folder without the library."""
    out = ["--out", str(tmp_path / "export")]
    assert main(["export", str(runs[2]), *out, "--fallback=-2"]) == 0
    assert main(["export", str(runs[2]), *out]) == 0  # again, in its place
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) <= 20
    assert [line for line in lines if line.startswith(("import", "from"))] == [
        "import sys", "import numpy as np", "import onnxruntime",
    ]  # fmt: skip
    obs = load("pendulum/medium").transitions.obs[:5].numpy()
    np.save(tmp_path / "obs.npy", np.concatenate([obs, obs * 10]))
    blocked = "import sys; sys.modules.update(torch=None, mbrl=None); sys.argv = sys.argv[1:];"
    code = f"{blocked} import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLE), "export/policy.onnx", "obs.npy"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == 10
    assert all("outside the data" in line for line in printed[5:])
    agent = algorithms.load(runs[2] / "checkpoint.pt")
    expected = agent.act(obs)[0]
    opened = onnxruntime.InferenceSession(str(tmp_path / "export" / "policy.onnx"))
    action = opened.run(["action"], {"obs": obs})[0]
    assert np.abs(action - expected).max() <= 4e-6
    first = float(printed[0].split("]")[0].strip("[ "))
    assert first == pytest.approx(float(expected[0, 0]), abs=1e-3)


def test_an_online_run_has_no_score(tmp_path: Path) -> None:
    small = ["--hidden", "8", "--steps", "2", "--final-episodes", "1", "--eval-every", "0"]
    run = tmp_path / "run"
    command = ["run", "policy_gradient", "CartPole-v1", *small, "--out", str(run)]
    assert main(command) == 0
    assert main(["export", str(run)]) == 0
    card = json.loads((run / "export" / "card.json").read_text())
    assert [o["name"] for o in card["outputs"]] == ["action"]
    assert card["data"] is None and "learned by acting" in card["limits"][0]
    assert main(["export", str(run), "--fallback", "cloned"]) == 2
