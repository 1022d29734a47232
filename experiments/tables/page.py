"""A table as an HTML page, with its figures beside it."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from experiments.reports import page_parts
from experiments.tables import conclusions, render
from experiments.tables.plan import Column, Row
from experiments.tables.summary import BlockSummary, Entry, Summary


def html(summary: Summary, figures: Sequence[Path]) -> str:
    """The page; `figures` are files that stand beside it."""
    parts = [
        f"<p>{escape(render.meaning(summary))}</p>",
    ]
    if not summary.plan.studies_only:
        parts.append(
            "<p>Small figures: the highest evaluation of each run, and the one at the step that "
            "fitted Q evaluation chose from the data alone; the highest mean of a row is bold. "
            "Point at a cell for its seeds, interval and budget.</p>"
        )
    for block in summary.blocks:
        if block.block.title:
            parts.append(f"<h2>{escape(render.heading(block, summary))}</h2>")
        parts.append(_rows(block))
        complete = any(block.complete(c) for c in block.block.columns)
        if block.block.study is None and complete and len(block.block.rows) > 1:
            parts += ["<h2>Over all datasets</h2>", _totals(block, summary)]
    footnotes = [*conclusions.lines(summary), *render.footnotes(summary)]
    parts += [f"<p>{escape(line)}</p>" for line in footnotes]
    for file in figures:
        name = re.sub(r"-(\d+)$", r", block \1", file.stem).replace("-", " ")
        parts.append(
            f'<h2>{escape(name.capitalize())}</h2><div class="scroll" tabindex="0"><img src="'
            f'{file.name}" alt="{escape(name)}; its data: {file.stem}.csv"></div>'
            f'<p><a href="{file.stem}.csv">data</a></p>'
        )
    return page_parts.page(summary.plan.title, parts)


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "\n".join(rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _rows(block: BlockSummary) -> str:
    columns = block.block.columns
    head = ["settings" if block.block.study else "dataset", *(c.label for c in columns)]
    return _table(head, [_row(block, row, columns) for row in block.block.rows])


def _row(block: BlockSummary, row: Row, columns: Sequence[Column]) -> str:
    entries = [block.entry(row, column) for column in columns]
    whole = [e.last and not np.isnan(e.last).any() for e in entries]
    means = [float(np.mean(e.last)) if w else -np.inf for e, w in zip(entries, whole, strict=True)]
    top = max(means) if block.block.study is None else np.inf
    cells = "".join(
        _cell(e, len(block.block.seeds), m == top and np.isfinite(m))
        for e, m in zip(entries, means, strict=True)
    )
    label = escape(row.label).replace("/", "/<wbr>").replace("@", "<wbr>@")
    return f'<tr><th scope="row">{label}</th>{cells}</tr>'


def _cell(entry: Entry, wanted: int, best: bool) -> str:
    text = escape(render.text_of(entry, wanted))
    if entry.published:
        text += f" [{escape(render.published_text(entry))}]"
    if not entry.last:
        return f"<td>{text}</td>"
    if entry.best:
        chosen = np.mean(entry.selected)
        also = "" if np.isnan(chosen) else f" · chosen {chosen:.1f}"
        text += f"<small>best {np.mean(entry.best):.1f}{also}</small>"
    style = ' class="best"' if best else ""
    return f'<td{style} title="{escape(_detail(entry))}">{text}</td>'


def _detail(entry: Entry) -> str:
    """Seeds, interval, budget and time of one cell."""
    values = ", ".join(f"{s}: {v:.1f}" for s, v in zip(entry.seeds, entry.last, strict=True))
    around = entry.interval
    lines = [f"by seed {values}"]
    if not np.isnan(around.low):
        lines.append(f"95 % interval of the mean {around.low:.1f} to {around.high:.1f}")
    steps = entry.records[0]["key"].get("steps")
    if steps is not None:
        lines.append(f"{steps} updates, {np.mean(entry.seconds):.0f} s a run")
    return "; ".join([*lines, _versions(entry.records[-1])])


def _versions(record: dict[str, Any]) -> str:
    if "packages" not in record:
        return "versions not recorded"
    return f"torch {record['packages']['torch']}, commit {record['commit'] or 'not recorded'}"


def _totals(block: BlockSummary, summary: Summary) -> str:
    rows = [
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in texts)
        + "</tr>"
        for name, texts in render.totals(block, summary)
    ]
    return _table(["", *(c.label for c in block.block.columns)], rows)
