"""A page of documentation for each algorithm, made from its docstrings, its config, the metrics
of a short run and the recorded tables."""

import csv
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from algorithms import ALGORITHMS
from experiments import studies
from experiments.cli.list import description
from experiments.reports.setting_pages import settings
from experiments.settings import merge
from experiments.tables import plan
from mbrl import config as configs
from mbrl import data, tasks
from mbrl.training import Metrics

RECORDS = Path(__file__).parents[1] / "records"
TABLES = ("classic", "classic-discrete", "model-based", "bayesian", "neorl2", "d4rl-like")
FORMULA, LIMITS = "Formula:", "When not to use it:"
MORE = {  # algorithm -> pages that say more
    "ravl": "[RAVL and the edge of reach](../../edge_of_reach.md), "
    "[what came out](../../results/edge_of_reach.md)",
    "neubay": "[NEUBAY](../../neubay.md), [what came out](../../results/neubay.md)",
    "pgd": "[policy-guided diffusion and samplers](../../pgd.md), "
    "[what came out](../../results/pgd.md)",
    "policy_gradient": "[policy gradients](../../policy_gradient.md), [recipes](../recipes.md), "
    "[what came out](../../results/policy_gradient.md)",
    "props": "[policy gradients](../../policy_gradient.md)",
    "sac": "[against an independent implementation]"
    "(../../results/classic.md#against-an-independent-implementation)",
    "pets": "[online](../../algorithms.md#online)",
    "coplanner": "[online](../../algorithms.md#online)",
    "mbpo": "[online](../../algorithms.md#online)",
}


def pages(small: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Name to page, and `index` with the list of all. `small` has config values that make an update
    of each algorithm cheap, for the run that shows what is logged."""
    made = {name: page(name, logged_metrics(name, small[name])) for name in ALGORITHMS}
    return {"index": index()} | made


def index() -> str:
    lines = ["# Algorithms, one by one", "", "[Algorithms](../../algorithms.md) compares them.", ""]
    lines += [":::{toctree}", ":maxdepth: 1", "", *ALGORITHMS, ":::", ""]
    return "\n".join(lines)


def page(name: str, metrics: list[str]) -> str:
    """The page of one algorithm, Markdown."""
    cls, kind = ALGORITHMS[name]
    about, _, differences = _module_text(cls).partition("Differences")
    parts = [
        f"# {cls.__name__}",
        _paragraph(about),
        *_facts(name),
        "## Formula",
        f"```text\n{section(cls, FORMULA)}\n```",
        "## When not to use it",
        _paragraph(section(cls, LIMITS)),
        "## Our scores",
        *_scores(name),
        "## Settings",
        "What `--help` prints; a name with a dot is a setting of a part of the config.",
        _settings(kind),
        "## What it logs",
        "Found by a short run on logged data, or in a task where it learns online only. Those of "
        "the fit of a world model (`model/...`) are in `model.csv`, the others in `metrics.csv`; "
        "[reading a report](../../reading_a_report.md) says what they tell.",
        ", ".join(f"`{metric}`" for metric in metrics) + ".",
        "## Differences from the paper",
        _paragraph(differences.lstrip(": ")) if differences else "None.",
    ]
    if name in MORE:
        parts += [f"More: {MORE[name]}."]
    return "\n\n".join(parts) + "\n"


def _module_text(cls: type) -> str:
    return inspect.getdoc(sys.modules[cls.__module__]) or ""


def _paragraph(text: str) -> str:
    """One line a paragraph, the first letter of the whole a capital."""
    joined = "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
    return joined[:1].upper() + joined[1:]


def section(cls: type, head: str) -> str:
    """The part of a class's docstring that begins with `head`, to the next empty line followed by
    text at the margin. Raises `ValueError` where there is none."""
    text = inspect.getdoc(cls) or ""
    match = re.search(rf"^{re.escape(head)}(.*?)(?=\n\n\S|\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"the docstring of {cls.__name__} has no part that begins with {head!r}")
    return inspect.cleandoc(match[1].strip("\n")).strip()


def _facts(name: str) -> Iterator[str]:
    cls, kind = ALGORITHMS[name]
    learns = "from logged data, and on from there in a task" if cls.learns_offline else "in a task"
    yield f"{description(cls)}"
    module = cls.__module__
    arxiv = re.findall(r"\d{4}\.\d{5}", _module_text(cls))
    papers = ", ".join(f"[arXiv {i}](https://arxiv.org/abs/{i})" for i in dict.fromkeys(arxiv))
    lines = [
        f"- Name: `{name}`; class [`{cls.__name__}`](#{module}.{cls.__name__}), "
        f"settings [`{kind.__name__}`](#{kind.__module__}.{kind.__name__})",
        f"- Actions: {' or '.join(cls.action_kinds)}",
        f"- Learns: {learns}",
        f"- Command: `python -m experiments run {name} {_example(name)}`",
    ]
    yield "\n".join([*lines, f"- Papers: {papers}"] if papers else lines)


def _example(name: str) -> str:
    cls, _ = ALGORITHMS[name]
    family = "pendulum" if "continuous" in cls.action_kinds else "cartpole"
    if cls.needs_goals:
        return "pointmaze/medium-navigate"
    if cls.learns_offline:
        return f"{family}/medium"
    return "Pendulum-v1"


def _settings(kind: type) -> str:
    lines = ["| setting | default | allowed | what |", "|---|---|---|---|"]
    for setting in settings(kind):
        choices = setting.allowed.replace("|", "\\|")
        cells = (f"`{setting.name}`", f"`{setting.default}`", choices, setting.about)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# Scores of the recorded tables.


def _scores(name: str) -> Iterator[str]:
    others = [table for table in _tables_of_algorithms().get(name, ()) if table not in TABLES]
    links = ", ".join(f"[{t}](../../../experiments/records/{t}/table.md)" for t in others)
    none = True
    for table in TABLES:
        label = _column(table, name)
        rows = list(_rows(table, label))
        if not rows:
            continue
        none = False
        column = "" if label == name else f" (column {label})"
        yield (
            f"Table [{table}](../../../experiments/records/{table}/table.md){column}: normalised "
            f"score of the last evaluation, {_seeds(rows)}."
        )
        lines = ["| dataset | updates | mean ± deviation | 95 % interval | chosen offline |"]
        lines.append("|---|---|---|---|---|")
        lines += ["| " + " | ".join(_score_cells(row)) + " |" for row in rows]
        yield "\n".join(lines)
    if links:
        what, where = "Scores" if none else "More", "table" if len(others) == 1 else "tables"
        yield f"{what} in {where} {links}."
    elif none:
        yield (
            "No table has it yet. "
            f"`python -m experiments run {name} {_example(name)}` measures it on your machine."
        )


def _seeds(rows: list[dict[str, str]]) -> str:
    counts = [len(row["seeds"].split()) for row in rows]
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "one seed"
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


@functools.cache
def _tables_of_algorithms() -> dict[str, list[str]]:
    """Algorithm to the tables in which it has a record, as a column or in the settings of a row of
    a study."""
    tables: dict[str, list[str]] = {name: [] for name in ALGORITHMS}
    for table in plan.names():
        blocks = plan.load(table).blocks
        recorded = {name for block in blocks for name in _recorded(RECORDS / table, block)}
        for name in recorded & set(ALGORITHMS):
            tables[name].append(table)
    return tables


def _recorded(home: Path, block: plan.Block) -> Iterator[str]:
    """The names of algorithms in a table's block that have a record in its folder `home`."""
    if block.study is None:
        for column in block.columns:
            if any((home / column.folder).rglob("*.json")):
                yield column.algorithm
        return
    for row in block.rows:
        if any((home / block.study / row.folder).glob("*.json")):
            yield from _named(studies.settings_of(block.study, row.settings))


def _named(settings: Mapping[str, Any]) -> Iterator[str]:
    """The names of algorithms in the settings of a study."""
    for key, value in settings.items():
        if key == "algorithm":
            yield value
        elif key == "algorithms":
            yield from value
        elif isinstance(value, Mapping):
            yield from _named(value)


def _column(table: str, name: str) -> str | None:
    """The label of the first column of algorithm `name`, which comes before its variants."""
    columns = (column for block in plan.load(table).blocks for column in block.columns)
    return next((column.label for column in columns if column.algorithm == name), None)


def _rows(table: str, label: str | None) -> Iterator[dict[str, str]]:
    with open(RECORDS / table / "table.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["column"] == label and row["mean"]:
                yield row


def _score_cells(row: dict[str, str]) -> tuple[str, ...]:
    low, high, spread = row["low"], row["high"], row["sd"]
    several = len(row["seeds"].split()) > 1 and spread and low and high
    return (
        row["row"].split("@")[0],
        f"{int(float(row['steps'])):,}",
        f"{float(row['mean']):.1f}" + (f" ± {float(spread):.1f}" if several else " (one seed)"),
        f"{float(low):.1f} to {float(high):.1f}" if several else "",
        f"{float(row['selected']):.1f}" if row["selected"] else "",
    )


# What is logged.


def logged_metrics(name: str, values: dict[str, Any], steps: int = 21) -> list[str]:
    """The names of what `steps` updates log, in alphabetical order."""
    cls, kind = ALGORITHMS[name]
    discrete = "continuous" not in cls.action_kinds or not cls.learns_offline
    plain = "cartpole/random" if discrete else "pendulum/random"
    dataset = data.load(_example(name) if cls.needs_goals else plain)
    dataset = dataset.with_transitions(dataset.transitions.select(slice(0, 400)))
    config = configs.from_dict(kind, merge(configs.to_dict(kind()), values))
    agent = cls(dataset.spec, config, seed=0)
    seen: set[str] = set()

    def collect(event: str, agent: Any, metrics: Metrics) -> None:
        seen.update(metrics)

    if cls.learns_offline:
        agent.fit(dataset, steps, callbacks=[collect])
    else:
        agent.learn(tasks.make("CartPole-v1"), 10 * steps, callbacks=[collect])
    return sorted(seen)
