"""Device-resident storage of transitions in the form the learners use: one flat row each, actions
scaled to [-1, 1], the end of the task turned into a discount."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mbrl.errors import ConfigError, DataError
from mbrl.networks import ActionScale
from mbrl.types import Spec, Transitions


class Batch(NamedTuple):
    """Rows for one update. `obs`, `next_obs` [B, S]; `action` [B, A] in [-1, 1] (int64 [B] where
    discrete); `reward` [B]; `discount` [B] = gamma * (1 - terminated); `noise` [K, B, A] standard
    normal draws for the policy samples of the update (K of them), or None; `subset` [k] the
    target critics of a min-of-k update, or None.

    Columns that some algorithms add: `next_action` [B, A], the logged action at `next_obs`, and
    `has_next` [B], 1 where there is one, else 0; `halted` [B], 1 where a pessimistic model ended
    the episode; `penalty` [B], what a target is lowered by; `expert` [B], 1 where the row is an
    expert's, else 0; `real`, how many rows were recorded (they come first) rather than imagined.
    `action_mask`, `next_action_mask` [B, n] bool say which discrete actions are allowed at `obs`
    and `next_obs`, in tasks that tell.

    Drawing the noise with the batch makes an update a pure function of state and batch.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    noise: Tensor | None = None
    subset: Tensor | None = None
    next_action: Tensor | None = None
    has_next: Tensor | None = None
    halted: Tensor | None = None
    penalty: Tensor | None = None
    expert: Tensor | None = None
    action_mask: Tensor | None = None
    next_action_mask: Tensor | None = None
    real: int | None = None


MASKS = ("action_mask", "next_action_mask")


class Buffer:
    """A ring of at most `capacity` rows; `append` overwrites the oldest.

    A row is [obs, action, reward, discount, next_obs, columns] in one contiguous tensor, so that a
    batch is one gather. Discrete actions are stored as a number, exact in float32 below 2^24.
    `columns` are further fields of `Batch` by name, with their width (0: a number a row); those
    that `append` is not given are 0.
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        gamma: float,
        device: torch.device | str = "cpu",
        columns: Mapping[str, int] | None = None,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"buffer capacity is {capacity}, it must be at least 1")
        self.spec, self.capacity, self.gamma = spec, capacity, gamma
        self.columns = dict(columns or {})
        if spec.action_mask:
            self.columns |= dict.fromkeys(MASKS, spec.num_actions or 0)
        width = 2 * spec.obs_dim + spec.action_dim + 2
        width += sum(max(1, size) for size in self.columns.values())
        self.rows = torch.zeros(capacity, width, device=device)
        self.size, self.position = 0, 0
        if not spec.discrete:
            low = torch.tensor(spec.action_low, device=device)
            high = torch.tensor(spec.action_high, device=device)
            self._centre, self._half = (high + low) / 2, (high - low) / 2

    def __len__(self) -> int:
        return self.size

    def append(self, data: Transitions, **columns: Tensor) -> None:
        """Add rows in order. More rows than the capacity keep the last `capacity` of them. Raises
        `DataError` where the task masks actions and `data` has no masks."""
        columns |= masks_of(data, self.spec)
        discount = data.discounts(self.gamma).to(self.rows.device)
        fields = [
            data.obs.to(self.rows),
            self._stored_action(data.action),
            data.reward.to(self.rows)[:, None],
            discount[:, None],
            data.next_obs.to(self.rows),
        ]
        for name, size in self.columns.items():
            value = columns.get(name, self.rows.new_zeros(len(data), max(1, size)))
            if name == "next_action":
                value = self._stored_action(value)
            fields.append(value.to(self.rows).reshape(len(data), -1))
        new = torch.cat(fields, 1)[-self.capacity :]
        head = min(len(new), self.capacity - self.position)
        self.rows[self.position : self.position + head] = new[:head]
        self.rows[: len(new) - head] = new[head:]
        self.position = (self.position + len(new)) % self.capacity
        self.size = min(self.capacity, self.size + len(new))

    def _stored_action(self, action: Tensor) -> Tensor:
        action = action.to(self.rows.device)
        if self.spec.discrete:
            return action.reshape(-1, 1).to(self.rows.dtype)
        scaled = ((action - self._centre) / self._half).clamp(-1, 1)
        return scaled.to(self.rows.dtype)

    def gather(self, index: Tensor) -> Tensor:
        """Raw rows [B, width] at `index` [B]."""
        return self.rows.index_select(0, index)

    def sample_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` rows, uniformly with replacement."""
        if self.size == 0:
            raise ConfigError("the buffer is empty; append transitions before sampling")
        draw = torch.randint(self.size, (count,), generator=generator, device=self.rows.device)
        return self.gather(draw)

    def batch(self, rows: Tensor) -> Batch:
        """Split raw rows into the fields of a `Batch`."""
        s, a = self.spec.obs_dim, self.spec.action_dim
        action = rows[:, s : s + a]
        columns: dict[str, Any] = {}
        first = 2 * s + a + 2
        for name, size in self.columns.items():
            columns[name] = rows[:, first] if size == 0 else rows[:, first : first + size]
            if name in MASKS:
                columns[name] = columns[name] > 0
            first += max(1, size)
        return Batch(
            obs=rows[:, :s],
            action=action[:, 0].long() if self.spec.discrete else action,
            reward=rows[:, s + a],
            discount=rows[:, s + a + 1],
            next_obs=rows[:, s + a + 2 : 2 * s + a + 2],
            **columns,
        )

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        return self.batch(self.sample_rows(count, generator))

    def sample_obs(self, count: int, generator: torch.Generator) -> Tensor:
        """Start states [count, S]: without replacement where there are enough rows."""
        if count <= self.size:
            index = torch.randperm(self.size, generator=generator, device=self.rows.device)[:count]
        else:
            index = torch.randint(self.size, (count,), generator=generator, device=self.rows.device)
        return self.rows[index, : self.spec.obs_dim]

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows[: self.size].clone(), "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = state["rows"]
        self.size, self.position = len(rows), state["position"]
        # Rows of an old checkpoint may lack the columns, which stand last.
        self.rows[: self.size, : rows.shape[1]] = rows
        self.rows[: self.size, rows.shape[1] :] = 0.0


def resized(buffer: Buffer, capacity: int) -> Buffer:
    """A buffer of another capacity with the newest rows, as many as fit."""
    new = Buffer(buffer.spec, capacity, buffer.gamma, buffer.rows.device, buffer.columns)
    rows = buffer.rows[: buffer.size].roll(-buffer.position if len(buffer) else 0, 0)[-capacity:]
    new.load_state_dict({"rows": rows, "position": len(rows) % capacity})
    return new


def transitions(buffer: Buffer) -> Transitions:
    """A buffer's rows, actions in the task's units; without the episodes' boundaries, which a
    buffer does not keep."""
    batch = buffer.batch(buffer.rows[: buffer.size])
    action = batch.action
    if not buffer.spec.discrete:
        action = ActionScale(buffer.spec).to(action.device).to_task(action)
    ended = batch.discount == 0
    return Transitions(
        batch.obs,
        action,
        batch.reward,
        batch.next_obs,
        ended,
        torch.zeros_like(ended),
        action_mask=batch.action_mask,
        next_action_mask=batch.next_action_mask,
    )


def masks_of(data: Transitions, spec: Spec) -> dict[str, Tensor]:
    """The masks of `data` by name, where the task has them. Raises `DataError` where `data` has
    none."""
    if not spec.action_mask:
        return {}
    masks = {name: getattr(data, name) for name in MASKS}
    if any(mask is None for mask in masks.values()):
        raise DataError(
            f"task {spec.task!r} masks actions, but the data have no action_mask and "
            "next_action_mask; record them, or use a spec with action_mask=False"
        )
    return masks


def sample_mixed(
    real: Buffer, imagined: Buffer, count: int, real_ratio: float, generator: torch.Generator
) -> Batch:
    """`int(count * real_ratio)` real rows followed by imagined ones; the split is exact in every
    batch. Both buffers have the same columns."""
    from_real = int(count * real_ratio)
    if from_real == count:
        rows = real.sample_rows(count, generator)
    else:
        rows = imagined.sample_rows(count - from_real, generator)
        if from_real > 0:
            rows = torch.cat([real.sample_rows(from_real, generator), rows])
    return imagined.batch(rows)._replace(real=from_real)
