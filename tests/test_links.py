"""Links of the Markdown pages lead somewhere: to a file of the checkout, and where they name a
heading to one that is there. Every table has a line in the index of results."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = [
    page for folder in ("docs", "docs/results") for page in sorted((ROOT / folder).glob("*.md"))
]
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]
TABLES = sorted(ROOT.glob("experiments/records/*/table.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that GitHub and the site give the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        same = [name, *(f"{name}-{i}" for i in range(1, 20))]
        found.add(next(n for n in same if n not in found))
    return found


def targets(text: str) -> list[str]:
    """What the links of a page point to, code left out."""
    return LINK.findall(CODE.sub("", text))


def problem(page: Path, target: str) -> str | None:
    """What is wrong with a link, if anything is."""
    if target.startswith(("http://", "https://")):
        return None
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return f"{target}: no such file"
    if anchor and anchor not in anchors(file):
        return f"{target}: no such heading; {', '.join(sorted(anchors(file)))}"
    return None


@pytest.mark.parametrize("page", [*PAGES, *TABLES], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    problems = [problem(page, target) for target in targets(page.read_text())]
    assert [p for p in problems if p] == []


def test_dead_links_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A, b\n\n## A b\n\n`[x](y.md)` [ok](#a-b) [ok](#a-b-1) [bad](#c) [gone](y.md)\n"
    )
    found = [problem(page, target) for target in targets(page.read_text())]
    assert found == [
        None,
        None,
        "#c: no such heading; a-b, a-b-1",
        "y.md: no such file",
    ]


def test_every_table_has_a_line_in_the_index_of_results() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    names = {f.stem for f in ROOT.glob("experiments/tables/definitions/*.toml")}
    listed = re.findall(r"^\| \[([\w-]+)\]", text, re.MULTILINE)
    assert sorted(listed) == sorted(names)


def test_every_page_is_in_the_site() -> None:
    index = (ROOT / "docs" / "index.md").read_text().split()
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in DOCS} - {"index"}
    assert pages <= set(index)
