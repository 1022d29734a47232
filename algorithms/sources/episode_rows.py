"""Logged rows with columns that look ahead to the end of the episode, such as the discounted return
from each row on, and experience that joins them by whole episodes, when these are over."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from algorithms.sources.logged import Columns, LoggedRows, broken_off
from mbrl.data.loading import joined_rows
from mbrl.errors import ConfigError
from mbrl.returns import returns_to_go
from mbrl.types import Transitions


class EpisodeRows(LoggedRows):
    """`LoggedRows` with the column `to_go`, in the units of a batch's rewards, or with other
    `columns` of whole episodes, of the `widths` given. Steps of experience whose episodes are not
    over yet wait, each with a row for every copy of the task. With `logged_alone` experience joins
    at once and its column is 0, for learners that do not read it in the task."""

    def __init__(
        self,
        *args: Any,
        logged_alone: bool = False,
        widths: Mapping[str, int] | None = None,
        columns: Columns | None = None,
        **options: Any,
    ) -> None:
        self.logged_alone = logged_alone
        own = {"to_go": 0} if widths is None else widths
        super().__init__(*args, widths=own, columns=columns or self.to_go, **options)
        self.unfinished: list[Transitions] = []

    def to_go(self, data: Transitions) -> dict[str, Tensor]:
        """The column of whole episodes; that of experience with `logged_alone`."""
        if self.online and self.logged_alone:
            return {"to_go": torch.zeros_like(data.reward)}
        returns = self.reward_scale * returns_to_go(data, self.gamma)
        return {"to_go": torch.as_tensor(returns, dtype=torch.float32)}

    def begin_experience(self) -> None:
        """As `LoggedRows`. Raises `ConfigError` without logged rows: a batch could be asked for
        before the first episode is over."""
        if self.buffer is None and not self.logged and not self.logged_alone:
            raise ConfigError(
                "what an episode leads to is known when it is over, so there must be logged rows "
                "first: fit or prepare the agent with a dataset (WSRL: or set calibrated to False)"
            )
        super().begin_experience()

    def observe(self, data: Transitions, step: int) -> None:
        """Add one row of each copy of the task; the episodes that it ends join the batches."""
        if not self.online:
            self.begin_experience()
        if self.logged_alone:
            return self._append(data)
        if self.unfinished:
            # Where another collector began in between, the episode is cut.
            last = self.unfinished[-1]
            broken = ~last.ends
            if len(last) == len(data):
                broken &= broken_off(last, data)
            self.unfinished[-1] = replace(last, truncated=last.truncated | broken)
            self._close(broken)
            if len(last) != len(data):
                self.unfinished = []
        self.unfinished = [*self.unfinished, data]
        self._close(data.ends)

    def _close(self, over: Tensor) -> None:
        """Take in the episodes of the copies `over` [E], which the last step ended, and forget the
        steps that no unfinished episode needs."""
        if not bool(over.any()):
            return
        for copy in torch.nonzero(over).flatten().tolist():
            rows = [part.select(slice(copy, copy + 1)) for part in self.unfinished]
            self._append(joined_rows(rows[_after_end(rows[:-1]) :]))
        copies = range(len(over))
        parts = [[p.select(slice(c, c + 1)) for p in self.unfinished] for c in copies]
        self.unfinished = self.unfinished[min(_after_end(rows) for rows in parts) :]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"unfinished": [asdict(p) for p in self.unfinished]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.unfinished = [Transitions(**part) for part in state.get("unfinished", [])]


def _after_end(rows: list[Transitions]) -> int:
    """The index after the last of `rows`, of one copy, that ends an episode; 0 without one."""
    return max((k + 1 for k, row in enumerate(rows) if bool(row.ends)), default=0)
