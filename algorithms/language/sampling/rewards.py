"""Replies of a task as calls without a state, which may be anywhere and are made again where they
fail: "RollArt: Scaling Agentic RL Training via Disaggregated Infrastructure", arXiv 2512.22560, has
rewards as such functions."""

import copy
from typing import Literal

from algorithms.language.tasks.base import TextTask
from mbrl.distributed.elastic import Elastic

Place = Literal["inline", "ray"]


def with_rewards(task: TextTask, place: Place = "inline", retries: int = 0) -> TextTask:
    """The task, with its `replies` made in this process or as tasks of Ray, and each again up to
    `retries` times where it raises or its process dies."""
    if place == "inline" and retries == 0:
        return task
    own = copy.copy(task)
    own.elsewhere = Elastic(task.reply, place, retries=retries)
    return own
