"""A dataset's rows for learners, read where the dataset holds them: nothing is copied, so that a
run has its data in memory once, and a file that is mapped need not fit into memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mbrl.buffer import Batch, Buffer, Rows, action_range, masks_of
from mbrl.native.gather import Field, Gather
from mbrl.types import Spec, Transitions


class LoggedTable(Rows):
    """The rows of `data`, which are on the CPU, rewards times `reward_scale`. What `Buffer.append`
    does to all rows is done to those of a batch, with the same result bit by bit. `values` are
    further columns, [N] or [N, D] by name, of the width that `columns` says."""

    def __init__(
        self,
        spec: Spec,
        data: Transitions,
        gamma: float,
        columns: Mapping[str, int] | None = None,
        values: Mapping[str, Tensor] | None = None,
        reward_scale: float = 1.0,
    ) -> None:
        super().__init__(spec, gamma, columns)
        self.size = len(data)
        reward = Field("scaled", data.reward, factor=reward_scale)
        if data.duration is None:
            discount = Field("discount", data.terminated, factor=gamma)
        else:
            discount = Field("copy", data.discounts(gamma))
        self._fields = [
            Field("copy", data.obs),
            self._action(data.action),
            reward,
            discount,
            Field("copy", data.next_obs),
        ]
        given = {**(values or {}), **masks_of(data, spec)}
        for name, size in self.columns.items():
            value = given.get(name)
            if value is None:  # the same 0 for every row
                shape = (size,) if size else ()
                value = torch.zeros(shape).expand(self.size, *shape)
            if name == "next_action":
                self._fields.append(self._action(value))
            else:
                self._fields.append(Field("flag" if value.dtype == torch.bool else "copy", value))
        self._gather = Gather(self._fields)

    def _action(self, action: Tensor) -> Field:
        if self.spec.discrete:
            return Field("whole", action)
        centre, half = action_range(self.spec, "cpu")
        return Field("action", action, centre=centre, half=half)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __len__(self) -> int:
        return self.size

    def gather(self, index: Tensor) -> Tensor:
        return self._gather(index)

    def obs(self, index: Tensor) -> Tensor:
        return self._fields[0].values.index_select(0, index).float()

    def whole(self) -> Batch:
        names = ("obs", "action", "reward", "discount", "next_obs", *self.columns)
        fields = dict(zip(names, self._fields, strict=True))
        kept = {"flag", "whole"}  # masks, and discrete actions
        values: dict[str, Any] = {
            name: field.values if field.kind in kept else field.of(field.values)
            for name, field in fields.items()
        }
        return Batch(**values)


def rows_of(
    spec: Spec,
    data: Transitions,
    gamma: float,
    device: torch.device,
    *,
    columns: Mapping[str, int] | None = None,
    values: Mapping[str, Tensor] | None = None,
    reward_scale: float = 1.0,
) -> Rows:
    """`data` on the device: a view of it on the CPU, elsewhere a copy. Where the data weigh their
    rows they are drawn so."""
    rows: Rows
    if device.type == "cpu":
        data, values = data.to(device), {k: v.cpu() for k, v in (values or {}).items()}
        rows = LoggedTable(spec, data, gamma, columns, values, reward_scale)
    else:
        rows = buffer = Buffer(spec, len(data), gamma, device, columns)
        buffer.append(replace(data, reward=data.reward * reward_scale), **dict(values or {}))
    if data.weight is not None:
        rows.weigh(data.weight)
    return rows
