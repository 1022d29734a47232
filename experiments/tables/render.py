"""A table's numbers as Markdown, CSV and LaTeX."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tables import conclusions, records
from experiments.tables.plan import Column
from experiments.tables.summary import BlockSummary, Entry, Published, Summary
from mbrl import statistics
from mbrl.files import write_text


def write(summary: Summary, folder: Path) -> list[Path]:
    """Write all forms of the table into `folder`; returns the files."""
    texts = {"table.md": markdown(summary), "table.csv": comma_separated(summary)}
    texts["table.tex"] = latex(summary)
    files = []
    for name, text in texts.items():
        write_text(folder / name, text)
        files.append(folder / name)
    return files


def caption(summary: Summary) -> str:
    return f"{summary.plan.title}. {meaning(summary)}"


def meaning(summary: Summary) -> str:
    """A description of the numbers: metric, seeds, budget, threads."""
    plan, seeds = summary.plan, seeds_text(summary)
    if plan.studies_only:
        return f"Mean ± standard deviation over seeds {seeds}. {plan.note}".strip()
    rows = (row for b in summary.blocks for row in b.block.rows)
    episodes = " or ".join(f"{n:,}" for n in sorted({row.final_episodes for row in rows}))
    return (
        f"Normalised score of the last evaluation (greedy policy, {episodes} fixed starts), mean ± "
        f"standard deviation over seeds {seeds}; one thread. {plan.note}"
    ).strip()


def seeds_text(summary: Summary) -> str:
    return ", ".join(map(str, summary.blocks[0].block.seeds))


def heading(block: BlockSummary, summary: Summary) -> str:
    """The block's title, with its seeds where they are not the table's."""
    if block.block.seeds == summary.blocks[0].block.seeds:
        return block.block.title
    return f"{block.block.title} (seeds {', '.join(map(str, block.block.seeds))})"


def text_of(entry: Entry, wanted: int) -> str:
    """Mean ± standard deviation, with the number of seeds if some are missing. Seeds whose value is
    NaN are left out and counted; "none" if all are NaN. "diverged" if no seed has a number and the
    training of some diverged."""
    if not entry.last:
        unfinished = "no data" if entry.missing else "not run"
        return "diverged" if entry.diverged else unfinished
    last, having = entry.last, measured(entry)
    if not len(having):
        return "none"
    digits = ".1f" if entry.best else ".3g"  # scores, or what a study measured
    spread = f" ± {deviation(having):{digits}}" if len(having) > 1 else ""
    count = "" if len(last) == wanted else f" ({len(last)})"
    if len(having) < len(last):
        count = f" ({len(having)} of {len(last)})"
    if entry.diverged:
        count = f" ({len(having)}; {len(entry.diverged)} diverged)"
    changed = " *" if entry.changed else ""
    return f"{having.mean():{digits}}{spread}{count}{changed}"


def measured(entry: Entry) -> np.ndarray:
    """The values of the seeds that have one."""
    return np.array([value for value in entry.last if not np.isnan(value)])


def deviation(values: np.ndarray) -> float:
    """The sample standard deviation; exactly 0 for equal numbers."""
    return float(values.std(ddof=1)) if np.ptp(values) > 0 else 0.0


def published_text(entry: Entry) -> str:
    def score(p: Published) -> str:
        return f"{p.mean:.1f}" + ("" if p.spread is None else f" ± {p.spread:.1f}")

    return "; ".join(f"{score(p)} {p.letter}" for p in entry.published)


def markdown(summary: Summary) -> str:
    parts = [caption(summary), ""]
    for block in summary.blocks:
        if block.block.title:
            parts += [f"**{heading(block, summary)}**", ""]
        parts += [*_markdown_rows(block), ""]
        if block.block.study is None and any(block.complete(c) for c in block.block.columns):
            parts += [*_markdown_totals(block, summary), ""]
    for line in conclusions.lines(summary):
        parts += [line, ""]
    parts += footnotes(summary)
    return "\n".join(parts).rstrip() + "\n"


def _markdown_rows(block: BlockSummary) -> list[str]:
    columns = block.block.columns
    head = "settings" if block.block.study else "dataset"
    lines = [f"| {head} | " + " | ".join(cell(c.label) for c in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for row in block.block.rows:
        cells = []
        for column in columns:
            entry = block.entry(row, column)
            other = f" [{published_text(entry)}]" if entry.published else ""
            cells.append(text_of(entry, len(block.block.seeds)) + other)
        lines.append(f"| {cell(row.label)} | " + " | ".join(cells) + " |")
    return lines


def _mean_text(scores: list[np.ndarray]) -> str:
    """Empty where runs had no evaluation."""
    return "" if any(np.isnan(s).any() for s in scores) else f"{statistics.mean(scores):.1f}"


AGGREGATES = ("mean, last", "IQM, last [95 %]", "mean, best", "mean, chosen offline", "seconds")


def aggregates(block: BlockSummary, column: Column) -> dict[str, str]:
    """Aggregates over all rows; empty until every row has a finished seed."""
    if not block.complete(column):
        return dict.fromkeys(AGGREGATES, "")
    last = block.scores(column)
    middle = statistics.confidence_interval(last, statistics.iqm)
    best, chosen = (_mean_text(block.scores(column, kind)) for kind in ("best", "selected"))
    seconds = np.mean([s for row in block.block.rows for s in block.entry(row, column).seconds])
    low, high = middle.low, middle.high
    around = "" if np.isnan(low) else f" [{low:.1f}, {high:.1f}]"
    values = (
        f"{statistics.mean(last):.1f}",
        f"{middle.estimate:.1f}{around}",
        best,
        chosen,
        f"{seconds:.0f}",
    )
    return dict(zip(AGGREGATES, values, strict=True))


def comparisons(block: BlockSummary, summary: Summary) -> dict[str, dict[str, str]]:
    """Each complete column against the reference, over all rows; empty without one."""
    columns = [c for c in block.block.columns if block.complete(c)]
    scores = {c.label: block.scores(c) for c in columns}
    reference = summary.plan.reference
    if reference not in scores or len(scores) < 2:
        return {}
    if any(len(seeds) < 2 for rows in scores.values() for seeds in rows):
        return {}
    texts: dict[str, dict[str, str]] = {}
    for name, result in statistics.paired_comparison(scores, reference).items():
        d, better = result.difference, statistics.probability_of_improvement
        probability = better(scores[name], scores[reference])
        difference = f"{d.estimate:.1f} [{d.low:.1f}, {d.high:.1f}]"
        p = result.adjusted_p_value
        texts[name] = {
            f"mean less that of {reference} [95 %]": difference,
            "p (Holm)": "under 0.001" if p < 0.001 else f"{p:.3f}",
            f"chance to beat {reference} [95 %]": (
                f"{probability.estimate:.2f} [{probability.low:.2f}, {probability.high:.2f}]"
            ),
        }
    return texts


def totals(block: BlockSummary, summary: Summary) -> list[tuple[str, list[str]]]:
    """Every quantity over all rows: its name and a text for each column."""
    columns = block.block.columns
    parts = [aggregates(block, column) for column in columns]
    rows = [(name, [p[name] for p in parts]) for name in AGGREGATES]
    against = comparisons(block, summary)
    for name in next(iter(against.values()), {}):
        rows.append((name, [against.get(c.label, {}).get(name, "") for c in columns]))
    return rows


def _discounts(runs: list[dict[str, Any]]) -> str:
    """A warning where values of different discounts stand side by side."""
    values = [r["key"]["config"] for r in runs if records.unit(r) == "value"]
    known = sorted({config["gamma"] for config in values if "gamma" in config})
    if len(known) < 2:
        return ""
    return f" Those of other discounts ({', '.join(map(str, known))}) do not compare."


def _markdown_totals(block: BlockSummary, summary: Summary) -> list[str]:
    columns = block.block.columns
    lines = ["| over all datasets | " + " | ".join(cell(c.label) for c in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {name} | " + " | ".join(texts) + " |" for name, texts in totals(block, summary)]
    return lines


def footnotes(summary: Summary) -> list[str]:
    """Missing and changed data, shared fits, and sources of published scores."""
    blocks = summary.blocks
    entries = [e for b in blocks for e in b.entries.values()]
    lines = sorted({e.missing for e in entries if e.missing and not e.last})
    if any(0 < len(e.last) < len(b.block.seeds) for b in blocks for e in b.entries.values()):
        lines.append("In parentheses: the finished seeds where not all are.")
    lines += [line for block in blocks for line in diverged(block)]
    if any(e.changed for e in entries):
        lines.append("\\* the data here have another checksum than those of the record.")
    mine = [r for e in entries for r in e.records if "steps" in r]
    if any(records.estimated(r) for r in mine):
        lines.append(
            "Data whose task is not in this library have no returns: their numbers are the values "
            "(discounted) that fitted Q evaluation gave to the policy it chose." + _discounts(mine)
        )
    elif any(not r["steps"] for r in mine):
        lines.append(
            "Data whose task is not in this library have no returns; --fqe-steps 2500 gives "
            "estimates of their policies' values."
        )
    if any(r["steps"] and records.unit(r) == "return" for r in mine):
        lines.append(
            "Data without reference returns have no scores: their numbers are returns, which no "
            "mean over datasets takes in."
        )
    sources = sorted({(p.letter, p.source, p.evidence) for e in entries for p in e.published})
    lines += [
        f"In brackets, {letter}: {source}; {evidence}." for letter, source, evidence in sources
    ]
    fits = {
        (r["key"]["data"], r["key"]["seed"], r["model_seconds"])
        for e in entries
        for r in e.records
        if "model_seconds" in r
    }
    if fits:
        mean = np.mean([seconds for _, _, seconds in fits])
        lines.append(
            f"A world model is fitted once for each dataset and seed and shared by the algorithms "
            f"that use the same one: {mean:.0f} s each, not in the seconds above."
        )
    return lines


def diverged(block: BlockSummary) -> list[str]:
    """Which seeds of a row and column diverged, with the first one's reason."""
    lines = []
    for row in block.block.rows:
        for column in block.block.columns:
            entry = block.entry(row, column)
            if entry.diverged:
                name = row.label if block.block.study else f"{column.label} on {row.label}"
                seeds = ", ".join(map(str, entry.diverged))
                reason = next(iter(entry.diverged.values())).partition(". ")[0]
                lines.append(printable(f"{name}, seeds {seeds}: {reason}."))
    return list(dict.fromkeys(lines))  # the columns of a study are of one run


COLUMNS = (
    "block", "row", "column", "seeds", "steps", "mean", "sd", "low", "high", "best", "selected",
    "seconds", "published", "published_source", "published_mark",
)  # fmt: skip


def comma_separated(summary: Summary) -> str:
    """One line for each row and column, with all quantities."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for block in summary.blocks:
        for row in block.block.rows:
            for column in block.block.columns:
                entry = block.entry(row, column)
                values = {
                    "block": plain(block.block.title),
                    "row": plain(row.label),
                    "column": plain(column.label),
                }
                writer.writerow(values | _numbers(entry))
    return text.getvalue()


def _numbers(entry: Entry) -> dict[str, object]:
    first = entry.published[0] if entry.published else None
    values: dict[str, object] = {"seeds": " ".join(map(str, entry.seeds))}
    if first is not None:
        values |= {"published": first.mean, "published_source": first.source}
        values["published_mark"] = first.evidence
    if not entry.last:
        return values
    having, around = measured(entry), entry.interval
    values["seconds"] = f"{np.mean(entry.seconds):.4g}"
    if len(having):
        values["mean"] = f"{having.mean():.6g}"
    if len(having) > 1:
        values |= {"sd": f"{deviation(having):.6g}", "low": f"{around.low:.6g}"}
        values["high"] = f"{around.high:.6g}"
    if entry.best:
        values["steps"] = entry.records[0]["key"]["steps"]
        if not np.isnan(entry.best).any():
            values["best"] = f"{np.mean(entry.best):.6g}"
        if not np.isnan(entry.selected).any():
            values["selected"] = f"{np.mean(entry.selected):.6g}"
    return values


def latex(summary: Summary) -> str:
    """A booktabs table for each block."""
    lines = []
    for block in summary.blocks:
        columns = block.block.columns
        lines += [
            "\\begin{table}",
            f"\\caption{{{_escape(caption(summary))} {_escape(block.block.title)}}}",
            "\\begin{tabular}{l" + "r" * len(columns) + "}",
            "\\toprule",
            " & ".join(["", *(_escape(c.label) for c in columns)]) + " \\\\",
            "\\midrule",
        ]
        for row in block.block.rows:
            cells = [text_of(block.entry(row, c), len(block.block.seeds)) for c in columns]
            lines.append(" & ".join(map(_escape, [row.label, *cells])) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(lines)


LATEX = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}", "_": "\\_", "%": "\\%", "&": "\\&", "±": "$\\pm$", "#": "\\#",
}  # fmt: skip


def _escape(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in printable(text))


def printable(text: str) -> str:
    """Without control characters, which a terminal would obey and a line would break at."""
    return "".join(c if c.isprintable() else " " for c in text)


def cell(text: str) -> str:
    """`text` in a cell of a Markdown table."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def plain(text: str) -> str:
    """`text` in a cell of a CSV file, which no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
