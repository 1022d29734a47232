"""What Sphinx needs beside the Markdown pages: generated pages, titles and figures of the tables,
and docstrings, which are plain text, as reStructuredText."""

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from sphinx.domains.python import PythonDomain

ROOT = Path(__file__).parent.parent
ORPHAN = "---\norphan: true\n---\n\n"  # not in the navigation: it would be written into every page
GENERATED = ROOT / "docs" / "reference"
PACKAGES = {
    "algorithms": "Algorithms, their learners and sources; evaluation from logged data.",
    "world_models": "Learned and true dynamics, diffusion of windows, rollouts.",
    "mbrl": "Data, tasks, networks, policy-gradient objectives, the training loop.",
    "experiments.settings": "Presets and settings of runs.",
    "experiments.export": "Policies as files that act elsewhere.",
    "experiments.recording": "Recording datasets in a task.",
}


class KnownNames(PythonDomain):
    """Sphinx compares a name that it does not know, as most types in signatures are, with every
    name that it knows, at every place where it stands. Here only names are looked up whose last
    part is one of a known name."""

    last_parts: frozenset[str] = frozenset()
    counted = 0

    def find_obj(self, env: Any, modname: Any, classname: Any, name: str, *rest: Any) -> list[Any]:
        if self.counted != len(self.objects):
            self.last_parts = frozenset(known.rpartition(".")[2] for known in self.objects)
            self.counted = len(self.objects)
        if name.removesuffix("()").rpartition(".")[2] not in self.last_parts:
            return []
        return super().find_obj(env, modname, classname, name, *rest)


def connect(app: Any) -> None:
    app.add_domain(KnownNames, override=True)
    app.connect("builder-inited", generate)
    app.connect("source-read", completed)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-skip-member", skipped)
    app.connect("build-finished", redirect)


def generate(app: Any) -> None:
    """Write the generated pages; a file is touched only where its text is new."""
    import torch

    from experiments.reports import algorithm_pages, recipe_page
    from tests.small import CONFIGS

    torch.set_num_threads(1)

    pages = {"recipes.md": recipe_page.page(), "tables.md": tables_page()}
    for name, text in algorithm_pages.pages(CONFIGS).items():
        pages[f"algorithms/{name}.md"] = text
    for name, text in api_pages().items():
        pages[f"api/{name}.md"] = text
    for old in GENERATED.rglob("*.md"):
        if str(old.relative_to(GENERATED)) not in pages:
            old.unlink()
    for name, text in pages.items():
        file = GENERATED / name
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


# The tables' own pages.


def table_title(name: str) -> str:
    path = ROOT / "experiments" / "tables" / "definitions" / f"{name}.toml"
    return f"{name}: {tomllib.loads(path.read_text())['title']}"


def tables_page() -> str:
    names = sorted(f.parent.name for f in ROOT.glob("experiments/records/*/table.md"))
    lines = ["# All tables", "", "Each with its figures, as its command wrote it.", ""]
    links = [f"- [{table_title(n)}](../../experiments/records/{n}/table.md)" for n in names]
    return "\n".join([*lines, *links, ""])


def completed(app: Any, docname: str, source: list[str]) -> None:
    """Give a table's page its title and figures, and the list of algorithms its links."""
    if docname.startswith("experiments/records/"):
        folder = ROOT / docname.removesuffix("/table")
        figures = [
            f"![figure {f.stem} of the table {folder.name}]({f.name})"
            for f in sorted(folder.glob("*.png"))
        ]
        rows = "[The numbers as CSV](table.csv)" if (folder / "table.csv").exists() else ""
        parts = [f"{ORPHAN}# {table_title(folder.name)}", source[0], rows, *figures]
        source[0] = "\n\n".join(parts) + "\n"
    if docname == "docs/index":
        app.env.note_dependency(str(ROOT / "README.md"))
        source[0] = from_docs((ROOT / "README.md").read_text()) + "\n" + source[0]
    if docname == "docs/algorithms":
        source[0] = re.sub(
            r"^\| `(\w+)` \|", r"| [`\1`](reference/algorithms/\1.md) |", source[0], flags=re.M
        )


def from_docs(text: str) -> str:
    """The README as a page of docs/: links and images are relative to that folder."""
    return re.sub(r"\]\((?!https?:|#)(docs/)?", lambda m: "](" if m[1] else "](../", text)


# Pages of modules.


def modules(package: str) -> Iterator[str]:
    """A package and the modules in it, those with a leading underscore left out."""
    module = import_module(package)
    yield package
    if hasattr(module, "__path__"):
        for found in walk_packages(module.__path__, f"{package}."):
            if "._" not in found.name:
                yield found.name


def api_pages() -> dict[str, str]:
    """A page for each package with its modules as parts, and an index of all modules."""
    pages = {"longreach": front_door()}
    index = ["# API", "", "Made from the docstrings. What most users need is in one module,"]
    index += ["[`longreach`](longreach.md).", ""]
    for package, about in PACKAGES.items():
        index += [f"## {package}", "", about, ""]
        parts: dict[str, list[str]] = {}
        for name in modules(package):
            is_package = hasattr(import_module(name), "__path__")
            parts.setdefault(name if is_package else name.rpartition(".")[0], []).append(name)
        for page, names in parts.items():
            texts = [automodule(name, 1 if name == page else 2) for name in names]
            head = [] if page in names else [f"# `{page}`", ""]
            pages[page] = "\n".join([ORPHAN, *head, *texts])
            index += [entry(name) for name in names]
        index.append("")
    pages["index"] = "\n".join(index)
    return pages


def entry(name: str) -> str:
    """A module with the first sentence of its docstring."""
    about = (import_module(name).__doc__ or "").strip()
    sentence = " ".join(re.split(r"(?<=[.:])\s", about, maxsplit=1)[0].split())
    target = f"{name}.md" if hasattr(import_module(name), "__path__") else f"#{name}"
    return f"- [`{name}`]({target}): {sentence.rstrip('.:')}"


def automodule(name: str, level: int) -> str:
    module = f".. automodule:: {name}\n   :members:\n   :ignore-module-all:\n   :show-inheritance:"
    return f"{'#' * level} `{name}`\n\n```{{eval-rst}}\n{module}\n```\n"


def front_door() -> str:
    """The page of `longreach`, with links to where its names stand."""
    import longreach

    about = (longreach.__doc__ or "").strip()
    lines = [f"{ORPHAN}# `longreach`", "", about, "", "| name | where |", "|---|---|"]
    for name in dir(longreach):
        thing = getattr(longreach, name)
        module = getattr(thing, "__module__", None)
        if module is not None:
            lines.append(f"| `{name}` | [`{module}.{name}`](#{module}.{name}) |")
    return "\n".join([*lines, ""])


# Docstrings.


def skipped(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what Python itself puts into a dataclass or a protocol."""
    return True if name.startswith("_") and name != "__call__" else None


def docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    from experiments.reports import setting_pages

    text = list(as_rst(lines))
    if what == "class" and setting_pages.is_settings(thing):
        text = [line for line in text if not line.startswith(f"{thing.__name__}(")]
        for setting in setting_pages.settings(thing, nested=False):
            text += ["", f"``{setting.name}`` = ``{setting.default}`` ({setting.allowed})"]
            text += [f"   {escaped(setting.about)}"] if setting.about else []
    lines[:] = [*text, ""]


def as_rst(lines: list[str]) -> Iterator[str]:
    """Plain text with `code` in single backticks as reStructuredText; an indented block becomes a
    literal one."""
    inside = False
    for number, line in enumerate(lines):
        if re.match(r"(    |\t)\S", line) and not in_list(lines, number):
            if not inside:
                yield from ("", "::", "")
            inside = True
            yield line
            continue
        if inside and line.strip():
            inside = False
            yield ""
        yield line if inside else escaped(line)


def in_list(lines: list[str], number: int) -> bool:
    """Whether an indented line goes on with an item of a list."""
    for line in reversed(lines[:number]):
        if not line.strip():
            return False
        if re.match(r"\s*(-|\*|\d+\.) ", line):
            return True
    return False


def escaped(line: str) -> str:
    """A line with what reStructuredText would read as markup escaped, and code as literals."""
    parts = line.split("`")
    if len(parts) % 2 == 0:  # code that goes on in the next line: no markup at all
        return re.sub(r"([*|_\\`])", r"\\\1", line)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            bullet = re.match(r"\s*[-*] ", part) if i == 0 else None
            start = bullet.end() if bullet else 0
            parts[i] = part[:start] + re.sub(r"([*|_\\])", r"\\\1", part[start:])
        else:
            parts[i] = f"\\ ``{part}``\\ " if part.strip() else part
    return "".join(parts)


def redirect(app: Any, error: Exception | None) -> None:
    """The address of the site itself shows its first page."""
    if error is None and app.builder.name == "html":
        page = '<!doctype html><html lang="en"><title>longreach</title>'
        page += '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        page += '<p><a href="docs/index.html">longreach</a></p></html>'
        (Path(app.outdir) / "index.html").write_text(page)
