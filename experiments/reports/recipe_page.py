"""The page of recipes: every policy-gradient objective by group, with its composed formula."""

from collections.abc import Iterator

from experiments.reports.papers import HEADS, counts_text
from mbrl.policy_gradient.explain import explain
from mbrl.policy_gradient.recipes import TABLES

OPENING = """# Recipes, one by one

A recipe is a policy-gradient objective as one choice on each axis: reward, credit, baseline, scale,
ratio, gate, aggregation, ... Below is what `python -m experiments explain NAME` prints for each.
[Policy gradients](../policy_gradient.md) says how recipes are used and what the axes are,
[papers](../papers.md) what each has of its own.
"""


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join([OPENING, counts_text(), "", *_groups()])


def _groups() -> Iterator[str]:
    for name, table in TABLES.items():
        yield f"## {HEADS[name]}\n"
        for recipe in table:
            lines = explain(recipe).splitlines()
            arxiv = f", arXiv {recipe.arxiv}" if recipe.arxiv else ""
            yield f"### {recipe.name}\n\n{recipe.title}{arxiv} ({recipe.mark}).\n"
            yield "\n".join(["```text", *_formula(lines), "```", ""])


def _formula(lines: list[str]) -> list[str]:
    """From the advantage on, without the notation, which is the same for all."""
    start = next(i for i, line in enumerate(lines) if line.startswith("advantage"))
    end = next((i for i, line in enumerate(lines) if line == "notation"), len(lines))
    return "\n".join(lines[start:end]).rstrip().splitlines()
