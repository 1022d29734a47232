"""The verb `list`: algorithms, tasks and datasets; recipes; and the page of papers."""

from rich.console import Console

from algorithms import ALGORITHMS
from experiments import papers
from experiments.data import DataList
from experiments.grid import grid
from mbrl import tasks
from mbrl.errors import unknown_name
from mbrl.policy_gradient import RECIPES

HELP = """usage: python -m experiments list [WHAT]

Without WHAT the algorithms, tasks and datasets there are.
recipes     the objectives of policy_gradient: what each changes, needs, how well it is known
schedulers  which prompts get how many rollouts: the components of mbrl.policy_gradient.schedulers
papers      both as a Markdown page, with every assumption and difference (docs/papers.md)"""


def list_main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(HELP)
        return 0
    what = {
        "everything": _everything,
        "recipes": _recipes,
        "schedulers": _schedulers,
        "papers": _papers,
    }
    name = arguments[0] if arguments else "everything"
    if name not in what:
        raise unknown_name("list", name, what)
    return what[name]()


def _everything() -> int:
    console = Console()
    table = grid("algorithm", "what it is", "learns", title="algorithms")
    for name, (cls, _) in ALGORITHMS.items():
        ways = [("online", hasattr(cls, "learn")), ("offline", cls.learns_offline)]
        learns = ", ".join(way for way, able in ways if able)
        table.add_row(name, (cls.__doc__ or "").strip().splitlines()[0], learns)
    console.print(table)
    table = grid("task", "observations", "actions", "limit", title="tasks")
    for name in tasks.TASKS:
        spec = tasks.make(name).spec
        actions = f"{spec.num_actions} discrete" if spec.discrete else f"{spec.action_dim}"
        table.add_row(name, str(spec.obs_dim), actions, str(spec.max_episode_steps))
    console.print(table)
    return DataList().main()


def _recipes() -> int:
    table = grid("recipe", "paper", "known", "what is its own", "needs", title="recipes")
    for name, recipe in RECIPES.items():
        needs = ", ".join([*recipe.needs, *map(str, recipe.requirements)])
        source = f"{recipe.title} ({recipe.arxiv})" if recipe.arxiv else recipe.title
        table.add_row(name, source, recipe.mark, "; ".join(papers.own(recipe)), needs)
    console = Console()
    console.print(table)
    console.print(papers.counted())
    return 0


def _schedulers() -> int:
    table = grid("scheduler", "paper", "known", "assumptions", title="schedulers")
    for name, entry in papers.scheduled().items():
        table.add_row(name, entry.title, entry.mark, "; ".join(entry.assumptions))
    Console().print(table)
    return 0


def _papers() -> int:
    print(papers.page(), end="")
    return 0
