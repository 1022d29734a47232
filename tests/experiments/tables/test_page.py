"""The page of a table: its numbers and figures."""

from html.parser import HTMLParser
from pathlib import Path

from experiments.tables import page, plan, summary, table_figures
from tests.experiments.tables.small_table import SMALL, written_records


class Reader(HTMLParser):
    """Checks that tags close and collects cells and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs)["src"])
        if tag == "td":
            self.cells.append("")
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


def test_the_page_holds_the_numbers_and_the_figures(tmp_path: Path) -> None:
    text = SMALL.replace('"Small"', '"A <b> & c"')
    (tmp_path / "small.toml").write_text(text)
    small = plan.load(str(tmp_path / "small.toml"))
    written_records(small, tmp_path)
    result = summary.collect(small, tmp_path, {}, {})
    files = table_figures.draw(result, tmp_path)
    assert {f.name for f in files} == {"curves.png", "curves-2.png"}
    reader = Reader()
    content = page.html(result, files)
    reader.feed(content)
    assert reader.open == [] and "A &lt;b&gt; &amp; c" in content
    assert reader.cells[0] == "21.0 ± 1.4best 61.0 · chosen 51.0"
    assert reader.pictures == ["curves.png", "curves-2.png"]
    assert "<h2>Curves, block 2</h2>" in content
    other = page.html(result, [tmp_path / "guided-mean.png", tmp_path / "guided-mean-2.png"])
    assert "<h2>Guided mean</h2>" in other and "<h2>Guided mean, block 2</h2>" in other
    assert "by seed 0: 20.0, 1: 22.0" in content and "20 updates, 3 s a run" in content
