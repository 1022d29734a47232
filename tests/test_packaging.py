"""The wheel, the editable install and the checkout each find the cards and leave the name
`datasets` alone."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
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
    venv.create(folder, with_pip=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for bundled in site.glob("setuptools*"):  # older than the build needs, and first in line
        shutil.rmtree(bundled)
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
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    if kind == "wheel":
        call(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
             "--wheel-dir", str(tmp_path), str(source), cwd=tmp_path)  # fmt: skip
        call(python, *pip, str(next(tmp_path.glob("longreach-*.whl"))), cwd=tmp_path)
    else:
        call(python, *pip, "--editable", str(source), cwd=tmp_path)
    where = call(python, "-c", CHECK, cwd=tmp_path).strip()
    assert where.endswith("_cards" if kind == "wheel" else "datasets")
    assert "ravl" in call(python, "-m", "experiments", "list", cwd=tmp_path)
    assert "ravl" in call(python, "-m", "experiment", "list", cwd=tmp_path)
    assert "ravl" in call(python.parent / "longreach", "list", cwd=tmp_path)
    assert "classic" in call(python, "-c", TABLES, cwd=tmp_path)
    if with_datasets:
        call(python, "-c", HUGGING_FACE, cwd=tmp_path)
        call(python, "-c", HUGGING_FACE, cwd=source)


@pytest.mark.parametrize("with_datasets", [False, True], ids=["alone", "beside-datasets"])
def test_checkout(with_datasets: bool, tmp_path: Path) -> None:
    """From the repository root, `import datasets` is Hugging Face's where there is one."""
    path = tmp_path / "elsewhere"
    if with_datasets:
        (path / "datasets").mkdir(parents=True)
        (path / "datasets" / "__init__.py").write_text("__version__ = '4.0.0'\n")
    code = f"import sys; sys.path.append({str(path)!r})\n{CHECK}"
    code += HUGGING_FACE if with_datasets else ""
    assert call(sys.executable, "-c", code, cwd=ROOT).strip().endswith("datasets")


def test_transformers_from_the_repository_root() -> None:
    """`transformers` looks for a package called `datasets`; ours must not answer to the name."""
    pytest.importorskip("transformers", reason="the extra `language` is not installed")
    code = "from transformers.utils import is_datasets_available as f; print(f())\nimport mbrl"
    call(sys.executable, "-c", code, cwd=ROOT)
