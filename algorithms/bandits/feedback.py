"""Outcomes that come late, and several at once."""

from typing import Any

import torch

from algorithms.bandits.base import Rows, as_rows
from mbrl.config import Count, CountOrZero, check


class DelayedFeedback:
    """Rows become known `delay` rounds after their decision, and are handed over once `batch` of
    them are known. Delay 0 and batch 1: at once."""

    def __init__(self, delay: int = 0, batch: int = 1) -> None:
        check({"delay": delay, "batch": batch}, {"delay": CountOrZero, "batch": Count})
        self.delay, self.batch = delay, batch
        self.waiting: list[Rows] = []  # a round each, oldest first

    def add(self, rows: Rows) -> Rows | None:
        """Take the rows of one round; returns those to learn from now, in order, if any. Arrays
        that the caller fills again later are copied. Raises `DataError` for no rows."""
        self.waiting.append(Rows(*(column.clone() for column in as_rows(rows))))
        known = self.waiting[: max(0, len(self.waiting) - self.delay)]
        if not known or sum(len(r.action) for r in known) < self.batch:
            return None
        self.waiting = self.waiting[len(known) :]
        return joined(known)

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": [tuple(rows) for rows in self.waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = [Rows(*rows) for rows in state["waiting"]]


def joined(parts: list[Rows]) -> Rows:
    """All rows in one."""
    return Rows(*(torch.cat(column) for column in zip(*parts, strict=True)))
