"""The wheel, the editable install and the checkout each find the cards and leave the name
`datasets` alone; the main job needs no package of an extra."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECK = """
import mbrl.data.cards, experiments.__main__, longreach
from mbrl.data import load
assert len(load("pendulum/medium-replay")) > 1000 and longreach.RAVL
print(mbrl.data.cards.cards_dir())
"""
TABLES = "from experiments.tables import plan; print(plan.names(), plan.load('classic').title)"
HUGGING_FACE = "import datasets; assert datasets.__version__ == '4.0.0', datasets"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the tracked files, so that a build leaves nothing in the checkout."""
    target = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
    return target


def environment(folder: Path, with_datasets: bool) -> Path:
    """A fresh environment that sees this one's packages (but not an editable install of ours),
    with or without a package that is called `datasets` as Hugging Face's is."""
    venv.create(folder, with_pip=False)  # ours installs into it, sooner than a pip of its own
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    if with_datasets:
        (site / "datasets").mkdir()
        (site / "datasets" / "__init__.py").write_text("__version__ = '4.0.0'\n")
    return folder / "bin" / "python"


def call(python: Path | str, *arguments: str, cwd: Path) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LONGREACH"))}
    done = subprocess.run(
        [str(python), *arguments], cwd=cwd, capture_output=True, text=True, env=kept
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("with_datasets", [False, True], ids=["alone", "beside-datasets"])
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_installed(kind: str, with_datasets: bool, source: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", with_datasets)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    alone = ["--no-deps", "--no-build-isolation"]
    if kind == "wheel":
        call(*pip, "wheel", *alone, "--wheel-dir", str(tmp_path), str(source), cwd=tmp_path)
        call(*pip, "install", *alone, str(next(tmp_path.glob("longreach-*.whl"))), cwd=tmp_path)
    else:
        call(*pip, "install", *alone, "--editable", str(source), cwd=tmp_path)
    where = call(python, "-c", CHECK, cwd=tmp_path).strip()
    assert where.endswith("_cards" if kind == "wheel" else "datasets")
    assert "ravl" in call(python.parent / "longreach", "list", cwd=tmp_path)
    for name in ("experiments", "experiment"):  # the same function, without its seconds of imports
        assert "train an algorithm" in call(python, "-m", name, "--help", cwd=tmp_path)
    assert "classic" in call(python, "-c", TABLES, cwd=tmp_path)
    if with_datasets:
        call(python, "-c", HUGGING_FACE, cwd=tmp_path)
        call(python, "-c", HUGGING_FACE, cwd=source)


# All other tests are run from a checkout as it is.
@pytest.mark.parametrize(
    "with_datasets",
    [pytest.param(False, marks=pytest.mark.long), True],
    ids=["alone", "beside-datasets"],
)
def test_checkout(with_datasets: bool, tmp_path: Path) -> None:
    """From the repository root, `import datasets` is Hugging Face's where there is one."""
    path = tmp_path / "elsewhere"
    if with_datasets:
        (path / "datasets").mkdir(parents=True)
        (path / "datasets" / "__init__.py").write_text("__version__ = '4.0.0'\n")
    code = f"import sys; sys.path.insert(1, {str(path)!r})\n{CHECK}"
    code += HUGGING_FACE if with_datasets else ""
    assert call(sys.executable, "-c", code, cwd=ROOT).strip().endswith("datasets")


def test_transformers_from_the_repository_root() -> None:
    """`transformers` looks for a package called `datasets`; ours must not answer to the name."""
    pytest.importorskip("transformers", reason="the extra `language` is not installed")
    code = "from transformers.utils import is_datasets_available as f; print(f())\nimport mbrl"
    call(sys.executable, "-c", code, cwd=ROOT)


BLOCK = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {modules} else found(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


def modules_of_extras() -> set[str]:
    """What the packages of all extras but `dev` are imported as, and what the lean install leaves
    out of gymnasium's own extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[\[<>=]", requirement)[0]
        for name, listed in extras["optional-dependencies"].items()
        for requirement in listed
        if name != "dev"
    }
    found = {m for m, owners in metadata.packages_distributions().items() if wanted & {*owners}}
    return found | {w.replace("-", "_") for w in wanted} | {"pygame", "imageio"}


@pytest.fixture
def lean(tmp_path: Path) -> dict[str, str]:
    """An environment of child processes in which no module of an extra is found."""
    modules = modules_of_extras()
    assert {"matplotlib", "PIL", "tensorboard", "stable_baselines3", "pandas", "ray"} <= modules
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(modules=sorted(modules)))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def test_the_main_job_needs_no_package_of_an_extra(lean: dict[str, str], tmp_path: Path) -> None:
    """The table is printed, the numbers are written, and one line says how to get the figure."""
    arguments = ["quickstart", "--rows", "400", "--steps", "100", "--seeds", "0"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "experiments", *arguments],
        cwd=tmp_path,
        env=lean,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert "figures need matplotlib" in last and f"pip install -e '{ROOT}[plots]'" in last
    out = tmp_path / "runs" / "quickstart" / "pendulum-medium-replay-400"
    assert sorted(f.name for f in out.glob("scores.*")) == ["scores.csv", "scores.json"]
    for algorithm in ("ravl", "edac", "mbpo"):
        assert algorithm in done.stdout
        run = out / algorithm / "seed-0"
        assert (run / "metrics.csv").exists() and not (run / "events").exists()


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from experiments.reports.figures import drawing; drawing().__enter__()", "plots"),
        pytest.param(
            "from experiments.cli.crosscheck import Crosscheck, _train_theirs as f;"
            "f(0, Crosscheck())",
            "sb3",
            marks=pytest.mark.long,
        ),
    ],
    ids=["plots", "sb3"],
)
def test_what_needs_an_extra_says_which(code: str, extra: str, lean: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=lean, capture_output=True, text=True
    )
    assert f"pip install -e '{ROOT}[{extra}]'" in done.stderr.splitlines()[-1]
