"""The exercises of CONTRIBUTING.md, done in a copy of the checkout: files are written, entries
appended, and what they add is run from the command line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from mbrl.agent import Agent

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# (entry in )?([\w/]+\.(?:py|toml))\n")
PACKAGES = ("mbrl", "world_models", "algorithms", "experiments")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    skipped = shutil.ignore_patterns("records", "__pycache__")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=skipped)
    shutil.copytree(ROOT / "datasets", copy / "datasets")
    for name in ("longreach.py", "experiment.py"):
        shutil.copy(ROOT / name, copy)
    for kind, text in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()):
        place = PLACE.match(text)
        if place is not None:
            entry, name = place.groups()
            assert entry or not (copy / name).exists()
            with open(copy / name, "a") as file:
                file.write(text[place.end() :])
        elif kind == "python":  # writes random.npz
            folder = copy / "datasets" / "local" / "thermostat"
            folder.mkdir()
            subprocess.run([sys.executable, "-c", text], cwd=folder, check=True, env=path(copy))
    return copy


def path(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy), "LONGREACH_DATA": str(copy / "data")}


QUICK = ["--eval-every", "0", "--final-episodes", "2", "--no-tensorboard"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["run", "quantile_iql", "pendulum/medium", "--steps", "20", *QUICK], "20 updates"),
        (["run", "sac", "Thermostat-v0", "--steps", "130", *QUICK], "130 steps"),
        (["data", "check", "thermostat/random"], "thermostat/random"),
        (["run", "td3_bc", "thermostat/random", "--steps", "20", *QUICK], "20 updates"),
        (["explain", "grpo_wide"], "clip(rho, 1 - 0.2, 1 + 0.4)"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_was_added_is_there(checkout: Path, words: list[str], printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *words],
        cwd=checkout,
        env=path(checkout),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


def test_an_algorithm_is_one_file_and_one_entry_of_few_lines() -> None:
    blocks = [text for _, text in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())]
    lines = [t for t in blocks if "quantile_iql" in t and PLACE.match(t)]
    assert len(lines) == 2
    code = [line for text in lines for line in text.splitlines()[1:] if line.strip()]
    assert len(code) < 40


def test_the_changelog_names_every_version() -> None:
    table = (ROOT / "CHANGELOG.md").read_text().rsplit("### Versions", 1)[1]
    rows = dict(re.findall(r"\| (\d+) \| (.*) \|", table))
    named = {name: int(v) for v, names in rows.items() for name in re.findall("`(\\w+)`", names)}
    for name, (cls, _) in ALGORITHMS.items():
        assert issubclass(cls, Agent)
        assert cls.version == named.get(name, 1), name
