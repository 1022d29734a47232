"""The verb `list`: algorithms, tasks and datasets."""

from rich.console import Console

from algorithms import ALGORITHMS
from experiments.data import DataList
from experiments.grid import grid
from mbrl import tasks


def list_main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print("usage: python -m experiments list\n\nThe algorithms, tasks and datasets there are.")
        return 0
    console = Console()
    table = grid("algorithm", "what it is", "learns", title="algorithms")
    for name, (cls, _) in ALGORITHMS.items():
        ways = [("online", hasattr(cls, "learn")), ("offline", cls.learns_offline)]
        online = ", ".join(name for name, able in ways if able)
        table.add_row(name, (cls.__doc__ or "").strip().splitlines()[0], online)
    console.print(table)
    table = grid("task", "observations", "actions", "limit", title="tasks")
    for name in tasks.TASKS:
        spec = tasks.make(name).spec
        actions = f"{spec.num_actions} discrete" if spec.discrete else f"{spec.action_dim}"
        table.add_row(name, str(spec.obs_dim), actions, str(spec.max_episode_steps))
    console.print(table)
    return DataList().main()
