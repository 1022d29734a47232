"""The shape of the code base: import direction, sizes, no executable content in `datasets/`."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["mbrl", "world_models", "algorithms", "experiments"]
FILES = [f for name in ORDER for f in sorted((ROOT / name).rglob("*.py"))]


def imported(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.append(node.module or "")
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way_and_files_are_small(file: Path) -> None:
    text = file.read_text()
    tree = ast.parse(text)
    mine = ORDER.index(file.relative_to(ROOT).parts[0])
    for name in imported(tree):
        first = name.split(".")[0]
        if first in ORDER:
            assert ORDER.index(first) <= mine, f"{file} imports {name}"
    assert text.count("\n") <= 500
    assert text.strip() == "" or ast.get_docstring(tree), f"{file} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 62, f"{file}:{node.name} has {length} lines"


def test_datasets_is_not_a_package() -> None:
    assert not list((ROOT / "datasets").rglob("*.py"))


def test_every_package_is_in_the_wheel() -> None:
    """One that the list forgets imports in a checkout and is missing from an installed library."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(file.relative_to(ROOT).parts[:-1])
        for name in ORDER
        for file in (ROOT / name).rglob("__init__.py")
    }
    assert found | {"mbrl._cards"} == set(listed)
