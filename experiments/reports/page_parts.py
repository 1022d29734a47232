"""Parts of the pages about runs."""

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import figures
from experiments.reports.figures import Curve
from experiments.runs import folders, history
from mbrl.config import flatten
from mbrl.files import write_text

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 100rem; padding: 1rem; }
h1 { font-size: 1.4rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.7rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: Canvas; z-index: 1; }
thead th { border-bottom: 2px solid var(--line); } tbody tr + tr > * { border-top: 1px solid var(--soft); }
tbody tr:hover > * { background: var(--soft); } tbody tr:hover > th { background: Canvas; }
small { display: block; opacity: 0.75; font-size: 0.75rem; } td.best { font-weight: 700; }
td.best small { font-weight: 400; } .scroll img { min-width: 44rem; }
img { max-width: 100%; height: auto; background: white; border-radius: 6px; }
@media (max-width: 40rem) {
  body { padding: 0.6rem; } th, td { padding: 0.3rem 0.45rem; }
  th:first-child { white-space: normal; max-width: 10rem; overflow-wrap: break-word; }
}
td.fact { text-align: left; white-space: normal; }
"""  # noqa: E501


def write_page(folder: Path, title: str, parts: Sequence[str]) -> Path:
    """Write report.html into a run's folder: `parts`, settings, versions and machine."""
    parts = [
        *parts,
        "<h2>Settings</h2>",
        facts(flatten(folders.read_json(folder / "config.json"))),
        "<h2>Versions and machine</h2>",
        facts(flatten(folders.read_json(folder / "manifest.json"))),
    ]
    path = folder / "report.html"
    write_text(path, inlined(page(title, parts), folder))
    return path


def page(title: str, parts: Sequence[str]) -> str:
    """A whole HTML page: its title as the heading, and `parts` below it."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</main></body></html>\n",
        ]
    )


def inlined(text: str, folder: Path) -> str:
    """The page with its figures of `folder` and their data within, so that it is one file."""

    def within(match: re.Match[str]) -> str:
        file = folder / match[2]
        if not file.exists():
            return match[0]
        kind = "image/png" if file.suffix == ".png" else "text/csv"
        data = base64.b64encode(file.read_bytes()).decode()
        name = f' download="{match[2]}"' if match[1] == "href" else ""
        return f'{match[1]}="data:{kind};base64,{data}"{name}'

    return re.sub(r'(src|href)="([A-Za-z0-9_-]+\.(?:png|csv))"', within, text)


def losses(folder: Path, watched: Sequence[str], unit: str = "updates") -> list[str]:
    """Panels of those of the metrics `watched` that the run logged."""
    known = history.metrics(folder)
    panels = {name: {"": single_run(*known[name])} for name in watched if name in known}
    if not panels:
        return []
    figures.curves(panels, unit, "", folder / "report-losses.png")
    return ["<h2>Training</h2>", image("report-losses", "what the run logged")]


def single_run(x: np.ndarray, y: np.ndarray) -> Curve:
    """One run's line, without an interval."""
    none = np.full(len(y), np.nan)
    return Curve(x, y, none, none)


def image(name: str, text: str) -> str:
    """The figure `name`.png of the folder, which `write_page` puts into the page."""
    return (
        f'<div class="scroll" tabindex="0"><img src="{name}.png" alt="{escape(text)}"></div>'
        f'<p><a href="{name}.csv">data</a></p>'
    )


def facts(values: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="fact">{escape(str(value))}</td></tr>'
        for name, value in values.items()
    )
    return f'<div class="scroll" tabindex="0"><table><tbody>{rows}</tbody></table></div>'


def rows_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a line of names and text cells."""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f'<td class="fact">{escape(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
