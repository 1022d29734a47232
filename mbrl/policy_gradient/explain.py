"""A recipe as formulas in plain text, composed of those of its options with their settings."""

import re
from collections.abc import Iterator, Sequence

from mbrl.policy_gradient.axes.baseline import Zero
from mbrl.policy_gradient.axes.option import Option
from mbrl.policy_gradient.axes.scale import One
from mbrl.policy_gradient.recipe import Recipe, Term

NOTATION = (
    "r reward, R credit, A advantage, V value, pi probability under the current policy",
    "rho importance ratio, H entropy of the old policy, sg no gradient, w weight, M aggregation",
)


def explain(recipe: Recipe) -> str:
    """Source, formulas, requirements, assumptions and differences."""
    source = f"{recipe.title}, arXiv {recipe.arxiv}" if recipe.arxiv else recipe.title
    parts = [
        (f"{recipe.name} ({recipe.mark})", [source]),
        ("advantage, once a batch", list(_advantage(recipe))),
        ("loss, at every update", list(_loss(recipe))),
        ("needs", [*recipe.needs, *map(str, recipe.requirements)]),
        ("assumptions", list(recipe.assumptions)),
        ("differences from the paper", list(recipe.differences)),
        ("notation", list(NOTATION)),
    ]
    return "\n\n".join("\n  ".join([head, *lines]) for head, lines in parts if lines)


def _advantage(recipe: Recipe) -> Iterator[str]:
    if recipe.sampling:
        yield f"w = {_product(recipe.sampling)}; statistics are over what is kept"
    several = len(recipe.terms) > 1
    for i, term in enumerate(recipe.terms, 1):
        mark = str(i) if several else ""
        yield f"R{mark} = {term.credit.formula()}, r = {term.reward.formula()}"
        yield f"A{mark} = {_term(term, mark)}"
    if several:
        weighted = [_weighted(term.weight, f"A{i}") for i, term in enumerate(recipe.terms, 1)]
        yield f"A = {' + '.join(weighted)}"
    for change in recipe.modulation:
        yield f"A <- {change.formula()}"
    if recipe.selection:
        yield f"{'w <- w ' if recipe.sampling else 'w = '}{_product(recipe.selection)}"


def _term(term: Term, mark: str) -> str:
    """(R - baseline) / scale, what is 0 or 1 left out."""
    plain = isinstance(term.baseline, Zero)
    value = "R" if plain else f"R - {term.baseline.formula()}"
    weight = 1 if mark else term.weight  # of several terms it stands in their sum
    if not plain and (weight != 1 or not isinstance(term.scale, One)):
        value = f"({value})"
    if not isinstance(term.scale, One):
        value = f"{value} / {term.scale.formula()}"
    value = _weighted(weight, re.sub(r"\bR\b", f"R{mark}", value))
    if plain and isinstance(term.scale, One):
        return value
    return f"{value}, statistics over {_group(term)}"


def _group(term: Term) -> str:
    shared = f" that share {', '.join(term.key)}" if term.key else " of the batch"
    return f"{term.credit.unit()}s{shared}"


def _loss(recipe: Recipe) -> Iterator[str]:
    if "rho" in recipe.gate.formula():
        yield f"rho = {recipe.ratio.formula()}"
    weight = "w " if recipe.selection or recipe.sampling else ""
    if recipe.rejection:
        start = "w <- w " if weight else "w = "
        yield f"{start}{_product(recipe.rejection)}"
        weight = "w "
    yield f"gain = {recipe.gate.formula()}"
    penalties = [f"P{i}" for i in range(1, len(recipe.regularisers) + 1)]
    for name, extra in zip(penalties, recipe.regularisers, strict=True):
        yield f"{name} = {extra.formula()}"
    yield f"L = -M({weight}gain){''.join(f' + M({name})' for name in penalties)}"
    yield f"M = {recipe.aggregation.formula()}"
    if recipe.step_size is not None:
        yield f"learning rate times {recipe.step_size.formula()}"


def _weighted(weight: float, value: str) -> str:
    return value if weight == 1 else f"{weight:g} {value}"


def _product(options: Sequence[Option]) -> str:
    formulas = [option.formula() for option in options]
    return formulas[0] if len(formulas) == 1 else " ".join(f"[{text}]" for text in formulas)
