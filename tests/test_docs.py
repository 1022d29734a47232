"""Every code block of the README and of docs/ runs: Python as it stands, command lines with a
budget of seconds."""

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from algorithms import ALGORITHMS
from experiments.__main__ import main

ROOT = Path(__file__).parent.parent
DOCS = [
    page for folder in ("docs", "docs/results") for page in sorted((ROOT / folder).glob("*.md"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

TINY = ["--model.transformer.width", "16", "--final-problems", "2", "--eval-problems", "2"]

FITTED = ["--steps", "20", "--model.min-epochs", "1", "--model.max-epochs", "2"]

# What keeps a documented command to seconds; None: too long or needs the network.
SHORT: dict[str, list[str] | None] = {
    "quickstart": ["--steps", "20", "--seeds", "0"],
    "run pgd": ["--steps", "20", "--model.updates", "20", "--generation.windows", "32"],
    "run neubay": FITTED,
    "run ravl": FITTED,
    "run mopo": FITTED,
    "run": ["--steps", "20"],
    "bench": ["--quick", "--peers", "None", "--workloads", "sac_small"],
    "collect": None,
    "crosscheck": ["--seeds", "1", "--steps", "300"],
    "data fetch": None,
    "language warm-start": ["--steps", "2", "--until", "None", "--eval-every", "0", *TINY],
    "language run": ["--steps", "2", "--prompts", "2", *TINY],
    "language evaluate": ["--problems", "3"],
    "model fit": ["--max-epochs", "2"],
    "table": None,  # hours; tests/experiments/tables/test_table.py runs small ones
    "sweep": ["--steps", "20", "--seeds", "0"],
    "search": ["--steps", "20", "--trials", "2"],
}
SETUP = ("make ", "git ", "pip ", "cd ", "source ", "python3 -m venv", "python -m pip")


FILE = re.compile(r"# (entry in )?[\w/]+\.(py|toml)\n")  # for a copy of the checkout, not to run


NEEDS = re.compile(r"# needs (\w+)\n")


def blocks(kinds: tuple[str, ...]) -> list:
    found = []
    for page in PAGES:
        for index, (kind, text) in enumerate(BLOCK.findall(page.read_text())):
            if kind in kinds and not FILE.match(text):
                found.append(pytest.param(text, id=f"{page.stem}-{index}"))
    return found


def test_every_block_has_a_known_kind() -> None:
    for page in PAGES:
        kinds = {kind for kind, _ in BLOCK.findall(page.read_text())}
        assert kinds <= {"python", "sh", "text", "toml", "json"}, page


def test_tables_of_algorithms_and_of_data_have_all() -> None:
    """A row for every algorithm's learner and source, and one for every published family."""
    page = (ROOT / "docs/algorithms.md").read_text()
    rows = page.split("| algorithm | learner | source |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in rows.splitlines()[2:]]
    named = re.sub(r"[^a-z0-9]", "", " ".join(first).lower())
    lacking = [
        n for n in ALGORITHMS if not n.startswith("discrete_") and n.replace("_", "") not in named
    ]
    assert not lacking
    names = (ROOT / "docs/data.md").read_text().split("## Names")[1].split("## ")[0]
    families = [path.stem for path in (ROOT / "datasets").glob("*.toml")]
    assert [family for family in families if f"| `{family}/" not in names] == []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_jobs: None) -> Path:
    """An empty working folder. The blocks run in this process, where all is imported already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.mark.usefixtures("one_registry")
@pytest.mark.parametrize("text", blocks(("python",)))
def test_python_block(text: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that begins with `# needs PACKAGE` is run where that is installed."""
    if needed := NEEDS.match(text):
        pytest.importorskip(needed[1])
    block = ModuleType("block")
    monkeypatch.setitem(sys.modules, "block", block)
    exec(compile(text, "block", "exec"), vars(block))


def shortened(words: list[str]) -> list[str] | None:
    for name, extra in SHORT.items():
        if words[: len(name.split())] == name.split():
            if extra is None:
                return None
            kept = list(words)
            for option in [e for e in extra if e.startswith("--")]:
                while option in kept:  # the documented value gives way to the short one
                    at = kept.index(option)
                    end = at + 1
                    while end < len(kept) and not kept[end].startswith("--"):
                        end += 1
                    del kept[at:end]
            return kept + extra
    return words


@pytest.mark.long
@pytest.mark.parametrize("text", blocks(("sh",)))
def test_command_block(text: str, here: Path, capsys) -> None:
    """The commands of one block, in order, in one folder; set-up commands are CI's own."""
    lines = text.replace("\\\n", " ").splitlines()
    for line in (line.split("  #")[0].strip() for line in lines):
        if not line or line.startswith(("#", *SETUP)):
            continue
        assert line.startswith("python -m experiments"), line
        words = shortened(shlex.split(line)[3:])
        if words is None:
            continue
        try:
            status = main(words)
        except SystemExit as stop:  # help and bad options
            status = int(stop.code or 0)
        told = capsys.readouterr()
        assert status == 0, line + "\n" + told.out + told.err
