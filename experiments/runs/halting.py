"""Whether a model that ends where the data end can be made for a dataset, and the task's rule that
it takes."""

from mbrl import tasks
from mbrl.types import Dataset, Spec
from world_models.ensemble import Termination


def has_task(spec: Spec) -> bool:
    """Whether the task of a dataset is one that the world models know the ends of."""
    return spec.task in tasks.TASKS


def can_imagine(dataset: Dataset) -> bool:
    """Whether a world model can be fitted and says where imagined episodes end: steps of one
    length, and the task's rule or a log whose episodes never terminate."""
    rows = dataset.transitions
    known = has_task(dataset.spec) or not bool(rows.terminated.any())
    return rows.duration is None and known


def rule(spec: Spec) -> Termination | None:
    """Where episodes of the task end, from observations; None where nothing is known of it."""
    return tasks.make_for(spec).terminates if has_task(spec) else None
