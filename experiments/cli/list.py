"""The verb `list`: algorithms, tasks, datasets, recipes, schedulers, and the page of papers."""

import inspect

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from algorithms import ALGORITHMS
from experiments.cli.data import DataList
from experiments.reports import papers
from experiments.reports.grid import grid
from mbrl import tasks
from mbrl.errors import unknown_name
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient.recipe import Recipe
from mbrl.terminal import terminal

WIDE = 140  # characters that the table of recipes needs

HELP = """usage: python -m experiments list [WHAT]

Without WHAT: algorithms, tasks and datasets.
algorithms  what each is and the actions that it takes; all but those "online only" learn from
            logged data, and go on in a task
tasks       sizes of observations and actions, and the steps of an episode
datasets    the names that the commands and `mbrl.data.load` take
recipes     objectives of policy_gradient: what each changes and needs, and its source
schedulers  components of mbrl.policy_gradient.schedulers: how many rollouts each prompt gets
papers      both as a Markdown page with assumptions and differences (docs/papers.md)"""


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(HELP)
        return 0
    what = {
        "algorithms": _algorithms,
        "tasks": _tasks,
        "datasets": DataList().main,
        "recipes": _recipes,
        "schedulers": _schedulers,
        "papers": _papers,
    }
    names = arguments[:1] or ["algorithms", "tasks", "datasets"]
    for name in names:
        if name not in what:
            raise unknown_name("list", name, what)
    return max(what[name]() for name in names)


def _algorithms() -> int:
    table = grid("algorithm", "what it is", "actions", title="algorithms")
    for name, (cls, _) in ALGORITHMS.items():
        parts = ["both" if len(cls.action_kinds) > 1 else next(iter(cls.action_kinds))]
        parts += ["needs goals"] if cls.needs_goals else []
        parts += [] if cls.learns_offline else ["online only"]
        table.add_row(name, description(cls), "; ".join(parts))
    terminal().print(table)
    return 0


def _tasks() -> int:
    table = grid("task", "observations", "actions", "limit", title="tasks")
    for name in tasks.TASKS:
        spec = tasks.make(name).spec
        actions = f"{spec.num_actions} discrete" if spec.discrete else f"{spec.action_dim}"
        table.add_row(name, str(spec.obs_dim), actions, str(spec.max_episode_steps))
    terminal().print(table)
    return 0


def description(cls: type) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())


def _recipes() -> int:
    console = terminal()
    if console.width < WIDE:
        for name, recipe in RECIPES.items():
            _show_recipe(console, name, recipe)
        console.print(papers.counts_text())
        return 0
    table = grid("recipe", "paper", "known", "what is its own", "needs", title="recipes")
    for name, recipe in RECIPES.items():
        needs = ", ".join([*recipe.needs, *map(str, recipe.requirements)])
        choices = "; ".join(papers.distinctive_choices(recipe))
        source = f"{recipe.title} ({recipe.arxiv})" if recipe.arxiv else recipe.title
        table.add_row(name, source, recipe.mark, choices, needs)
    console.print(table)
    console.print(papers.counts_text())
    return 0


def _show_recipe(console: Console, name: str, recipe: Recipe) -> None:
    """A paragraph: five columns leave too little room for each in a narrow terminal."""
    source = f"{recipe.title} ({recipe.arxiv})" if recipe.arxiv else recipe.title
    needs = ", ".join([*recipe.needs, *map(str, recipe.requirements)])
    own = "; ".join(papers.distinctive_choices(recipe))
    console.print(Text.assemble((name, "bold"), f": {source}, {recipe.mark}"), highlight=False)
    for head, text in (("own", own), ("needs", needs)):
        if text:
            line = Padding(f"{head}: {text}", (0, 0, 0, 4))
            console.print(line, highlight=False)


def _schedulers() -> int:
    table = grid("scheduler", "paper", "known", "assumptions", title="schedulers")
    for name, entry in papers.all_schedulers().items():
        table.add_row(name, entry.title, entry.mark, "; ".join(entry.assumptions))
    terminal().print(table)
    return 0


def _papers() -> int:
    print(papers.page(), end="")
    return 0
