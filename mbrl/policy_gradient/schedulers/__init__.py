"""Rollout schedulers: which prompts or tasks are answered, and how often, in a round."""

from mbrl.policy_gradient.schedulers.components import COMPONENTS
from mbrl.policy_gradient.schedulers.entry import Entry
from mbrl.policy_gradient.schedulers.registry import SCHEDULERS, scheduler
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler, gather

__all__ = [
    "COMPONENTS",
    "SCHEDULERS",
    "Entry",
    "Outcome",
    "Pool",
    "Request",
    "Scheduler",
    "gather",
    "scheduler",
]
