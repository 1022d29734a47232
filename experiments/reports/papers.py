"""The page of papers, made from the tables of recipes and of schedulers."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

from mbrl.policy_gradient import RECIPES, Recipe, Term
from mbrl.policy_gradient.recipes import TABLES
from mbrl.policy_gradient.schedulers import COMPONENTS, SCHEDULERS, Entry

HEADS = {
    "foundations": "What others stand on",
    "advantages": "Baselines, scales and modulation of advantages",
    "multi_turn": "Credit for turns and segments",
    "selections": "Which answers are trained on, and masks",
    "off_policy": "Ratios and data of other policies",
    "clipping": "Gates, entropy, aggregation, selection",
    "hints": "What a policy cannot sample: hints, prefixes, repairs, teachers",
    "domains": "Domains, stages, and several parts that learn at once",
}
MARKS = {
    "verified": "its formula was read in the authors' code or page",
    "secondary": "its formula is known from another source",
    "reconstructed": "its formula is this library's reading of the abstract, with the assumptions "
    "that are listed; what it scores is no result about its paper",
}
OPENING = """# Papers and their recipes

This page is the output of `python -m experiments list papers`. A recipe is a paper's objective as
one choice on each axis of `mbrl.policy_gradient`; [policy gradients](policy_gradient.md) says what
the axes are and how a recipe is used. Choices that are not named are those of a bare recipe: GRPO's
advantages of whole sequences over the deviation in their group, ratios of single steps, PPO's clip
at 0.2, the mean over all steps.
"""


def distinctive_choices(recipe: Recipe) -> list[str]:
    """The choices of a recipe that differ from those of a bare one."""
    plain = Recipe("plain", "Plain")
    choices = []
    if recipe.terms != plain.terms:
        choices.append("advantage " + " + ".join(_term(term) for term in recipe.terms))
    for field in dataclasses.fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name in ("terms", *TEXTS) or value == getattr(plain, field.name):
            continue
        values = value if isinstance(value, tuple) else (value,)
        choices.append(f"{field.name.replace('_', ' ')} {', '.join(map(str, values))}")
    return choices


TEXTS = ("name", "title", "arxiv", "mark", "requirements", "assumptions", "differences", "version")


def _term(term: Term) -> str:
    plain, changed = Term(), []
    for field in dataclasses.fields(Term):
        value = getattr(term, field.name)
        if value != getattr(plain, field.name):
            shown = ", ".join(value) or "batch" if field.name == "key" else str(value)
            changed.append(f"{field.name} {shown}")
    return f"({', '.join(changed)})" if changed else "(bare)"


def counts_text() -> str:
    """The number of recipes with each mark."""
    counts = Counter(str(recipe.mark) for recipe in RECIPES.values())
    parts = ", ".join(f"{counts[mark]} {mark}" for mark in MARKS)
    return f"{len(RECIPES)} recipes: {parts}."


# Part, paper, arXiv id, mark, and what is here of it.
SYSTEMS = (
    (
        "mbrl.distributed.groups",
        "HybridFlow: A Flexible and Efficient RLHF Framework",
        "2409.19256",
        "verified",
        "worker groups with dispatch and collect modes, futures between them; no resharding",
    ),
    (
        "mbrl.distributed.transfer_queue",
        "AsyncFlow: An Asynchronous Streaming RL Framework for Efficient LLM Post-Training",
        "2507.01663",
        "secondary",
        "the transfer queue, known from the README of its code; values in one store",
    ),
    (
        "mbrl.distributed.streams",
        "SRL: Scaling Distributed Reinforcement Learning to Over Ten Thousand Cores",
        "2306.16688",
        "secondary",
        "inference and sample streams, rings of environments, known from its configuration; no "
        "sockets, no shared memory",
    ),
    (
        "algorithms.language.sampling.async_collector",
        "RollArt: Scaling Agentic RL Training via Disaggregated Infrastructure",
        "2512.22560",
        "secondary",
        "redundant conversations, late groups dropped, stateless rewards, tags of nodes, known "
        "from its scheduler's code; no phases on different accelerators",
    ),
    (
        "algorithms.language.swarm",
        "Sharing is Caring: Efficient LM Post-Training with Collective RL Experience Sharing",
        "2509.08721",
        "secondary",
        "texts shared, graded and weighed by every node itself; its core package was not read",
    ),
    (
        "algorithms.language.models.quantised",
        "Jet-RL: Enabling On-Policy FP8 Reinforcement Learning with Unified Training and Rollout "
        "Precision Flow",
        "2601.14243",
        "secondary",
        "rounded linear layers for sampling alone or for both; simulated, forward passes only",
    ),
    (
        "algorithms.language.sampling.equal_groups",
        "Beyond Ten Turns: Unlocking Long-Horizon Agentic Search with Large-Scale Asynchronous RL",
        "2508.07976",
        "secondary",
        "groups of equal rewards dropped beside workers, their places given back",
    ),
)


def _systems() -> Iterator[str]:
    yield "\n## Training systems\n"
    yield "Parts of systems, not recipes: [guide](systems.md), [results](results/systems.md).\n"
    yield "| part | paper | mark | what is here |"
    yield "|---|---|---|---|"
    for part, title, arxiv, mark, here in SYSTEMS:
        yield f"| `{part}` | {title}, arXiv {arxiv} | {mark} | {here} |"


def page() -> str:
    """The whole page, Markdown."""
    return (
        "\n".join(
            [OPENING, counts_text(), "", *_marks(), *_tables(), *_schedulers(), *_systems()]
        ).rstrip()
        + "\n"
    )


def _marks() -> Iterator[str]:
    for mark, meaning in MARKS.items():
        yield f"- **{mark}**: {meaning}."


def _tables() -> Iterator[str]:
    for name, table in TABLES.items():
        yield f"\n## {HEADS[name]}\n"
        yield "| recipe | paper | mark | what is its own | needs |"
        yield "|---|---|---|---|---|"
        for recipe in table:
            arxiv = f", arXiv {recipe.arxiv}" if recipe.arxiv else ""
            cells = (
                f"`{recipe.name}`",
                recipe.title + arxiv,
                recipe.mark,
                "; ".join(distinctive_choices(recipe)) or "nothing: the bare one",
                "; ".join(map(str, recipe.requirements)),
            )
            yield f"| {' | '.join(cells)} |"
        notes = [r for r in table if r.assumptions or r.differences]
        if notes:
            yield ""
        for recipe in notes:
            for kind in ("assumptions", "differences"):
                if said := getattr(recipe, kind):
                    yield f"- `{recipe.name}`, {kind}: {'; '.join(said)}."


def all_schedulers() -> dict[str, Entry]:
    """Schedulers and the other components of scheduling, by name."""
    return {**SCHEDULERS, **COMPONENTS}


def _schedulers() -> Iterator[str]:
    yield "\n## Which prompts, and how many answers\n"
    yield "Components of `mbrl.policy_gradient.schedulers`, for language and control alike.\n"
    yield "| name | paper | mark |"
    yield "|---|---|---|"
    for name, entry in all_schedulers().items():
        arxiv = f", arXiv {entry.arxiv}" if entry.arxiv else ""
        yield f"| `{name}` | {entry.title}{arxiv} | {entry.mark} |"
    yield ""
    for name, entry in all_schedulers().items():
        for kind in ("assumptions", "differences"):
            if said := getattr(entry, kind):
                yield f"- `{name}`, {kind}: {'; '.join(said)}."
