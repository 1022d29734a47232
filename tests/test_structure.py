"""The shape of the code base: import direction, sizes, no executable content in `datasets/`."""

import ast
import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["mbrl", "world_models", "algorithms", "experiments"]
FILES = [f for name in ORDER for f in sorted((ROOT / name).rglob("*.py"))]


@dataclass(frozen=True)
class Source:
    """What is asked of a file, whose tree takes long to make and to walk."""

    text: str
    docstring: str | None
    imports: list[ast.Import | ast.ImportFrom]
    functions: list[tuple[str, int]]  # names and lines


@functools.cache
def source(file: Path) -> Source:
    text = file.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    return Source(
        text,
        ast.get_docstring(tree),
        [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)],
        [
            (node.name, (node.end_lineno or 0) - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef)
        ],
    )


def imported(file: Path) -> list[str]:
    names = []
    for node in source(file).imports:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            assert node.level == 0, "relative import"
            names.append(node.module or "")
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_run_one_way_and_files_are_small(file: Path) -> None:
    text = source(file).text
    mine = ORDER.index(file.relative_to(ROOT).parts[0])
    for name in imported(file):
        first = name.split(".")[0]
        if first in ORDER:
            assert ORDER.index(first) <= mine, f"{file} imports {name}"
    assert text.count("\n") <= 500
    assert text.strip() == "" or source(file).docstring, f"{file} has no docstring"
    for name, length in source(file).functions:
        assert length <= 62, f"{file}:{name} has {length} lines"


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """The library's modules that each of them imports, at its top or inside functions."""
    modules = {module_name(file): source(file).imports for file in FILES}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, nodes in modules.items():
        for node in nodes:
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & modules.keys()
            elif node.module in modules:
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= parts & modules.keys() or {node.module}
    return graph


def on_circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    return {name for name in graph if name in reach(name)}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert on_circles(import_graph()) == set()


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}
    assert on_circles(graph) == {"a", "b", "c"}


def test_experiments_has_its_code_in_folders() -> None:
    files = {file.stem for file in (ROOT / "experiments").glob("*.py")}
    assert files == {"__init__", "__main__", "settings"}


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
