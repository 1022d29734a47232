"""Whether a model that ends where the data end can be made for a dataset, and where else its
episodes end."""

from typing import Literal

from mbrl import tasks
from mbrl.types import Dataset, Spec
from world_models.ensemble import Termination

ENDS = 5  # episodes that terminate: fewer teach no ends


def has_task(spec: Spec) -> bool:
    """Whether the task of a dataset is one that the world models know the ends of."""
    return spec.task in tasks.TASKS


def can_imagine(dataset: Dataset) -> bool:
    """Whether a world model can be fitted and says where imagined episodes end: steps of one
    length, and the task's rule, a log whose episodes never terminate, or enough that do."""
    rows = dataset.transitions
    ended = int(rows.terminated.sum())
    return rows.duration is None and (has_task(dataset.spec) or ended == 0 or ended >= ENDS)


def ends_of(dataset: Dataset) -> Termination | Literal["learned"] | None:
    """Where episodes of the task end: its rule, or ends to be learned from a log of no task whose
    episodes terminate; None where they do not."""
    if has_task(dataset.spec):
        return tasks.make_for(dataset.spec).terminates
    return "learned" if bool(dataset.transitions.terminated.any()) else None
