"""How the library starts: what help imports, names that other packages and folders have too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import algorithms
import longreach
from mbrl.evaluation import evaluate
from mbrl.native.build import library
from mbrl.tasks import make

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "matplotlib", "scipy", "stable_baselines3", "mbrl", "numpy")


def python(*arguments: str, cwd: Path = ROOT, path: str = str(ROOT)) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["table", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import contextlib, sys\n"
        "from experiments.__main__ import main\n"
        f"with contextlib.suppress(SystemExit): main({arguments})\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert "usage" in done.stdout


def test_experiment_is_experiments() -> None:
    one, other = (python("-m", name, "--help") for name in ("experiment", "experiments"))
    assert one.stdout == other.stdout != "" and one.returncode == other.returncode == 0
    assert python("-m", "experiment", "rnu").returncode == 2


def test_the_front_door_has_every_algorithm_when_it_is_asked_for() -> None:
    assert longreach.RAVL is algorithms.RAVL and longreach.IQLConfig is algorithms.IQLConfig
    assert longreach.load is algorithms.load
    assert longreach.evaluate is evaluate and longreach.make is make
    assert set(algorithms.__all__) | {
        "collect",
        "evaluate",
        "export",
        "fit_many",
        "make",
        "__version__",
    } == set(dir(longreach))
    assert longreach.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="has no attribute 'RAVEL'"):
        _ = longreach.RAVEL
    code = "import sys, longreach as lr; print(lr.__version__, 'torch' in sys.modules)"
    assert python("-c", code).stdout.split() == [longreach.__version__, "False"]


@pytest.mark.long
def test_folders_of_the_librarys_names_disturb_no_child_process(tmp_path: Path) -> None:
    for name in ("experiments", "algorithms", "mbrl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the user')")
    code = """
from pathlib import Path
from experiments.runs import pool, training
from experiments.settings import RunSettings, preset_config
settings = RunSettings("bc", "pendulum/expert", steps=5, eval_every=0, final_episodes=1)
training.create(settings, preset_config("bc", settings.data), Path("run"))
print(pool.run_all([Path("run")], 1))
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "{}", done.stdout + done.stderr
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    "module", ["longreach", "world_models", "algorithms", "experiments.__main__"]
)
def test_a_foreign_mbrl_is_named_with_the_remedy(module: str, tmp_path: Path) -> None:
    (tmp_path / "mbrl").mkdir()
    foreign = tmp_path / "mbrl" / "__init__.py"
    foreign.write_text("__version__ = '0.2.0'\n")
    done = python("-c", f"import {module}", path=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError") and str(foreign) in last and "pip uninstall" in last


@pytest.mark.skipif(library() is None, reason="no C++ compiler")
def test_a_run_begins_without_pytorchs_compiler() -> None:
    code = """
import sys
import torch
from mbrl.networks import optim
p = torch.ones(3, requires_grad=True)
optimiser = optim.adam([p], 0.1)
optim.descend(optimiser, (p * p).sum())
optimiser.load_state_dict(optimiser.state_dict())
print("torch._dynamo" in sys.modules, p.tolist())
"""
    done = python("-c", code)
    assert done.stdout.split()[0] == "False", done.stdout + done.stderr
