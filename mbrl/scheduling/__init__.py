"""Rollout schedulers: which prompts or tasks are answered, and how often, in a round."""

from mbrl.scheduling.entry import Entry
from mbrl.scheduling.parts import PARTS
from mbrl.scheduling.registry import SCHEDULERS, scheduler
from mbrl.scheduling.scheduler import Outcome, Pool, Request, Scheduler, gather

__all__ = [
    "PARTS",
    "SCHEDULERS",
    "Entry",
    "Outcome",
    "Pool",
    "Request",
    "Scheduler",
    "gather",
    "scheduler",
]
