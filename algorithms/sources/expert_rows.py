"""Logged rows of which some are an expert's: every batch has as many of those as of all."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from algorithms.sources.logged import LoggedRows
from mbrl.buffer import Batch, Rows
from mbrl.errors import ConfigError, DataError
from mbrl.logged_table import rows_of
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Transitions


class ExpertRows(LoggedRows):
    """Batches of `batch_size` of the expert's rows followed by `batch_size` of all rows, both
    uniform; the column `expert` says which of them are the expert's.

    The expert's rows are those that the data mark (`Transitions.expert`); where they mark none,
    those of the `episodes` episodes with the highest returns. Experience is no expert's.
    """

    mixes = False

    def __init__(
        self, spec: Spec, gamma: float, batch_size: int, device: torch.device, episodes: int
    ) -> None:
        columns: Mapping[str, int] = {"expert": 0}
        super().__init__(spec, gamma, batch_size, device, widths=columns)
        self.episodes = episodes
        self._experts: Tensor | None = None  # where the expert's rows stand, while that is fixed
        self._weight: Tensor | None = None  # of the logged rows

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Put the dataset on the device, unless there are rows. Raises `ConfigError` where nothing
        says which rows are the expert's, `DataError` where none are."""
        if self.buffer is None:
            data = dataset.transitions
            values = {"expert": expert_marks(data, self.episodes)}
            self.buffer = rows_of(
                self.spec, data, self.gamma, self.device, columns=self.widths, values=values
            )
            self.logged = len(data)
            self._weight = None if data.weight is None else data.weight.to(self.device)

    def sample(self, generator: torch.Generator) -> Batch:
        """The expert's rows, then those of all. Raises `DataError` where no expert's are left."""
        buffer = self.rows
        if self._experts is None or self.online:
            self._experts = positions(buffer, None if self.online else self._weight)
        drawn = torch.randint(
            len(self._experts), (self.batch_size,), generator=generator, device=self.device
        )
        expert = buffer.gather(self._experts[drawn])
        return buffer.batch(torch.cat([expert, buffer.sample_rows(self.batch_size, generator)]))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._experts = None


def positions(buffer: Rows, weight: Tensor | None = None) -> Tensor:
    """Where the expert's rows stand in `buffer`, int64 [K], without those of `weight` 0. Raises
    `DataError` where there are none."""
    marks = buffer.whole().expert
    assert marks is not None
    if weight is not None:
        marks = marks.bool() & (weight > 0)
    experts = torch.nonzero(marks).flatten()
    if len(experts) == 0:
        raise DataError(
            "none of the rows is an expert's: fit to data with some first, and let the replay "
            "buffer (capacity) be so large that experience does not overwrite them"
        )
    return experts


def expert_marks(data: Transitions, episodes: int) -> Tensor:
    """[N] bool: the data's own marks, else True in the `episodes` episodes with the highest
    returns, the earlier one first where two are equal. Raises `ConfigError` where there are no
    marks and `episodes` is 0, `DataError` where no row is marked."""
    if data.expert is not None:
        if not bool(data.expert.any()):
            raise DataError(
                f"expert is False in all {len(data)} rows; mark the rows to imitate, or leave the "
                "column out and set expert_episodes"
            )
        return data.expert
    if episodes == 0:
        raise ConfigError(
            "nothing says which rows are the expert's: give the data a column `expert` (bool, a "
            "row each), or set expert_episodes to the number of best episodes to imitate"
        )
    marks = torch.zeros(len(data), dtype=torch.bool)
    spans = data.episodes()
    order = torch.argsort(data.returns(), descending=True, stable=True)
    for index in order[:episodes].tolist():
        marks[slice(*spans[index])] = True
    return marks
